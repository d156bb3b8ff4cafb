"""Whether this runtime runs a plan: it keeps rows in the stores below, on processors.

`megalith plan` may plan machines that are not here, with accelerators or memory that no store of this runtime
uses. Such a plan says so, and training refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence

from megalith.core.errors import PlanError
from megalith.hardware.cluster import Device
from megalith.sharding.plan import Placement, Runnable, ShardingPlan, has_column_shards

RUNTIME_STORES: frozenset[str] = frozenset({"dense", "tiered", "adaptive", "dynamic"})
"""Stores that training runs."""
RUNTIME_DEVICE = "cpu"
"""The generation of the devices that it trains on."""


def runnable_here(placements: Sequence[Placement], device: Device) -> Runnable:
    """Whether this runtime runs these placements on such devices, and if not, why.

    >>> from megalith.hardware.catalog import catalog
    >>> print(runnable_here([], catalog().device("a100-40g")))
    no (its workers are a100-40g, and this runtime trains on processors)
    """
    if device.generation != RUNTIME_DEVICE:
        return _no(f"its workers are {device.name}, and this runtime trains on processors")
    return _runnable_stores(placements, device.memory[0].name)


def check_runnable(plan: ShardingPlan, source: str) -> None:
    """Refuses a plan that this runtime does not run, with one sentence; `source` says where it came from."""
    runnable = plan.runnable if not plan.runnable.value else _runnable_stores(plan.placements)
    if not runnable.value:
        raise PlanError(
            f"{source} is not runnable here: {runnable.reason}; make one with "
            f"`megalith plan RECIPE --hardware local --world-size {plan.world_size}`, or set "
            "sharding.plan=auto."
        )


def _runnable_stores(placements: Sequence[Placement], first_tier: str | None = None) -> Runnable:
    for placement in placements:
        if placement.store not in RUNTIME_STORES:
            return _no(
                f"table '{placement.table}' needs a {placement.store} store on {placement.tier}, and this "
                f"runtime has {' and '.join(sorted(RUNTIME_STORES))} ones"
            )
        if placement.store == "tiered" and has_column_shards(placement):
            return _no(
                f"table '{placement.table}' is tiered and cut by columns: every part would read the disk"
            )
        elsewhere = None not in (first_tier, placement.tier) and placement.tier != first_tier
        if placement.store == "dense" and elsewhere:
            return _no(f"table '{placement.table}' is on {placement.tier} without a cache")
    return Runnable()


def _no(reason: str) -> Runnable:
    return Runnable(value=False, reason=reason)
