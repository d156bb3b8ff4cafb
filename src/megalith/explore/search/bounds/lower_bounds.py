"""Lower bounds on the step of a plan, and of all plans that share its first decisions.

Nothing here is a guess: each term is time that the simulation cannot avoid, whatever else the plan does
(pipeline_bounds.py), in seconds of the cost model itself. A node of the tree is bounded by what it has
decided:

    DeviceLayout      the layers' work on the average device, for the best micro-batch
    StateSharding     the same; infinite if weights, gradients and optimizer state alone do not fit in memory
    PipelineChoice    the pipeline's closed forms, nothing recomputed
    NetworkChoice     the same with the recompute that memory forces, infinite if none is enough
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from megalith.explore.candidates import RECOMPUTE
from megalith.explore.cost.memory import memory_of
from megalith.explore.cost.stages import stage_seconds
from megalith.explore.cost.step import plan_cost, scale_loss
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.search.bounds.layout_costs import LayoutCosts, ReplicaExchange, fabric_of
from megalith.explore.search.bounds.pipeline_bounds import PipelineBounds
from megalith.explore.search.bounds.pipeline_times import PipelineTimes
from megalith.explore.search.space.decisions import (
    NetworkChoice,
    PipelineChoice,
    PlanCandidate,
    StateSharding,
)
from megalith.explore.search.space.layer_partition import spread_layers
from megalith.explore.search.space.layouts import DeviceLayout
from megalith.explore.search.space.search_space import SearchSpace

_FEW_NETWORKS = 4


class LowerBounds:
    """Bounds for the nodes of one space; the network is the best of its options until it is chosen."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._model = space.transformer
        self._layout_costs: dict[tuple[DeviceLayout, NetworkChoice], LayoutCosts] = {}
        self._work: dict[tuple[int, ...], float] = {}
        self._times: dict[object, PipelineTimes] = {}
        self._replicas: dict[tuple[DeviceLayout, StateSharding, NetworkChoice | None], _ReplicaBounds] = {}
        self._collectives: dict[str, _CollectiveRates] = {}
        # Before the network is chosen, a bound is the least of all options' where those are few; where they
        # are many (compressed, or met once in many steps) replicas are taken for free.
        networks = list(
            dict.fromkeys(replace(network, overlap=True, bucket_bytes=1) for network in space.networks)
        )
        self._networks: list[NetworkChoice | None] = [*networks] if len(networks) <= _FEW_NETWORKS else [None]
        constants = fabric_of(space, space.networks[0]).constants if self._model else None
        self._constant = constants.step_seconds if constants else 0.0
        overlapped = all(network.overlap for network in space.networks)
        self._contended = 1 - constants.overlap if constants and overlapped else 0.0
        self._scale_loss = constants.scale_loss if constants else 0.0

    def __call__(self, candidate: PlanCandidate) -> float:
        """No plan below this node takes fewer seconds; infinite if none can run."""
        if self._model is None:
            return 0.0
        layout, sharding = candidate.layout, candidate.sharding
        pipeline, network = candidate.pipeline, candidate.network
        if sharding is None:
            experts = {option.ep for option in self._space.shardings(layout)}
            return min((self._least_work(layout, ep) for ep in experts), default=inf)
        if pipeline is None:
            fits = self._costs_of(layout, self._space.networks[0]).state_fits(sharding)
            return self._least_work(layout, sharding.ep) if fits else inf
        recompute: str = pipeline.recompute or "none"
        if network is not None:
            least_recompute = self._least_recompute(layout, sharding, pipeline, network)
            if least_recompute is None:
                return inf
            recompute = least_recompute
        bounds = self._pipeline_bounds(candidate, sharding, pipeline, recompute)
        ordered, extra = network is not None, pipeline.extra_in_flight
        least = min(bound.lower_bound(pipeline.schedule, extra, ordered=ordered) for bound in bounds)
        return (least + self._constant) * self._scale(layout)

    def _scale(self, layout: DeviceLayout) -> float:
        """What a step of so many devices takes, lost to stragglers, for each second without them."""
        return 1 + scale_loss(self._scale_loss, layout.tp * layout.cp * layout.pp * layout.dp)

    def estimate(self, candidate: PlanCandidate, bound: float) -> float:
        """What a plan with this bound may well take, for the order of the search."""
        pipeline, sharding = candidate.pipeline, candidate.sharding
        if self._model is None or pipeline is None or sharding is None:
            return bound
        bounds = self._pipeline_bounds(candidate, sharding, pipeline, "none")
        return max(bound, min(each.estimate(pipeline.schedule, pipeline.extra_in_flight) for each in bounds))

    def layers(self, candidate: PlanCandidate) -> tuple[int, ...] | None:
        """Layers of each virtual stage of a plan, also where they are left to be even."""
        if self._model is None or candidate.pipeline is None:
            return None
        return self._layers(candidate.layout, candidate.pipeline)

    def _layers(self, layout: DeviceLayout, pipeline: PipelineChoice) -> tuple[int, ...]:
        assert self._model is not None
        return pipeline.layers_per_stage or spread_layers(self._model.layers, layout.pp, pipeline.vpp)

    def _least_work(self, layout: DeviceLayout, ep: int) -> float:
        """All micro-batches on the average device, layers without their traffic, the best micro-batch."""
        key = layout.tp, layout.cp, ep, layout.pp, layout.dp
        if key not in self._work:
            costs = self._costs_of(layout, self._space.networks[0])
            samples = self._space.global_batch // layout.dp
            most_chunks = max((pipeline.vpp for pipeline in self._space.pipelines(layout)), default=1)
            best = inf
            for size in {pipeline.micro_batch for pipeline in self._space.pipelines(layout)}:
                stages = stage_seconds(costs.compute_only(ep, size, most_chunks))
                total = sum(stage.total for stage in stages)
                best = min(best, samples // size * total / layout.pp)
            self._work[key] = (best + self._constant) * self._scale(layout)
        return self._work[key]

    def _pipeline_bounds(
        self, candidate: PlanCandidate, sharding: StateSharding, pipeline: PipelineChoice, recompute: str
    ) -> list[PipelineBounds]:
        """For the network chosen, or for each that may be."""
        layout, network = candidate.layout, candidate.network
        folded = pipeline.schedule == "zb-v"
        key = pipeline.micro_batch, pipeline.vpp, pipeline.layers_per_stage, folded, recompute
        bounds = []
        for option in [network] if network else self._networks:
            replicas = self._replica_bounds(layout, sharding, option)
            if key not in replicas.pipelines:
                times = self._stage_times(replicas.costs, sharding, pipeline, recompute)
                replicas.pipelines[key] = self._bound_pipeline(replicas, sharding, pipeline, times)
            bounds.append(replicas.pipelines[key])
        return bounds

    def _bound_pipeline(
        self,
        replicas: _ReplicaBounds,
        sharding: StateSharding,
        pipeline: PipelineChoice,
        times: PipelineTimes,
    ) -> PipelineBounds:
        costs, exchange, collectives = replicas.costs, replicas.exchange, replicas.collectives
        layout, micro_batch = costs.layout, pipeline.micro_batch
        layers = self._layers(layout, pipeline)
        busiest_link, both_directions = costs.busiest_link(micro_batch, pipeline.vpp)
        return PipelineBounds(
            times=times,
            transfer_sums=costs.transfer_sums(micro_batch, pipeline.vpp, pipeline.schedule == "zb-v"),
            busiest_link=busiest_link,
            both_directions=both_directions,
            micro_batches=self._space.global_batch // layout.dp // micro_batch,
            pp=layout.pp,
            vpp=pipeline.vpp,
            bounded_devices=costs.bounded_devices,
            first_reduce=exchange.layer_reduce * layers[0],
            least_reduce=exchange.layer_reduce * min(layers),
            device_reduce=exchange.reduce / layout.pp,
            device_gather=exchange.gather / layout.pp,
            link_devices=layout.pp / costs.replica_links,
            stage_copy_reduce=costs.stage_copy_reduce(sharding),
            reduces_always=collectives.reduces_always,
            gathers_always=collectives.gathers_always,
            same_link=collectives.same_link,
            contended=self._contended,
        )

    def _replica_bounds(
        self, layout: DeviceLayout, sharding: StateSharding, network: NetworkChoice | None
    ) -> _ReplicaBounds:
        key = layout, sharding, network
        if key not in self._replicas:
            if network is None:
                costs = self._costs_of(layout, self._space.networks[0])
                bounds = _ReplicaBounds(costs, ReplicaExchange(), _CollectiveRates())
            else:
                costs = self._costs_of(layout, network)
                rates = self._collective_rates(costs, sharding)
                bounds = _ReplicaBounds(costs, costs.exchange(sharding), rates)
            self._replicas[key] = bounds
        return self._replicas[key]

    def _stage_times(
        self, costs: LayoutCosts, sharding: StateSharding, pipeline: PipelineChoice, recompute: str
    ) -> PipelineTimes:
        layout, folded = costs.layout, pipeline.schedule == "zb-v"
        layers = self._layers(layout, pipeline)
        traffic = costs.layer_traffic_key(sharding.ep)
        key = traffic, pipeline.micro_batch, layers, layout.pp, folded, recompute
        if key not in self._times:
            plan = costs.plan(sharding, pipeline.micro_batch, layers, pipeline.vpp)
            stages = stage_seconds(replace(plan, recompute=recompute))
            devices = [_stages_of(device, layout.pp, pipeline.vpp, folded) for device in range(layout.pp)]
            self._times[key] = PipelineTimes.of(
                [stage.forward for stage in stages],
                [stage.backward_input for stage in stages],
                [stage.backward_weight for stage in stages],
                devices,
                sum(stage.expert_parallel for stage in stages),
            )
        return self._times[key]

    def _least_recompute(
        self, layout: DeviceLayout, sharding: StateSharding, pipeline: PipelineChoice, network: NetworkChoice
    ) -> str | None:
        """The least recompute with which the plan fits; None if there is none."""
        costs = self._costs_of(layout, network)
        plan = replace(
            costs.plan(sharding, pipeline.micro_batch, self._layers(layout, pipeline), pipeline.vpp),
            schedule=pipeline.schedule,
            extra_in_flight=pipeline.extra_in_flight,
            micro_batches=self._space.global_batch // layout.dp // pipeline.micro_batch,
        )
        for mode in (pipeline.recompute,) if pipeline.recompute else RECOMPUTE:
            if memory_of(replace(plan, recompute=mode)).fits(plan.cluster.device.bytes):
                return mode
        return None

    def _collective_rates(self, costs: LayoutCosts, sharding: StateSharding) -> _CollectiveRates:
        layout, key = costs.layout, sharding.strategy
        if layout.cp * layout.dp == 1:
            return _CollectiveRates()
        if key not in self._collectives:
            plan = replace(costs.plan(sharding, 1, ()), micro_batches=2)
            step = plan_cost(plan, build_schedule("1f1b", layout.pp, 2)).costs
            gradient, parameters = step.gradient.values(), step.parameters.values()
            links = {collective.link for collective in gradient}
            self._collectives[key] = _CollectiveRates(
                any(collective.each == "op" for collective in gradient),
                any(collective.each == "op" for collective in parameters),
                any(collective.link in links for collective in parameters),
            )
        return self._collectives[key]

    def _costs_of(self, layout: DeviceLayout, network: NetworkChoice) -> LayoutCosts:
        key = layout, network
        if key not in self._layout_costs:
            self._layout_costs[key] = LayoutCosts(self._space, layout, network)
        return self._layout_costs[key]


@dataclass(slots=True)
class _ReplicaBounds:
    """What a layout, a sharding and a network decide: what replicas exchange, and the pipelines bounded so
    far."""

    costs: LayoutCosts
    exchange: ReplicaExchange
    collectives: _CollectiveRates
    pipelines: dict[object, PipelineBounds] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _CollectiveRates:
    """How often replicas exchange: gradients and weights with every operation or once a step; and whether
    both queue on the same link."""

    reduces_always: bool = False
    gathers_always: bool = False
    same_link: bool = True


def _stages_of(device: int, pp: int, vpp: int, folded: bool) -> tuple[int, ...]:
    return (device, 2 * pp - 1 - device) if folded else tuple(range(device, pp * vpp, pp))
