"""The plans that a search may choose from, as a tree of four decisions.

Each decision (decisions.py) lists its options given the ones before (options.py); a plan is one path from the
root. Options that the user fixed or forbade are left out: everything in the tree is allowed. `every_plan`
walks all of it: that is what the exactness of the search is tested against.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from megalith.explore.job import Job, Network, Parallel, TransformerModel
from megalith.explore.search.space.decisions import PipelineChoice, PlanCandidate, StateSharding
from megalith.explore.search.space.layouts import DeviceLayout
from megalith.explore.search.space.options import DecisionOptions
from megalith.explore.search.space.restriction import Restriction
from megalith.hardware.cluster import Cluster

_OPERATIONS_OF_A_UNIT = 2000
_ORDERS_TRIED = 4
_PIECES = 8


class SearchSpace:
    """The tree of one job on one cluster, or the part of it that a restriction leaves.

    The joint search opens it node by node; a bound or an evaluation asks it for the options of a decision.
    """

    def __init__(self, job: Job, cluster: Cluster, only: Restriction | None = None) -> None:
        self.job = job
        self.cluster = cluster
        self.options = DecisionOptions(job, cluster)
        self.constraints = self.options.constraints
        self.global_batch = self.options.global_batch
        self.only = only or Restriction()
        self.networks = self.only.networks or tuple(self.options.networks())
        self._shardings: dict[tuple[int, ...], tuple[StateSharding, ...]] = {}
        self._pipelines: dict[tuple[int, int, int], tuple[PipelineChoice, ...]] = {}

    # The four decisions

    @property
    def transformer(self) -> TransformerModel | None:
        """The model, if it is a transformer: a DLRM has no pipeline and no sharding to choose."""
        return self.options.transformer

    @cached_property
    def layout_set(self) -> frozenset[DeviceLayout]:
        """All layouts, for asking whether one is among them."""
        return frozenset(self.layouts())

    def layouts(self) -> Iterator[DeviceLayout]:
        """Every layout that the constraints and the restriction allow."""
        return filter(self.only.layout, self.options.layouts())

    def shardings(self, layout: DeviceLayout) -> tuple[StateSharding, ...]:
        """Ways of sharding the training state with this layout."""
        crossed = tuple(sorted({*layout.crosses("dp"), *layout.crosses("cp")}))
        alone = layout.tp * layout.cp * layout.pp == 1
        key = (layout.cp * layout.dp, alone, *crossed)
        if key not in self._shardings:
            listed = self.options.shardings(layout, crossed)
            self._shardings[key] = tuple(filter(self.only.sharding, listed))
        return self._shardings[key]

    def pipelines(self, layout: DeviceLayout) -> tuple[PipelineChoice, ...]:
        """Micro-batches and schedules with this layout."""
        key = (layout.pp, layout.dp, layout.cp)
        if key not in self._pipelines:
            self._pipelines[key] = tuple(filter(self.only.pipeline, self.options.pipelines(layout)))
        return self._pipelines[key]

    # The tree

    def roots(self) -> Iterator[PlanCandidate]:
        """The first decision's options, those that lead to a plan."""
        return (root for root in map(PlanCandidate, self.layouts()) if self.leaves(root))

    def branch(self, candidate: PlanCandidate) -> list[PlanCandidate] | None:
        """The next decision's options, or None for a plan."""
        layout, sharding, pipeline = candidate.layout, candidate.sharding, candidate.pipeline
        if sharding is None:
            return [PlanCandidate(layout, option) for option in self.shardings(layout)]
        if pipeline is None:
            return [PlanCandidate(layout, sharding, option) for option in self.pipelines(layout)]
        if candidate.network is None:
            return [PlanCandidate(layout, sharding, pipeline, option) for option in self.networks]
        return None

    def leaves(self, candidate: PlanCandidate) -> int:
        """Plans below a node."""
        count = 1
        if candidate.sharding is None:
            count *= len(self.shardings(candidate.layout))
        if candidate.pipeline is None:
            count *= len(self.pipelines(candidate.layout))
        if candidate.network is None:
            count *= len(self.networks)
        return count

    def work(self, candidate: PlanCandidate) -> float:
        """What simulating a plan takes, in units of a short one: it grows with the operations in a step."""
        pipeline, layout = candidate.pipeline, candidate.layout
        assert pipeline is not None
        micro_batches = self.global_batch // layout.dp // pipeline.micro_batch
        # Beyond some micro-batches a pipeline repeats itself, and repetitions are skipped.
        operations = 2 * layout.pp * pipeline.vpp * min(micro_batches, 8 * layout.pp)
        if pipeline.schedule == "greedy":
            operations = 2 * _ORDERS_TRIED * layout.pp * pipeline.vpp * micro_batches
        if pipeline.schedule == "long-link":
            # Several orders are tried before one is taken.
            operations *= _ORDERS_TRIED
        if candidate.sharding is not None and candidate.sharding.strategy in ("zero2", "zero3", "hybrid"):
            # Operations are cut into pieces between which weights and gradients move.
            operations *= _PIECES
        return 1 + operations / _OPERATIONS_OF_A_UNIT

    def contains(self, plan: PlanCandidate) -> bool:
        """Whether the tree has this plan; local moves also lead to others."""
        layout, sharding, pipeline = plan.layout, plan.sharding, plan.pipeline
        return (
            layout in self.layout_set
            and sharding in self.shardings(layout)
            and pipeline in self.pipelines(layout)
            and plan.network in self.networks
        )

    def every_plan(self) -> Iterator[PlanCandidate]:
        """All plans of the tree, one after the other; only for small spaces."""
        stack = list(self.roots())
        while stack:
            node = stack.pop()
            children = self.branch(node)
            if children is None:
                yield node
            else:
                stack.extend(children)

    def to_job(self, candidate: PlanCandidate) -> Job:
        """The complete job of a plan; it can be predicted, and asked about again."""
        layout, sharding, pipeline = candidate.layout, candidate.sharding, candidate.pipeline
        network = candidate.network
        assert sharding is not None
        assert pipeline is not None
        assert network is not None
        sequence_parallel = self.job.parallel.sequence_parallel if self.job.parallel else True
        restrict = self.constraints.restrict
        # Every value comes from a list of valid ones; validating again would take longer than bounding.
        parallel = Parallel.model_construct(
            tp=layout.tp,
            cp=layout.cp,
            ep=sharding.ep,
            pp=layout.pp,
            vpp=pipeline.vpp,
            dp=layout.dp,
            sharding=sharding.strategy,
            shard_within=sharding.shard_within,
            micro_batch=pipeline.micro_batch,
            global_batch=self.global_batch,
            sequence_parallel=bool(restrict("sequence_parallel", [sequence_parallel])[0]),
            placement=layout.placement,
            layers_per_stage=pipeline.layers_per_stage,
        )
        training = self.job.training.model_copy(
            update={
                "precision": restrict("precision", [self.job.training.precision])[0],
                "recompute": pipeline.recompute,
                "schedule": pipeline.schedule,
                "extra_in_flight": pipeline.extra_in_flight,
                "overlap": network.overlap,
                "bucket_bytes": network.bucket_bytes,
                "compression": network.compression,
                "local_steps": network.local_steps,
            }
        )
        used = Network.model_construct(
            routing=network.routing, collectives=network.collectives, multipath=network.multipath
        )
        complete = {"parallel": parallel, "training": training, "network": used}
        return self.job.model_copy(update={**complete, "global_batch": self.global_batch})
