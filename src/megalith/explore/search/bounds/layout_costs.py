"""What the bounds of a layout are made of: groups, links and seconds of the cost model itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from megalith.cost.collectives import Fabric
from megalith.cost.memory import traffic_bytes
from megalith.explore.cost.memory import plan_state
from megalith.explore.cost.replicas import exchange_seconds, replica_link
from megalith.explore.cost.stages import stage_parameters
from megalith.explore.job import TransformerModel
from megalith.explore.placement import ExpertGroups, expert_groups, expert_tensor_size, group
from megalith.explore.plan import Plan, make_plan, stack_of
from megalith.explore.search.space.decisions import (
    NetworkChoice,
    PipelineChoice,
    PlanCandidate,
    StateSharding,
)
from megalith.explore.search.space.layer_partition import spread_layers
from megalith.explore.search.space.layouts import AXES, DeviceLayout
from megalith.explore.search.space.search_space import SearchSpace
from megalith.explore.workload import layer_kinds, layer_weights

_PP = AXES.index("pp")
_MOST_BOUNDED_DEVICES = 6


@dataclass(frozen=True, slots=True)
class ReplicaExchange:
    """Seconds for all stages of a pipeline together; nothing where the network is not chosen yet."""

    reduce: float = 0.0
    gather: float = 0.0
    layer_reduce: float = 0.0
    """Of one layer's gradients."""


