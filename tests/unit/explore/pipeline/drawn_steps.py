"""Random schedules with random costs, for the property tests of this folder."""

from __future__ import annotations

from hypothesis import strategies as st

from megalith.explore.pipeline.costs import Collective, StepCosts, Transfer
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.schedules import build_schedule

NAMES = ("gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1", "zb-h2", "zb-v", "dualpipe", "long-link")
SECONDS = st.floats(min_value=0.01, max_value=5.0)
SHORT = st.floats(min_value=0.0, max_value=1.0)


@st.composite
def schedules(draw: st.DrawFn, most: int = 12, names: tuple[str, ...] = NAMES) -> Schedule:
    name = draw(st.sampled_from(names))
    devices = draw(st.integers(1, 4))
    micro_batches = draw(st.integers(1, most))
    chunks: int | None = None
    extra = 0
    if name == "dualpipe":
        devices *= 2
        micro_batches = 2 * devices + 2 * micro_batches
    elif name == "interleaved":
        micro_batches = -(-micro_batches // devices) * devices
        chunks = draw(st.integers(1, 3))
    elif name == "breadth-first":
        chunks = draw(st.integers(1, 3))
    elif name in ("1f1b", "long-link"):
        extra = draw(st.integers(0, 4))
    return build_schedule(name, devices, micro_batches, chunks, extra)


@st.composite
def steps(
    draw: st.DrawFn, most: int = 12, names: tuple[str, ...] = NAMES, shared: bool | None = None
) -> tuple[Schedule, StepCosts]:
    """A schedule and costs for it; `shared` says whether devices may send over the same links."""
    schedule = draw(schedules(most, names))
    stages, devices = schedule.stages, schedule.devices
    seconds = st.tuples(*[SECONDS] * stages)
    together = draw(st.booleans()) if shared is None else shared

    def transfers(direction: str, sender: int) -> tuple[Transfer | None, ...]:
        found: list[Transfer | None] = []
        for boundary in range(stages - 1):
            if draw(st.integers(0, 4)) == 0:
                found.append(None)
                continue
            device = schedule.placement[boundary + sender]
            link = draw(st.sampled_from(["zone", "region"])) if together else (direction, device)
            found.append(Transfer(link, draw(SHORT), draw(SHORT)))
        return tuple(found)

    def collectives(kind: str) -> dict[tuple[int, int], Collective]:
        if not draw(st.booleans()):
            return {}
        each = draw(st.sampled_from(["step", "step", "turn", "op"]))
        buckets = draw(st.integers(1, 3))
        return {
            (device, chunk): Collective(
                "zone" if together else ("replicas", device), draw(SHORT), draw(SHORT), each, buckets
            )
            for device in range(devices)
            for chunk in range(schedule.chunks)
        }

    costs = StepCosts(
        forward=draw(seconds),
        backward_input=draw(seconds),
        backward_weight=draw(seconds),
        forward_transfers=transfers("forward", 0),
        backward_transfers=transfers("backward", 1),
        gradient=collectives("gradient"),
        parameters=collectives("parameters"),
        optimizer_seconds=draw(st.tuples(*[SHORT] * devices)),
        overlap=draw(st.booleans()),
        kept_for_weights=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )
    return schedule, costs
