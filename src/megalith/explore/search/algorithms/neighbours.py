"""Small changes of a plan, for what the tree is too large to settle or does not hold.

One prime factor of one level goes from an axis to another; another sharding, schedule, micro-batch or network
option; one layer from a stage to another. Whatever changes, the rest stays as near to the plan as its new
surroundings allow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from megalith.explore.search.space.decisions import PipelineChoice, PlanCandidate, StateSharding
from megalith.explore.search.space.layer_partition import head_in_layers, spread_layers
from megalith.explore.search.space.layouts import DeviceLayout
from megalith.explore.search.space.search_space import SearchSpace

_GREEDY_OPERATIONS = 20_000
"""Micro-batches times stages up to which a greedy's order is made in a fraction of a second."""
_BUCKETS = (10_000_000, 40_000_000, 160_000_000, 640_000_000)


def neighbours(space: SearchSpace, plan: PlanCandidate) -> Iterator[tuple[str, PlanCandidate]]:
    """Plans one step away, each with what was changed."""
    layout, sharding, pipeline, network = plan.layout, plan.sharding, plan.pipeline, plan.network
    assert sharding is not None
    assert pipeline is not None
    assert network is not None
    for other_layout in near_layouts(space, layout):
        kept = (
            _nearest_sharding(space, other_layout, sharding),
            _nearest_pipeline(space, other_layout, pipeline),
        )
        if kept[0] is not None and kept[1] is not None:
            yield "placement", PlanCandidate(other_layout, kept[0], kept[1], network)
    for other_sharding in space.shardings(layout):
        if other_sharding != sharding:
            yield "sharding", replace(plan, sharding=other_sharding)
    even = replace(pipeline, layers_per_stage=None)
    for other_pipeline in space.pipelines(layout):
        if other_pipeline != even and (
            other_pipeline.micro_batch == pipeline.micro_batch
            or (other_pipeline.schedule, other_pipeline.vpp, other_pipeline.extra_in_flight)
            == (pipeline.schedule, pipeline.vpp, pipeline.extra_in_flight)
        ):
            yield "schedule", replace(plan, pipeline=other_pipeline)
    if (greedy := greedy_order(space, plan)) is not None:
        yield "greedy order", greedy
    for other_network in space.networks:
        if other_network != network:
            yield "network", replace(plan, network=other_network)
    if space.constraints.allows("overlap", not network.overlap):
        yield "overlap", replace(plan, network=replace(network, overlap=not network.overlap))
    if "bucket_bytes" not in space.constraints.fixed:
        for size in _BUCKETS:
            if size != network.bucket_bytes:
                yield "buckets", replace(plan, network=replace(network, bucket_bytes=size))


def greedy_order(space: SearchSpace, plan: PlanCandidate) -> PlanCandidate | None:
    """The plan in the order of a greedy; None where that is not open or would take too long to make."""
    pipeline, layout = plan.pipeline, plan.layout
    assert pipeline is not None
    micro_batches = space.global_batch // layout.dp // pipeline.micro_batch
    if (
        {"schedule", "vpp", "extra_in_flight"} & set(space.constraints.fixed)
        or not space.constraints.allows("schedule", "greedy")
        or layout.pp == 1
        or pipeline.schedule == "greedy"
        or layout.pp * micro_batches > _GREEDY_OPERATIONS
    ):
        return None
    layers = pipeline.layers_per_stage if pipeline.vpp == 1 else None
    if layers is None and space.transformer and space.transformer.layers % layout.pp:
        layers = spread_layers(space.transformer.layers, layout.pp, 1, head_in_layers(space.transformer))
    greedy = replace(pipeline, schedule="greedy", vpp=1, extra_in_flight=0, layers_per_stage=layers)
    return replace(plan, pipeline=greedy) if space.only.pipeline(greedy) else None


def near_layouts(space: SearchSpace, layout: DeviceLayout) -> Iterator[DeviceLayout]:
    """Layouts of the space that differ by one prime factor of one level given to another axis."""
    allowed = space.layout_set
    for level, factors in enumerate(layout.factors):
        for giver, size in enumerate(factors):
            for prime in _primes(size):
                for taker in range(len(factors)):
                    if taker != giver:
                        changed = list(factors)
                        changed[giver] //= prime
                        changed[taker] *= prime
                        other = DeviceLayout(
                            (*layout.factors[:level], tuple(changed), *layout.factors[level + 1 :])  # type: ignore[arg-type]
                        )
                        if other in allowed:
                            yield other


def move_a_layer(layers: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The same layers with one of them on another stage: to and from ends and extremes, not all pairs."""
    stages = range(len(layers))
    most, least = max(stages, key=layers.__getitem__), min(stages, key=layers.__getitem__)
    pairs = [(0, least), (len(layers) - 1, least), (most, 0), (most, len(layers) - 1)]
    pairs += [(most, stage) for stage in stages] + [(stage, least) for stage in stages]
    seen = set()
    for giver, taker in pairs:
        if giver != taker and layers[giver] > 1 and (giver, taker) not in seen:
            seen.add((giver, taker))
            changed = list(layers)
            changed[giver] -= 1
            changed[taker] += 1
            yield tuple(changed)


def _nearest_sharding(
    space: SearchSpace, layout: DeviceLayout, wanted: StateSharding
) -> StateSharding | None:
    options = space.shardings(layout)
    if wanted in options:
        return wanted
    alike = [option for option in options if option.ep == wanted.ep] or options
    same = [option for option in alike if option.strategy == wanted.strategy] or alike
    return same[-1] if same else None


def _nearest_pipeline(
    space: SearchSpace, layout: DeviceLayout, wanted: PipelineChoice
) -> PipelineChoice | None:
    options = space.pipelines(layout)
    wanted = replace(wanted, layers_per_stage=None)
    if wanted in options:
        return wanted

    def distance(option: PipelineChoice) -> tuple[bool, float, int, int]:
        ratio = option.micro_batch / wanted.micro_batch
        return (
            option.schedule != wanted.schedule,
            max(ratio, 1 / ratio),
            abs(option.vpp - wanted.vpp),
            abs(option.extra_in_flight - wanted.extra_in_flight),
        )

    return min(options, key=distance, default=None)


def _primes(number: int) -> list[int]:
    """Its prime divisors.

    >>> _primes(12)
    [2, 3]
    """
    primes, divisor = [], 2
    while number > 1:
        if number % divisor == 0:
            primes.append(divisor)
            while number % divisor == 0:
                number //= divisor
        divisor += 1
    return primes