class LayoutCosts:
    """What a layout and a network alone decide: groups, links, and the cost model's plan to start from."""

    def __init__(self, space: SearchSpace, layout: DeviceLayout, network: NetworkChoice) -> None:
        assert space.transformer is not None
        self.layout = layout
        self._space, self._network, self._model = space, network, space.transformer
        pipeline = PipelineChoice(1, "1f1b", layers_per_stage=spread_layers(self._model.layers, layout.pp, 1))
        job = space.to_job(PlanCandidate(layout, StateSharding(1, "none"), pipeline, network))
        self._template = make_plan(job, 1, "none")
        parallel, cluster = self._template.parallel, self._template.cluster
        self._replicas = group(parallel, cluster, ("dp", "cp"))
        self._inner = group(parallel, cluster, ("tp",)), group(parallel, cluster, ("cp",))
        self._experts: dict[int, ExpertGroups] = {}
        self._transfers: dict[tuple[int, int, bool], tuple[float, ...]] = {}
        self._fits: dict[StateSharding, bool] = {}
        self._parameters: dict[int, tuple[float, float]] = {}
        self.replica_links = len(
            {replica_link(self._template, self._replicas, device) for device in range(layout.pp)}
        )
        """Links over which replicas of different pipeline devices talk."""
        self.bounded_devices = self._bounded_devices()
        fabric, senders = fabric_of(space, network), 1
        self._rates, self._latencies = [], []
        for level, factors in enumerate(layout.factors):
            self._rates.append(fabric.rate(level, senders))
            self._latencies.append(fabric.latency(level))
            senders *= factors[0] * factors[1] * factors[2]

    def layer_traffic_key(self, ep: int) -> tuple[object, ...]:
        """The groups that a layer's own traffic goes through, and how the network carries it."""
        network = self._network.routing, self._network.collectives, self._network.multipath
        routed = self._expert_groups(ep) if self._model.experts else None
        groups = (routed.experts, routed.tensor) if routed else ()
        return *self._inner, groups, ep, network

    def plan(self, sharding: StateSharding, micro_batch: int, layers: tuple[int, ...], vpp: int = 1) -> Plan:
        """The cost model's plan with these choices."""
        layout, names = self.layout, [level.name for level in self._space.cluster.levels]
        level = names.index(sharding.shard_within) if sharding.shard_within else len(names) - 1
        shards = layout.cp * layout.dp
        if sharding.strategy == "hybrid":
            shards = 1
            for factors in layout.factors[:level]:
                shards *= factors[1] * factors[2]
        template = self._template
        chosen = {"ep": sharding.ep, "sharding": sharding.strategy, "vpp": vpp}
        return replace(
            template,
            parallel=template.parallel.model_copy(update=chosen),
            shape=replace(
                template.shape, micro_batch=micro_batch, ep=sharding.ep, etp=self._expert_tp(sharding.ep)
            ),
            layers_per_stage=layers or template.layers_per_stage,
            sharding=sharding.strategy,
            shard_level=level,
            shards=shards,
        )

    def compute_only(self, ep: int, micro_batch: int, vpp: int) -> Plan:
        """The same devices with nobody to talk to."""
        plan = self.plan(StateSharding(ep, "none"), micro_batch, (), vpp)
        silent = {"tp": 1, "cp": 1, "ep": 1, "etp": None, "dp": 1, "placement": AXES}
        return replace(plan, parallel=plan.parallel.model_copy(update=silent))

    def exchange(self, sharding: StateSharding) -> ReplicaExchange:
        """What replicas of the whole pipeline exchange. The larger a message the better it uses a link: that
        of a stage or a layer takes its share of this, or more."""
        plan, model = self.plan(sharding, 1, ()), self._model
        shared, routed = self._held(plan)
        dense = exchange_seconds(plan, self._replicas, shared)
        replicas = self._expert_groups(sharding.ep).replicas if model.experts else self._replicas
        expert = exchange_seconds(plan, replicas, routed)
        kinds = {kind.expert for kind in layer_kinds(model)}
        cut = self.layout.tp, sharding.ep, plan.shape.expert_tp
        weights = [layer_weights(model, kind, *cut) for kind in kinds]
        layer = dense[0] * min(part[0] for part in weights) / shared
        if routed:
            layer += expert[0] * min(part[1] for part in weights) / routed
        return ReplicaExchange(dense[0] + expert[0], dense[1] + expert[1], layer)

    def state_fits(self, sharding: StateSharding) -> bool:
        """Whether the average stage's state alone leaves room; nothing that fails this can run."""
        if sharding not in self._fits:
            plan, pp = self.plan(sharding, 1, ()), self.layout.pp
            shared, routed = self._held(plan)
            state = plan_state(plan, shared / pp, plan.shards)
            if routed:
                shards = max(1, plan.shards * plan.shape.tp // (sharding.ep * plan.shape.expert_tp))
                state = state + plan_state(plan, routed / pp, shards)
            room = plan.cluster.device.bytes * (1 - plan.memory_margin)
            self._fits[sharding] = state.total <= room
        return self._fits[sharding]

    def stage_copy_reduce(self, sharding: StateSharding) -> float:
        """DualPipe: adding up the gradients of the two copies of a stage, over the longest link crossed."""
        crossed = self.layout.crosses("pp")
        if not crossed:
            return 0.0
        plan = self.plan(sharding, 1, ())
        of_two_stages = 2 * sum(self._held(plan)) / self.layout.pp
        return traffic_bytes(plan.precision) * of_two_stages / self._rates[crossed[-1]]

    def _held(self, plan: Plan) -> tuple[float, float]:
        """Parameters of all stages of a pipeline on one device each: shared, and routed experts'."""
        ep = plan.parallel.ep
        if ep not in self._parameters:
            held = stage_parameters(plan)
            self._parameters[ep] = sum(part[0] for part in held), sum(part[1] for part in held)
        return self._parameters[ep]

    def transfer_sums(self, micro_batch: int, vpp: int, folded: bool) -> tuple[float, ...]:
        """Seconds on links, in one direction, from the first virtual stage to each."""
        key = micro_batch, vpp, folded
        if key not in self._transfers:
            layout = self.layout
            messages = self._messages(micro_batch)
            seconds = [message + self._latencies[level] for level, message in enumerate(messages)]
            sizes = [level[_PP] for level in layout.factors]
            once = [seconds[_crossed(stage, sizes)] for stage in range(1, layout.pp)]
            again = seconds[max(layout.crosses("pp"), default=0)]
            steps = [*once, 0.0, *reversed(once)] if folded else [*once, again] * (vpp - 1) + once
            self._transfers[key] = tuple(accumulate(steps, initial=0.0))
        return self._transfers[key]

    def busiest_link(self, micro_batch: int, vpp: int) -> tuple[float, bool]:
        """Seconds of one micro-batch on the busiest link between stages, and whether it carries both
        directions: where there are three members the one in the middle sends to either side."""
        messages = self._messages(micro_batch)
        crossed = self.layout.crosses("pp")
        if not crossed:
            return 0.0, False
        level = max(crossed, key=messages.__getitem__)
        return vpp * messages[level], self.layout.factors[level][_PP] > 2

    def _messages(self, micro_batch: int) -> list[float]:
        """Seconds that a message between stages takes a link of each level."""
        layout, model = self.layout, self._model
        element = 4.0 if self._template.precision == "fp32" else 2.0
        size = element * model.seq * micro_batch / layout.cp * model.hidden / layout.tp
        return [size / rate for rate in self._rates]

    def _expert_tp(self, ep: int) -> int:
        return expert_tensor_size(self._template.parallel.model_copy(update={"ep": ep}))

    def _expert_groups(self, ep: int) -> ExpertGroups:
        if ep not in self._experts:
            parallel = self._template.parallel.model_copy(update={"ep": ep})
            self._experts[ep] = expert_groups(parallel, self._template.cluster)
        return self._experts[ep]

    def _bounded_devices(self) -> tuple[int, ...]:
        """Both ends, the middle, and the last stages before the longest links that the pipeline crosses."""
        pp, crossed = self.layout.pp, self.layout.crosses("pp")
        if not crossed:
            return (0,)
        inner = 1
        for level in self.layout.factors[: crossed[-1]]:
            inner *= level[_PP]
        before_links = [device for device in range(inner - 1, pp - 1, inner) if device not in (0, pp // 2)]
        most = _MOST_BOUNDED_DEVICES - 3
        some = before_links[:: max(1, -(-len(before_links) // most))]
        return tuple(sorted({0, pp // 2, pp - 1, *some}))


def fabric_of(space: SearchSpace, network: NetworkChoice) -> Fabric:
    """The cost model's network with these options."""
    experts = isinstance(space.job.model, TransformerModel) and space.job.model.experts > 0
    precision = space.job.training.precision
    software = stack_of(space.job).constants(space.cluster.device, precision, experts)
    return Fabric(space.cluster, network.routing, network.multipath, network.collectives, software=software)


def _crossed(stage: int, sizes: list[int]) -> int:
    """The level whose link a message into `stage` comes over."""
    for level, size in enumerate(sizes):
        if stage % size:
            return level
        stage //= size
    raise AssertionError("stage 0 receives nothing")
