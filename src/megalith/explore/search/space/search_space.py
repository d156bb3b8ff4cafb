"""The plans that a search may choose from, as a tree of four decisions.

Each decision (choices.py) lists its options given the ones before; a plan is one path from the root. Options
that the user fixed or forbade are left out here: everything in the tree is allowed. `every_plan` walks
all of it: that is what the exactness of the search is tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import gcd
from typing import cast, get_args

from megalith.core.errors import ConfigError
from megalith.explore.job import (
    Collectives,
    Compression,
    Job,
    Network,
    Parallel,
    Routing,
    ScheduleName,
    Sharding,
    TransformerModel,
)
from megalith.explore.plan import UNFUSED_GENERATIONS
from megalith.explore.search.space.decisions import Choice, Fabric, Rhythm, Sharing
from megalith.explore.search.space.layouts import Layout, divisors, layouts
from megalith.explore.search.space.constraints import Limits
from megalith.explore.search.space.layer_partition import head_in_layers, spread_layers
from megalith.hardware.cluster import Cluster

_CHUNKS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
_PATHS = (1, 2, 4, 8, 16, 32, 64)
_MOST_STAGES = 256
_OPERATIONS_OF_A_UNIT = 2000
_ORDERS_TRIED = 4
_PIECES = 8
# Larger ones no longer make matrix products more efficient and cost micro-batches to fill the pipeline with.
_MOST_MICRO_BATCH = 16
# Below this a slice of the sequence is too short to hide its keys' and values' way round the ring.
_LEAST_TOKENS_OF_A_SLICE = 1024


@dataclass(frozen=True, slots=True)
class Restriction:
    """A part of the tree, such as what a baseline may choose from: a test for each decision."""

    layout: Callable[[Layout], bool] = lambda _: True
    sharing: Callable[[Sharing], bool] = lambda _: True
    rhythm: Callable[[Rhythm], bool] = lambda _: True
    fabrics: tuple[Fabric, ...] = ()
    """In place of all network options; empty: all."""


class Space:
    """The tree of one job on one cluster."""

    def __init__(self, job: Job, cluster: Cluster, only: Restriction | None = None) -> None:
        self.job = job
        self.cluster = cluster
        self.limits = Limits(job, cluster)
        self.global_batch = global_batch(job)
        self.only = only or Restriction()
        self.fabrics = self.only.fabrics or tuple(self._list_fabrics())
        self._sharings: dict[tuple[int, ...], tuple[Sharing, ...]] = {}
        self._rhythms: dict[tuple[int, int, int], tuple[Rhythm, ...]] = {}
        self._layers: dict[tuple[int, int, bool], list[tuple[int, ...] | None]] = {}

    # The four decisions

    @property
    def transformer(self) -> TransformerModel | None:
        return self.job.model if isinstance(self.job.model, TransformerModel) else None

    @cached_property
    def layout_set(self) -> frozenset[Layout]:
        return frozenset(self.layouts())

    def layouts(self) -> Iterator[Layout]:
        model, counts = self.job.model, [level.count for level in self.cluster.levels]
        if isinstance(model, TransformerModel):
            stages = min(model.layers, _MOST_STAGES)
            sizes = self._tp_sizes(model), self._cp_sizes(model)
            found = layouts(counts, *sizes, max_pp=stages, max_dp=self.global_batch)
        else:
            found = layouts(counts, [1], [1], max_pp=1, max_dp=self.cluster.devices)
        allowed = self.limits.allow, self.only.layout
        return (one for one in found if self.global_batch % one.dp == 0 and all(ask(one) for ask in allowed))

    def sharings(self, layout: Layout) -> tuple[Sharing, ...]:
        crossed = tuple(sorted({*layout.crosses("dp"), *layout.crosses("cp")}))
        key = (layout.cp * layout.dp, *crossed)
        if key not in self._sharings:
            self._sharings[key] = tuple(filter(self.only.sharing, self._list_sharings(layout, crossed)))
        return self._sharings[key]

    def rhythms(self, layout: Layout) -> tuple[Rhythm, ...]:
        key = (layout.pp, layout.dp, layout.cp)
        if key not in self._rhythms:
            self._rhythms[key] = tuple(filter(self.only.rhythm, self._list_rhythms(layout)))
        return self._rhythms[key]

    # The tree

    def roots(self) -> Iterator[Choice]:
        return (root for root in map(Choice, self.layouts()) if self.leaves(root))

    def branch(self, choice: Choice) -> list[Choice] | None:
        """The next decision's options, or None for a plan."""
        layout, sharing, rhythm = choice.layout, choice.sharing, choice.rhythm
        if sharing is None:
            return [Choice(layout, one) for one in self.sharings(layout)]
        if rhythm is None:
            return [Choice(layout, sharing, one) for one in self.rhythms(layout)]
        if choice.fabric is None:
            return [Choice(layout, sharing, rhythm, one) for one in self.fabrics]
        return None

    def leaves(self, choice: Choice) -> int:
        """Plans below a node."""
        count = 1
        if choice.sharing is None:
            count *= len(self.sharings(choice.layout))
        if choice.rhythm is None:
            count *= len(self.rhythms(choice.layout))
        if choice.fabric is None:
            count *= len(self.fabrics)
        return count

    def work(self, choice: Choice) -> float:
        """What simulating a plan takes, in units of a short one: it grows with the operations in a step."""
        rhythm, layout = choice.rhythm, choice.layout
        assert rhythm is not None
        micro_batches = self.global_batch // layout.dp // rhythm.micro_batch
        # Beyond some micro-batches a pipeline repeats itself, and repetitions are skipped.
        operations = 2 * layout.pp * rhythm.vpp * min(micro_batches, 8 * layout.pp)
        if rhythm.schedule == "long-link":
            # Several orders are tried before one is taken.
            operations *= _ORDERS_TRIED
        if choice.sharing is not None and choice.sharing.sharding in ("zero2", "zero3", "hybrid"):
            # Operations are cut into pieces between which weights and gradients move.
            operations *= _PIECES
        return 1 + operations / _OPERATIONS_OF_A_UNIT

    def holds(self, plan: Choice) -> bool:
        """Whether the tree has this plan; moves also lead to others."""
        layout, sharing, rhythm = plan.layout, plan.sharing, plan.rhythm
        return (
            layout in self.layout_set
            and sharing in self.sharings(layout)
            and rhythm in self.rhythms(layout)
            and plan.fabric in self.fabrics
        )

    def every_plan(self) -> Iterator[Choice]:
        stack = list(self.roots())
        while stack:
            node = stack.pop()
            children = self.branch(node)
            if children is None:
                yield node
            else:
                stack.extend(children)

    def plan(self, choice: Choice) -> Job:
        """The complete job of a plan; it can be predicted, and asked about again."""
        layout, sharing, rhythm, fabric = choice.layout, choice.sharing, choice.rhythm, choice.fabric
        assert sharing is not None
        assert rhythm is not None
        assert fabric is not None
        sequence_parallel = self.job.parallel.sequence_parallel if self.job.parallel else True
        # Every value comes from a list of valid ones; validating again would take longer than bounding.
        parallel = Parallel.model_construct(
            tp=layout.tp,
            cp=layout.cp,
            ep=sharing.ep,
            pp=layout.pp,
            vpp=rhythm.vpp,
            dp=layout.dp,
            sharding=sharing.sharding,
            shard_within=sharing.shard_within,
            micro_batch=rhythm.micro_batch,
            global_batch=self.global_batch,
            sequence_parallel=bool(self.limits.only("sequence_parallel", [sequence_parallel])[0]),
            placement=layout.placement,
            layers_per_stage=rhythm.layers_per_stage,
        )
        training = self.job.training.model_copy(
            update={
                "precision": self.limits.only("precision", [self.job.training.precision])[0],
                "recompute": rhythm.recompute,
                "schedule": rhythm.schedule,
                "extra_in_flight": rhythm.extra_in_flight,
                "overlap": fabric.overlap,
                "bucket_bytes": fabric.bucket_bytes,
                "compression": fabric.compression,
                "local_steps": fabric.local_steps,
            }
        )
        network = Network.model_construct(
            routing=fabric.routing, collectives=fabric.collectives, multipath=fabric.multipath
        )
        complete = {"parallel": parallel, "training": training, "network": network}
        return self.job.model_copy(update={**complete, "global_batch": self.global_batch})

    # What is listed

    def _tp_sizes(self, model: TransformerModel) -> list[int]:
        # Across more than two nodes a layer's all-reduces cost more than its products.
        most = max(16, self.cluster.levels[0].count)
        width = model.ffn or 4 * model.hidden
        sizes = [tp for tp in divisors(model.heads) if tp <= most and width % tp == 0]
        return self.limits.only("tp", sizes)

    def _cp_sizes(self, model: TransformerModel) -> list[int]:
        most = model.seq // _LEAST_TOKENS_OF_A_SLICE
        sizes = [cp for cp in divisors(model.seq) if cp == 1 or (cp <= most and model.seq % (2 * cp) == 0)]
        return self.limits.only("cp", sizes)

    def _list_sharings(self, layout: Layout, crossed: tuple[int, ...]) -> Iterator[Sharing]:
        copies = layout.cp * layout.dp
        experts = self.job.model.experts if isinstance(self.job.model, TransformerModel) else 0
        if self.transformer is None:
            # Tables lie on one device each, the rest is copied: what a DLRM shards is not a choice here.
            yield Sharing(1, "none")
            return
        for ep in [size for size in divisors(experts) if copies % size == 0] if experts else [1]:
            if not self.limits.may("ep", ep):
                continue
            for sharding in cast("tuple[Sharding, ...]", get_args(Sharding)):
                if not self.limits.may("sharding", sharding) or (copies == 1 and sharding != "none"):
                    continue
                # A whole copy inside each member of a level that copies talk across; inside the innermost of
                # those levels nobody would be left to share it with.
                levels = [self.cluster.levels[index].name for index in crossed[1:]]
                for level in levels if sharding == "hybrid" else [None]:
                    if level is None or self.limits.may("shard_within", level):
                        yield Sharing(ep, sharding, level)

    def _list_rhythms(self, layout: Layout) -> Iterator[Rhythm]:
        samples = self.global_batch // layout.dp
        if self.transformer is None:
            # A DLRM has no pipeline: a device's whole batch goes at once.
            yield Rhythm(samples, "1f1b")
            return
        small = [size for size in divisors(samples) if size <= _MOST_MICRO_BATCH]
        # Left out, a prediction takes the least recompute that fits, which is the fastest.
        recomputes = self.limits.only("recompute", [None])
        for micro_batch in self.limits.only("micro_batch", small):
            if samples % micro_batch or (self._slices_dominated and gcd(micro_batch, layout.cp) > 1):
                continue
            for schedule, vpp, extra in self._schedules(layout.pp, samples // micro_batch):
                for recompute in recomputes:
                    for layers in self._layer_options(layout.pp, vpp, schedule):
                        yield Rhythm(micro_batch, schedule, vpp, extra, recompute, layers)

    @cached_property
    def _slices_dominated(self) -> bool:
        """Whether halving both the micro-batch and the slices of a sequence never loses.

        It leaves every device the same tokens, the same replicas and as many micro-batches, and takes traffic
        away: two sequences cut in two become two whole ones. Only where the user lets both change, and where
        attention is computed alike with and without slices.
        """
        limits, training = self.limits, self.job.training
        bound = {"cp", "dp", "micro_batch", "placement"} & set(limits.fixed) or limits.keeps_inside("dp")
        older = self.cluster.device.generation in UNFUSED_GENERATIONS
        return not bound and (training.attention == "flash" or not older)

    def _layer_options(self, pp: int, vpp: int, schedule: str) -> list[tuple[int, ...] | None]:
        """Layers of each stage: even, if that can be, and with the head of the model made up for."""
        model = self.transformer
        if model is None or pp * vpp == 1:
            return [None]
        key = pp, vpp, schedule == "zb-v"
        if key not in self._layers:
            even: list[tuple[int, ...] | None] = [None] if model.layers % (pp * vpp) == 0 else []
            share = spread_layers(model.layers, pp, vpp, self._head, folded=schedule == "zb-v")
            self._layers[key] = even if even and len(set(share)) == 1 else [*even, share]
        return self._layers[key]

    @cached_property
    def _head(self) -> float:
        """What the vocabulary's projection and the loss cost, in layers."""
        model = self.transformer
        return head_in_layers(model) if model else 0.0

    def _schedules(self, pp: int, micro_batches: int) -> Iterator[tuple[ScheduleName, int, int]]:
        layers = self.job.model.layers if isinstance(self.job.model, TransformerModel) else 1
        # One stage has no pipeline to order: all schedules are the same.
        names = get_args(ScheduleName) if pp > 1 else ("1f1b",)
        for schedule in cast("Sequence[ScheduleName]", self.limits.only("schedule", names)):
            options: list[tuple[int, int]] = [(1, 0)]
            if pp > 1 and schedule in ("interleaved", "breadth-first"):
                whole = schedule == "breadth-first" or micro_batches % pp == 0
                options = [(vpp, 0) for vpp in _CHUNKS] if whole else []
            elif pp > 1 and schedule == "zb-v":
                options = [(2, 0)]
            elif pp > 1 and schedule == "dualpipe":
                options = [(1, 0)] if pp % 2 == 0 == micro_batches % 2 and micro_batches >= 2 * pp else []
            elif pp > 1 and schedule == "long-link":
                options = [(1, 2**power) for power in range(12) if 2**power <= micro_batches]
                options += [(2, extra) for extra in (0, pp)]
            for vpp, extra in options:
                fixed = self.limits.may("vpp", vpp) and self.limits.may("extra_in_flight", extra)
                if fixed and pp * vpp <= layers:
                    yield schedule, vpp, extra

    def _list_fabrics(self) -> Iterator[Fabric]:
        constraints = self.job.constraints
        only = self.limits.only
        outermost = self.cluster.levels[-1].link.ports
        collectives_names: tuple[Collectives, ...] = ("flat", "hierarchical", "auto")
        compressions: tuple[Compression, ...] = ("none", "bf16", "int8", "int4")
        options = product(
            only("routing", cast("tuple[Routing, ...]", get_args(Routing))),
            only("collectives", collectives_names),
            only("multipath", [paths for paths in _PATHS if paths <= max(8, outermost)]),
            # Without overlap little is ever gained: left to local moves.
            only("overlap", (True,)),
            only("bucket_bytes", (self.job.training.bucket_bytes,)),
            only("compression", compressions if constraints.allow_compression else compressions[:1]),
            only("local_steps", (1, 4, 16, 64) if constraints.allow_local_steps else (1,)),
        )
        for routing, collectives, multipath, overlap, bucket, compression, steps in options:
            yield Fabric(routing, collectives, multipath, bool(overlap), bucket, compression, steps)


def global_batch(job: Job) -> int:
    """Samples of a step, from wherever the job says it."""
    found = job.parallel.global_batch if job.parallel else job.global_batch
    if found is None:
        raise ConfigError("A search needs the samples of a step; add 'global_batch' to the job.")
    return found
