"""Pipeline schedules by name."""

from __future__ import annotations

from megalith.core.errors import PlanError, nearest
from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.schedules.dualpipe import dualpipe
from megalith.explore.pipeline.schedules.greedy import GreedyPolicy, greedy_schedule
from megalith.explore.pipeline.schedules.long_link import long_link
from megalith.explore.pipeline.schedules.one_forward_one_backward import (
    breadth_first,
    gpipe,
    interleaved,
    one_forward_one_backward,
)
from megalith.explore.pipeline.schedules.zero_bubble import zb_h1, zb_h2, zb_v

SCHEDULES = (
    "gpipe",
    "1f1b",
    "interleaved",
    "breadth-first",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "dualpipe",
    "long-link",
)

__all__ = ["SCHEDULES", "GreedyPolicy", "build_schedule", "greedy_schedule"]


def build_schedule(
    name: str,
    devices: int,
    micro_batches: int,
    chunks: int | None = None,
    extra_in_flight: int = 0,
    costs: StepCosts | None = None,
) -> Schedule:
    """The order of operations of a named schedule; PlanError with the nearest valid value if there is none.

    `chunks` is how many pieces of the model each device holds: 2 of zb-v, 1 where nothing else is said.
    DualPipe's two are not pieces of one model but the same piece of two, so 1 is right for it as well.
    """
    if name not in SCHEDULES:
        raise PlanError(f"There is no pipeline schedule '{name}'; {nearest(name, SCHEDULES)}")
    if chunks is None:
        chunks = 2 if name == "zb-v" else 1
    if devices < 1 or micro_batches < 1 or chunks < 1:
        raise PlanError(
            f"A pipeline of {devices} devices, {micro_batches} micro-batches and {chunks} chunks cannot run; "
            "use at least 1 of each."
        )
    if name == "interleaved":
        return interleaved(devices, micro_batches, chunks)
    if name == "long-link":
        return long_link(devices, micro_batches, chunks, extra_in_flight, costs)
    if name == "breadth-first":
        return breadth_first(devices, micro_batches, chunks)
    if name in ("zb-v", "dualpipe"):
        if chunks != 2 and (name == "zb-v" or chunks != 1):
            raise PlanError(f"Schedule {name} has 2 chunks a device and {chunks} were asked for; use 2.")
        return zb_v(devices, micro_batches) if name == "zb-v" else dualpipe(devices, micro_batches)
    if chunks != 1:
        raise PlanError(
            f"Schedule {name} has one chunk a device and {chunks} were asked for; use 1 chunk, or the "
            "interleaved or breadth-first schedule."
        )
    if name == "gpipe":
        return gpipe(devices, micro_batches)
    if name == "zb-h1":
        return zb_h1(devices, micro_batches)
    if name == "zb-h2":
        return zb_h2(devices, micro_batches)
    return one_forward_one_backward(devices, micro_batches, extra_in_flight)
