"""The options of each decision of a plan: sizes, shardings, schedules and networks worth trying."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from math import gcd
from typing import cast, get_args

from megalith.core.errors import ConfigError
from megalith.explore.job import (
    Collectives,
    Compression,
    Job,
    Routing,
    ScheduleName,
    Sharding,
    TransformerModel,
)
from megalith.explore.plan import uses_flash
from megalith.explore.search.space.constraints import OptionConstraints
from megalith.explore.search.space.decisions import NetworkChoice, PipelineChoice, StateSharding
from megalith.explore.search.space.layer_partition import head_in_layers, spread_layers
from megalith.explore.search.space.layouts import DeviceLayout, divisors, enumerate_layouts
from megalith.hardware.cluster import Cluster

_CHUNKS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
_FOLDED = ("zb-v", "dualpipe")
_PATHS = (1, 2, 4, 8, 16, 32, 64)
_MOST_STAGES = 256
# Larger ones no longer make matrix products more efficient and cost micro-batches to fill the pipeline with.
_MOST_MICRO_BATCH = 16
# Below this a slice of the sequence is too short to hide the transfer of its keys and values round the ring.
_LEAST_TOKENS_OF_A_SLICE = 1024


class DecisionOptions:
    """Lists what one job on one cluster may choose for each decision; `SearchSpace` asks it."""

    def __init__(self, job: Job, cluster: Cluster) -> None:
        self.job = job
        self.cluster = cluster
        self.constraints = OptionConstraints(job, cluster)
        self.global_batch = global_batch_of(job)
        self._layers: dict[tuple[int, int, bool], list[tuple[int, ...] | None]] = {}

    @property
    def transformer(self) -> TransformerModel | None:
        """The model, if it is a transformer."""
        return self.job.model if isinstance(self.job.model, TransformerModel) else None

    def layouts(self) -> Iterator[DeviceLayout]:
        """Every layout whose replicas share the batch evenly and that the constraints allow."""
        model, counts = self.job.model, [level.count for level in self.cluster.levels]
        if isinstance(model, TransformerModel):
            stages = min(model.layers, _MOST_STAGES)
            sizes = self._tp_sizes(model), self._cp_sizes(model)
            listed = enumerate_layouts(counts, *sizes, max_pp=stages, max_dp=self.global_batch)
        else:
            listed = enumerate_layouts(counts, [1], [1], max_pp=1, max_dp=self.cluster.devices)
        allows = self.constraints.allows_layout
        return (layout for layout in listed if self.global_batch % layout.dp == 0 and allows(layout))

    def shardings(self, layout: DeviceLayout, crossed: tuple[int, ...]) -> Iterator[StateSharding]:
        """Expert parallelism and sharding among replicas, which talk over the levels `crossed`."""
        replicas = layout.cp * layout.dp
        experts = self.job.model.experts if isinstance(self.job.model, TransformerModel) else 0
        if self.transformer is None:
            # Tables lie on one device each, the rest is replicated: what a DLRM shards is not a choice here.
            yield StateSharding(1, "none")
            return
        allows = self.constraints.allows
        for ep in [size for size in divisors(experts) if replicas % size == 0] if experts else [1]:
            if not allows("ep", ep):
                continue
            for strategy in cast("tuple[Sharding, ...]", get_args(Sharding)):
                if not self.constraints.allows_sharding(layout, strategy) or (
                    replicas == 1 and strategy != "none"
                ):
                    continue
                # A whole copy inside each member of a level that replicas talk across; inside the innermost
                # of those levels nobody would be left to share it with.
                levels = [self.cluster.levels[index].name for index in crossed[1:]]
                for level in levels if strategy == "hybrid" else [None]:
                    if level is None or allows("shard_within", level):
                        yield StateSharding(ep, strategy, level)

    def pipelines(self, layout: DeviceLayout) -> Iterator[PipelineChoice]:
        """Micro-batches, schedules, recompute and layers of each stage."""
        samples = self.global_batch // layout.dp
        if self.transformer is None:
            # A DLRM has no pipeline: a device's whole batch goes at once.
            yield PipelineChoice(samples, "1f1b")
            return
        small = [size for size in divisors(samples) if size <= _MOST_MICRO_BATCH]
        # Left out, a prediction takes the least recompute that fits, which is the fastest.
        recomputes = self.constraints.restrict("recompute", [None])
        for micro_batch in self.constraints.restrict("micro_batch", small):
            if samples % micro_batch or (self._slices_dominated and gcd(micro_batch, layout.cp) > 1):
                continue
            for schedule, vpp, extra in self._schedules(layout.pp, samples // micro_batch):
                for recompute in recomputes:
                    for layers in self._layer_options(layout.pp, vpp, schedule):
                        yield PipelineChoice(micro_batch, schedule, vpp, extra, recompute, layers)

    def networks(self) -> Iterator[NetworkChoice]:
        """Routing, collectives, paths and, where the user allows them, compression and local steps."""
        constraints = self.job.constraints
        restrict = self.constraints.restrict
        outermost = self.cluster.levels[-1].link.ports
        collectives_names: tuple[Collectives, ...] = ("flat", "hierarchical", "auto")
        compressions: tuple[Compression, ...] = ("none", "bf16", "int8", "int4")
        options = product(
            restrict("routing", cast("tuple[Routing, ...]", get_args(Routing))),
            restrict("collectives", collectives_names),
            restrict("multipath", [paths for paths in _PATHS if paths <= max(8, outermost)]),
            # Without overlap little is ever gained: left to local moves.
            restrict("overlap", (True,)),
            restrict("bucket_bytes", (self.job.training.bucket_bytes,)),
            restrict("compression", compressions if constraints.allow_compression else compressions[:1]),
            restrict("local_steps", (1, 4, 16, 64) if constraints.allow_local_steps else (1,)),
        )
        for routing, collectives, multipath, overlap, bucket, compression, steps in options:
            yield NetworkChoice(routing, collectives, multipath, bool(overlap), bucket, compression, steps)

    def _tp_sizes(self, model: TransformerModel) -> list[int]:
        # Across more than two nodes a layer's all-reduces cost more than its products.
        most = max(16, self.cluster.levels[0].count)
        width = model.ffn or 4 * model.hidden
        sizes = [tp for tp in divisors(model.heads) if tp <= most and width % tp == 0]
        return self.constraints.restrict("tp", sizes)

    def _cp_sizes(self, model: TransformerModel) -> list[int]:
        most = model.seq // _LEAST_TOKENS_OF_A_SLICE
        sizes = [cp for cp in divisors(model.seq) if cp == 1 or (cp <= most and model.seq % (2 * cp) == 0)]
        return self.constraints.restrict("cp", sizes)

    @cached_property
    def _slices_dominated(self) -> bool:
        """Whether halving both the micro-batch and the slices of a sequence never loses.

        It leaves every device the same tokens, the same replicas and as many micro-batches, and takes traffic
        away: two sequences cut in two become two whole ones. Only where the user lets both change, and where
        attention is computed alike with and without slices.
        """
        constraints = self.constraints
        sizes = {"cp", "dp", "micro_batch", "placement"}
        bound = sizes & set(constraints.fixed) or constraints.keeps_inside("dp")
        return not bound and uses_flash(self.job)

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
        """Schedule, chunks of each device, extra micro-batches in flight."""
        layers = self.job.model.layers if isinstance(self.job.model, TransformerModel) else 1
        # One stage has no pipeline to order: all schedules are the same.
        # The greedy's order is left to local moves: it is made anew for every plan.
        asked = self.constraints.fixed.get("schedule") == "greedy"
        names = [name for name in get_args(ScheduleName) if name != "greedy" or asked] if pp > 1 else ["1f1b"]
        for schedule in cast("Sequence[ScheduleName]", self.constraints.restrict("schedule", names)):
            # Both fold a pipeline in two: a single stage cannot be, even where the user fixed the name.
            options: list[tuple[int, int]] = [] if pp == 1 and schedule in _FOLDED else [(1, 0)]
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
                allows = self.constraints.allows
                if allows("vpp", vpp) and allows("extra_in_flight", extra) and pp * vpp <= layers:
                    yield schedule, vpp, extra


def global_batch_of(job: Job) -> int:
    """Samples of a step, from wherever the job says it."""
    samples = job.parallel.global_batch if job.parallel else job.global_batch
    if samples is None:
        raise ConfigError("A search needs the samples of a step; add 'global_batch' to the job.")
    return samples
