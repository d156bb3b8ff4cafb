"""What a trainer runs of what the Explorer knows, for searches that must end in a plan that runs so.

The lists follow the flags that are written for each trainer (`explore.flags`): an option is left out where
its file would have to say "Not expressed".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from megalith.explore.flags.ranks import host_ranks
from megalith.explore.job import Job, Parallel
from megalith.explore.search.space.layouts import DeviceLayout

_PLAIN = ("tp", "cp", "dp", "pp")
_DATA_OUTSIDE = ("tp", "cp", "pp", "dp")


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """Values of each option that a trainer runs, and the orders in which it numbers ranks."""

    values: Mapping[str, Sequence[object]]
    rank_orders: tuple[tuple[str, ...], ...]
    shards_always: bool = False
    """Replicas beside other axes are sharded in any case."""


TRAINERS = {
    "megatron": TrainerOptions(
        {
            "schedule": ("1f1b", "interleaved"),
            "collectives": ("auto", "flat"),
            "compression": ("none", "bf16"),
            "local_steps": (1,),
        },
        (_PLAIN, _DATA_OUTSIDE),
    ),
    "torchtitan": TrainerOptions(
        {
            "schedule": (
                *("gpipe", "1f1b", "interleaved", "breadth-first"),
                *("zb-h1", "zb-h2", "zb-v", "long-link", "greedy"),
            ),
            "collectives": ("auto", "flat"),
            "compression": ("none",),
            "local_steps": (1,),
            "overlap": (True,),
            "precision": ("bf16", "fp8", "fp32"),
            "context_exchange": ("ring", "all-gather"),
        },
        (_PLAIN,),
        shards_always=True,
    ),
}


def ranks_reach(job: Job, trainer: TrainerOptions, layout: DeviceLayout) -> bool:
    """Whether some numbering of the hosts puts the trainer's axes where the layout has them."""
    parallel = Parallel.model_construct(
        tp=layout.tp, cp=layout.cp, dp=layout.dp, pp=layout.pp, placement=layout.placement
    )
    orders = trainer.rank_orders
    if getattr(job.model, "experts", 0):
        # Megatron refuses its other order when experts and attention have unequal data parallelism.
        orders = orders[:1]
    return host_ranks(job.model_copy(update={"parallel": parallel}), orders) is not None
