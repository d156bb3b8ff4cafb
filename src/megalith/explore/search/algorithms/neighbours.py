"""Small changes of a plan, for what the tree is too large to settle or does not hold.

One prime factor of one level goes from an axis to another; another sharing, schedule, micro-batch or network
option; one layer from a stage to another. Whatever changes, the rest stays as near to the plan as its new
surroundings allow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from megalith.explore.search.space.decisions import Choice, Rhythm, Sharing
from megalith.explore.search.space.layouts import Layout
from megalith.explore.search.space.search_space import Space

_BUCKETS = (10_000_000, 40_000_000, 160_000_000, 640_000_000)


def neighbours(space: Space, plan: Choice) -> Iterator[tuple[str, Choice]]:
    """Plans one step away, each with what was changed."""
    layout, sharing, rhythm, fabric = plan.layout, plan.sharing, plan.rhythm, plan.fabric
    assert sharing is not None
    assert rhythm is not None
    assert fabric is not None
    for other in near_layouts(space, layout):
        kept = _nearest_sharing(space, other, sharing), _nearest_rhythm(space, other, rhythm)
        if kept[0] is not None and kept[1] is not None:
            yield "placement", Choice(other, kept[0], kept[1], fabric)
    for one in space.sharings(layout):
        if one != sharing:
            yield "sharding", replace(plan, sharing=one)
    even = replace(rhythm, layers_per_stage=None)
    for beat in space.rhythms(layout):
        if beat != even and (
            beat.micro_batch == rhythm.micro_batch
            or (beat.schedule, beat.vpp, beat.extra_in_flight)
            == (rhythm.schedule, rhythm.vpp, rhythm.extra_in_flight)
        ):
            yield "schedule", replace(plan, rhythm=beat)
    for wiring in space.fabrics:
        if wiring != fabric:
            yield "network", replace(plan, fabric=wiring)
    if "overlap" not in space.limits.fixed:
        yield "overlap", replace(plan, fabric=replace(fabric, overlap=not fabric.overlap))
    if "bucket_bytes" not in space.limits.fixed:
        for size in _BUCKETS:
            if size != fabric.bucket_bytes:
                yield "buckets", replace(plan, fabric=replace(fabric, bucket_bytes=size))


def near_layouts(space: Space, layout: Layout) -> Iterator[Layout]:
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
                        other = Layout(
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


def _nearest_sharing(space: Space, layout: Layout, wanted: Sharing) -> Sharing | None:
    options = space.sharings(layout)
    if wanted in options:
        return wanted
    alike = [one for one in options if one.ep == wanted.ep] or options
    same = [one for one in alike if one.sharding == wanted.sharding] or alike
    return same[-1] if same else None


def _nearest_rhythm(space: Space, layout: Layout, wanted: Rhythm) -> Rhythm | None:
    options = space.rhythms(layout)
    wanted = replace(wanted, layers_per_stage=None)
    if wanted in options:
        return wanted

    def distance(one: Rhythm) -> tuple[bool, float, int, int]:
        ratio = one.micro_batch / wanted.micro_batch
        return (
            one.schedule != wanted.schedule,
            max(ratio, 1 / ratio),
            abs(one.vpp - wanted.vpp),
            abs(one.extra_in_flight - wanted.extra_in_flight),
        )

    return min(options, key=distance, default=None)


def _primes(number: int) -> list[int]:
    """
    >>> _primes(12)
    [2, 3]
    """
    found, divisor = [], 2
    while number > 1:
        if number % divisor == 0:
            found.append(divisor)
            while number % divisor == 0:
                number //= divisor
        divisor += 1
    return found
