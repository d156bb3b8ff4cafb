"""Lower bounds on the step of a plan, and of all plans that share its first decisions.

Nothing here is a guess: each term is time that the simulation cannot avoid, whatever else the plan does
(pace.py), in seconds of the cost model itself. A node of the tree is bounded by what it has decided:

    Layout     the layers' work on the average device, for the best micro-batch
    Sharing    the same; infinite if weights, gradients and optimizer state alone do not fit in memory
    Rhythm     the pipeline's closed forms, nothing recomputed
    Fabric     the same with the recompute that memory forces, infinite if none is enough
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf

from megalith.cost.collectives import Fabric as Links
from megalith.cost.collectives import Group
from megalith.cost.memory import state_bytes, traffic_bytes
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.placement import expert_groups, group
from megalith.explore.plan import Plan, make_plan, memory_of
from megalith.explore.predict import RECOMPUTE
from megalith.explore.search.space.decisions import Choice, Fabric, Rhythm, Sharing
from megalith.explore.search.space.layouts import AXES, Layout
from megalith.explore.search.bounds.pipeline_bounds import Pace, Times
from megalith.explore.search.space.layer_partition import spread_layers
from megalith.explore.search.space.search_space import Space
from megalith.explore.step import _exchange as exchange_seconds
from megalith.explore.step import _group_link as group_link
from megalith.explore.step import build_step, stage_parameters, stage_seconds
from megalith.explore.workload import layer_weights

_PP = AXES.index("pp")
_FEW_NETWORKS = 4


class Floors:
    """Bounds for the nodes of one space; the network is the best of its options until it is chosen."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._model = space.transformer
        self._sites: dict[tuple[Layout, Fabric], _Site] = {}
        self._work: dict[tuple[int, ...], float] = {}
        self._times: dict[object, Times] = {}
        self._nests: dict[tuple[Layout, Sharing, Fabric | None], _Nest] = {}
        self._every_op: dict[str, tuple[bool, bool, bool]] = {}
        # Before the network is chosen, a bound is the least of all options' where those are few; where they
        # are many (compressed, or met once in many steps) replicas are taken for free.
        networks = list(dict.fromkeys(replace(one, overlap=True, bucket_bytes=1) for one in space.fabrics))
        self._networks: list[Fabric | None] = [*networks] if len(networks) <= _FEW_NETWORKS else [None]
        self._constant = _links(space, space.fabrics[0]).constants.step_seconds if self._model else 0.0

    def __call__(self, choice: Choice) -> float:
        """No plan below this node takes fewer seconds; infinite if none can run."""
        if self._model is None:
            return 0.0
        layout, sharing, rhythm, fabric = choice.layout, choice.sharing, choice.rhythm, choice.fabric
        if sharing is None:
            experts = {one.ep for one in self._space.sharings(layout)}
            return min((self._least_work(layout, ep) for ep in experts), default=inf)
        if rhythm is None:
            fits = self._site(layout, self._space.fabrics[0]).state_fits(sharing)
            return self._least_work(layout, sharing.ep) if fits else inf
        recompute: str = rhythm.recompute or "none"
        if fabric is not None:
            found = self._recompute(layout, sharing, rhythm, fabric)
            if found is None:
                return inf
            recompute = found
        options = [fabric] if fabric else self._networks
        paces = [self._pace(layout, sharing, rhythm, one, recompute) for one in options]
        least = min(pace.floor(rhythm.schedule, rhythm.extra_in_flight) for pace in paces)
        return least + self._constant

    def guess(self, choice: Choice, bound: float) -> float:
        """What a plan with this bound may well take, for the order of the search."""
        rhythm, sharing = choice.rhythm, choice.sharing
        if self._model is None or rhythm is None or sharing is None:
            return bound
        options = [choice.fabric] if choice.fabric else self._networks
        paces = [self._pace(choice.layout, sharing, rhythm, one, "none") for one in options]
        return max(bound, min(pace.guess(rhythm.schedule, rhythm.extra_in_flight) for pace in paces))

    def layers(self, choice: Choice) -> tuple[int, ...] | None:
        """Layers of each virtual stage of a plan, also where they are left to be even."""
        if self._model is None or choice.rhythm is None:
            return None
        return self._layers(choice.layout, choice.rhythm)

    def _layers(self, layout: Layout, rhythm: Rhythm) -> tuple[int, ...]:
        assert self._model is not None
        return rhythm.layers_per_stage or spread_layers(self._model.layers, layout.pp, rhythm.vpp)

    def _least_work(self, layout: Layout, ep: int) -> float:
        """All micro-batches on the average device, layers without their traffic, the best micro-batch."""
        key = layout.tp, layout.cp, ep, layout.pp, layout.dp
        if key not in self._work:
            site = self._site(layout, self._space.fabrics[0])
            samples = self._space.global_batch // layout.dp
            most_chunks = max((rhythm.vpp for rhythm in self._space.rhythms(layout)), default=1)
            best = inf
            for size in {rhythm.micro_batch for rhythm in self._space.rhythms(layout)}:
                stages = stage_seconds(site.alone(ep, size, most_chunks))
                total = sum(stage.total for stage in stages)
                best = min(best, samples // size * total / layout.pp)
            self._work[key] = best + self._constant
        return self._work[key]

    def _pace(
        self, layout: Layout, sharing: Sharing, rhythm: Rhythm, fabric: Fabric | None, recompute: str
    ) -> Pace:
        nest = self._nest(layout, sharing, fabric)
        folded = rhythm.schedule == "zb-v"
        key = rhythm.micro_batch, rhythm.vpp, rhythm.layers_per_stage, folded, recompute
        if key not in nest.paces:
            layers = self._layers(layout, rhythm)
            nest.paces[key] = Pace(
                self._stage_times(nest.site, sharing, rhythm, recompute),
                nest.site.way(rhythm.micro_batch, rhythm.vpp, folded),
                *nest.site.busiest_link(rhythm.micro_batch, rhythm.vpp),
                self._space.global_batch // layout.dp // rhythm.micro_batch,
                layout.pp,
                rhythm.vpp,
                nest.site.watched,
                nest.exchange.layer_reduce * layers[0],
                nest.exchange.layer_reduce * min(layers),
                nest.exchange.reduce / layout.pp,
                nest.exchange.gather / layout.pp,
                layout.pp / nest.site.links,
                nest.site.twin_reduce(sharing),
                *nest.always,
            )
        return nest.paces[key]

    def _nest(self, layout: Layout, sharing: Sharing, fabric: Fabric | None) -> _Nest:
        key = layout, sharing, fabric
        if key not in self._nests:
            site = self._site(layout, fabric or self._space.fabrics[0])
            nest = _Nest(site, _Exchange())
            if fabric is not None:
                nest.exchange = site.exchange(sharing)
                nest.always = self._often(layout, sharing, site)
            self._nests[key] = nest
        return self._nests[key]

    def _stage_times(self, site: _Site, sharing: Sharing, rhythm: Rhythm, recompute: str) -> Times:
        layout, folded = site.layout, rhythm.schedule == "zb-v"
        layers = self._layers(layout, rhythm)
        key = site.talk(sharing.ep), rhythm.micro_batch, layers, layout.pp, folded, recompute
        if key not in self._times:
            plan = site.plan(sharing, rhythm.micro_batch, layers, rhythm.vpp)
            stages = stage_seconds(replace(plan, recompute=recompute))
            devices = [_stages_of(device, layout.pp, rhythm.vpp, folded) for device in range(layout.pp)]
            self._times[key] = Times.of(
                [stage.forward for stage in stages],
                [stage.backward_input for stage in stages],
                [stage.backward_weight for stage in stages],
                devices,
                sum(stage.expert_parallel for stage in stages),
            )
        return self._times[key]

    def _recompute(self, layout: Layout, sharing: Sharing, rhythm: Rhythm, fabric: Fabric) -> str | None:
        """The least recompute with which the plan fits; None if there is none."""
        site = self._site(layout, fabric)
        plan = replace(
            site.plan(sharing, rhythm.micro_batch, self._layers(layout, rhythm), rhythm.vpp),
            schedule=rhythm.schedule,
            extra_in_flight=rhythm.extra_in_flight,
            micro_batches=self._space.global_batch // layout.dp // rhythm.micro_batch,
        )
        for mode in (rhythm.recompute,) if rhythm.recompute else RECOMPUTE:
            if memory_of(replace(plan, recompute=mode)).fits(plan.cluster.device.bytes):
                return mode
        return None

    def _often(self, layout: Layout, sharing: Sharing, site: _Site) -> tuple[bool, bool, bool]:
        """Whether gradients are reduced, and weights gathered, with every operation and not once a step; and
        whether they queue on the same link."""
        key = sharing.sharding
        if layout.cp * layout.dp == 1:
            return False, False, True
        if key not in self._every_op:
            plan = replace(site.plan(sharing, 1, ()), micro_batches=2)
            costs = build_step(plan, build_schedule("1f1b", layout.pp, 2)).costs
            lanes = {one.link for one in costs.gradient.values()}
            self._every_op[key] = (
                any(one.each == "op" for one in costs.gradient.values()),
                any(one.each == "op" for one in costs.parameters.values()),
                any(one.link in lanes for one in costs.parameters.values()),
            )
        return self._every_op[key]

    def _site(self, layout: Layout, fabric: Fabric) -> _Site:
        key = layout, fabric
        if key not in self._sites:
            self._sites[key] = _Site(self._space, layout, fabric)
        return self._sites[key]


@dataclass(frozen=True, slots=True)
class _Exchange:
    """Seconds for all stages of a pipeline together; nothing where the network is not chosen yet."""

    reduce: float = 0.0
    gather: float = 0.0
    layer_reduce: float = 0.0
    """Of one layer's gradients."""


@dataclass(slots=True)
class _Nest:
    """What a layout and a sharing decide: what replicas exchange, and the pipelines bounded so far."""

    site: _Site
    exchange: _Exchange
    always: tuple[bool, bool, bool] = (False, False, True)
    paces: dict[object, Pace] = field(default_factory=dict)


class _Site:
    """What a layout and a network alone decide: groups, links, and the cost model's plan to start from."""

    def __init__(self, space: Space, layout: Layout, fabric: Fabric) -> None:
        assert space.transformer is not None
        self.layout = layout
        self._space, self._fabric, self._model = space, fabric, space.transformer
        rhythm = Rhythm(1, "1f1b", layers_per_stage=spread_layers(self._model.layers, layout.pp, 1))
        job = space.plan(Choice(layout, Sharing(1, "none"), rhythm, fabric))
        self._template = make_plan(job, 1, "none")
        parallel, cluster = self._template.parallel, self._template.cluster
        self._replicas = group(parallel, cluster, ("dp", "cp"))
        self._inner = group(parallel, cluster, ("tp",)), group(parallel, cluster, ("cp",))
        self._experts: dict[int, tuple[Group, Group]] = {1: ((), self._replicas)}
        self._ways: dict[tuple[int, int, bool], tuple[float, ...]] = {}
        self._fits: dict[Sharing, bool] = {}
        self._parameters: dict[int, tuple[float, float]] = {}
        self.links = len({group_link(self._template, self._replicas, device) for device in range(layout.pp)})
        self.watched = self._watched()
        links, senders = _links(space, fabric), 1
        self._rates, self._latencies = [], []
        for level, factors in enumerate(layout.factors):
            self._rates.append(links.rate(level, senders))
            self._latencies.append(links.latency(level))
            senders *= factors[0] * factors[1] * factors[2]

    def talk(self, ep: int) -> tuple[object, ...]:
        """The groups that a layer's own traffic goes through, and how the network carries it."""
        network = self._fabric.routing, self._fabric.collectives, self._fabric.multipath
        return *self._inner, self._expert_groups(ep)[0], ep, network

    def plan(self, sharing: Sharing, micro_batch: int, layers: tuple[int, ...], vpp: int = 1) -> Plan:
        """The cost model's plan with these choices."""
        layout, names = self.layout, [level.name for level in self._space.cluster.levels]
        level = names.index(sharing.shard_within) if sharing.shard_within else len(names) - 1
        shards = layout.cp * layout.dp
        if sharing.sharding == "hybrid":
            shards = 1
            for factors in layout.factors[:level]:
                shards *= factors[1] * factors[2]
        template = self._template
        chosen = {"ep": sharing.ep, "sharding": sharing.sharding, "vpp": vpp}
        return replace(
            template,
            parallel=template.parallel.model_copy(update=chosen),
            shape=replace(template.shape, micro_batch=micro_batch, ep=sharing.ep),
            layers_per_stage=layers or template.layers_per_stage,
            sharding=sharing.sharding,
            shard_level=level,
            shards=shards,
        )

    def alone(self, ep: int, micro_batch: int, vpp: int) -> Plan:
        """The same devices with nobody to talk to: compute and nothing else."""
        plan = self.plan(Sharing(ep, "none"), micro_batch, (), vpp)
        silent = {"tp": 1, "cp": 1, "ep": 1, "dp": 1, "placement": AXES}
        return replace(plan, parallel=plan.parallel.model_copy(update=silent))

    def exchange(self, sharing: Sharing) -> _Exchange:
        """What replicas of the whole pipeline exchange. The larger a message the better it uses a link: that
        of a stage or a layer takes its share of this, or more."""
        plan, model = self.plan(sharing, 1, ()), self._model
        shared, routed = self._held(plan)
        one = exchange_seconds(plan, self._replicas, shared)
        other = exchange_seconds(plan, self._expert_groups(sharing.ep)[1], routed)
        kinds = {False, True} if model.experts and model.dense_layers else {model.experts > 0}
        weights = [layer_weights(model, kind, self.layout.tp, sharing.ep) for kind in kinds]
        layer = one[0] * min(part[0] for part in weights) / shared
        if routed:
            layer += other[0] * min(part[1] for part in weights) / routed
        return _Exchange(one[0] + other[0], one[1] + other[1], layer)

    def state_fits(self, sharing: Sharing) -> bool:
        """Whether the average stage's state alone leaves room; nothing that fails this can run."""
        if sharing not in self._fits:
            plan, pp = self.plan(sharing, 1, ()), self.layout.pp
            shared, routed = self._held(plan)
            state = state_bytes(shared / pp, plan.precision, plan.sharding, plan.shards)
            if routed:
                shards = max(1, plan.shards // sharing.ep)
                state = state + state_bytes(routed / pp, plan.precision, plan.sharding, shards)
            room = plan.cluster.device.bytes * (1 - plan.memory_margin)
            self._fits[sharing] = state.total <= room
        return self._fits[sharing]

    def twin_reduce(self, sharing: Sharing) -> float:
        """Adding up the gradients of both copies of a stage where the two ends of the pipeline meet."""
        crossed = self.layout.crosses("pp")
        if not crossed:
            return 0.0
        plan = self.plan(sharing, 1, ())
        of_two_stages = 2 * sum(self._held(plan)) / self.layout.pp
        return traffic_bytes(plan.precision) * of_two_stages / self._rates[crossed[-1]]

    def _held(self, plan: Plan) -> tuple[float, float]:
        """Parameters of all stages of a pipeline on one device each: shared, and routed experts'."""
        ep = plan.parallel.ep
        if ep not in self._parameters:
            held = stage_parameters(plan)
            self._parameters[ep] = sum(part[0] for part in held), sum(part[1] for part in held)
        return self._parameters[ep]

    def way(self, micro_batch: int, vpp: int, folded: bool) -> tuple[float, ...]:
        """Seconds on links, one way, from the first virtual stage to each."""
        key = micro_batch, vpp, folded
        if key not in self._ways:
            layout = self.layout
            messages = self._messages(micro_batch)
            seconds = [message + self._latencies[level] for level, message in enumerate(messages)]
            sizes = [level[_PP] for level in layout.factors]
            once = [seconds[_crossed(stage, sizes)] for stage in range(1, layout.pp)]
            again = seconds[max(layout.crosses("pp"), default=0)]
            steps = [*once, 0.0, *reversed(once)] if folded else [*once, again] * (vpp - 1) + once
            self._ways[key] = tuple(accumulate(steps, initial=0.0))
        return self._ways[key]

    def busiest_link(self, micro_batch: int, vpp: int) -> tuple[float, bool]:
        """Seconds of one micro-batch on the fullest link between stages, and whether it goes both ways there:
        where there are three members the one in the middle sends to either side."""
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

    def _expert_groups(self, ep: int) -> tuple[Group, Group]:
        if ep not in self._experts:
            parallel = self._template.parallel.model_copy(update={"ep": ep})
            self._experts[ep] = expert_groups(parallel, self._template.cluster)
        return self._experts[ep]

    def _watched(self) -> tuple[int, ...]:
        """Both ends, the middle, and the last stages before the longest links that the pipeline crosses."""
        pp, crossed = self.layout.pp, self.layout.crosses("pp")
        if not crossed:
            return (0,)
        inner = 1
        for level in self.layout.factors[: crossed[-1]]:
            inner *= level[_PP]
        return tuple(sorted({0, pp // 2, pp - 1, *range(inner - 1, pp - 1, inner)}))[:6]


def _links(space: Space, fabric: Fabric) -> Links:
    return Links(space.cluster, fabric.routing, fabric.multipath, fabric.collectives)


def _stages_of(device: int, pp: int, vpp: int, folded: bool) -> tuple[int, ...]:
    return (device, 2 * pp - 1 - device) if folded else tuple(range(device, pp * vpp, pp))


def _crossed(stage: int, sizes: list[int]) -> int:
    """The level whose link a message into `stage` comes over."""
    for level, size in enumerate(sizes):
        if stage % size:
            return level
        stage //= size
    raise AssertionError("stage 0 receives nothing")
