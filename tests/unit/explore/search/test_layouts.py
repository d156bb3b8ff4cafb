"""Layouts: every factoring of the levels' members over the axes, once, spelled as placements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.explore.search.space.layouts import AXES, DeviceLayout, divisors, enumerate_layouts, fill_levels

counts_strategy = st.lists(st.integers(1, 12), min_size=1, max_size=3)


def every_factoring(counts: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    def four(count: int) -> list[tuple[int, ...]]:
        sizes = product(divisors(count), repeat=4)
        return [parts for parts in sizes if prod(parts) == count]

    yield from product(*map(four, counts))


@given(counts_strategy)
def test_layouts_without_tensor_parallelism_are_all_factorings_into_replicas_and_stages(
    counts: list[int],
) -> None:
    found = {layout.factors for layout in enumerate_layouts(counts, [1], [1], max_pp=10**9, max_dp=10**9)}
    expected = {d for d in every_factoring(counts) if all(part[:2] == (1, 1) for part in d)}
    assert found == expected


@given(counts_strategy, st.integers(1, 16), st.integers(1, 4))
def test_every_layout_uses_every_device_once(counts: list[int], tp: int, cp: int) -> None:
    for layout in enumerate_layouts(counts, [tp], [cp], max_pp=64, max_dp=64):
        assert layout.tp == tp
        assert layout.cp == cp
        assert layout.tp * layout.cp * layout.dp * layout.pp == prod(counts)
        assert layout.pp <= 64
        assert layout.dp <= 64


@given(counts_strategy)
def test_a_placement_says_which_axis_crosses_which_level(counts: list[int]) -> None:
    for layout in enumerate_layouts(counts, [1, 2], [1, 2], max_pp=10**9, max_dp=10**9):
        assert crossings(layout.placement, layout, counts) == {a: set(layout.crosses(a)) for a in AXES}


def crossings(placement: tuple[str, ...], layout: DeviceLayout, counts: list[int]) -> dict[str, set[int]]:
    """Reads a placement from the devices' point of view: where each axis' neighbours are."""
    crossed: dict[str, set[int]] = {axis: set() for axis in AXES}
    stride = 1
    for piece in placement:
        axis, _, size = piece.partition(":")
        length = int(size) if size else layout.size(axis)
        for step in range(1, length):
            apart = stride * step
            inside = 1
            for level, count in enumerate(counts):
                inside *= count
                if apart < inside:
                    crossed[axis].add(level)
                    break
        stride *= length
    # A run that spans several levels crosses all between its first and last.
    return {axis: {i for i in range(len(counts)) if i in levels} for axis, levels in crossed.items()}


def test_tensor_parallelism_fills_the_innermost_levels() -> None:
    assert fill_levels([8, 4, 2], 16) == (8, 2, 1)
    assert fill_levels([8, 4], 6) is None
    assert fill_levels([8, 4], 64) is None


@pytest.mark.parametrize(
    ("factors", "placement"),
    [
        (((8, 1, 1, 1), (1, 1, 4, 16)), ("tp", "cp", "dp", "pp")),
        (((8, 1, 1, 1), (1, 1, 4, 16), (1, 1, 2, 1)), ("tp", "cp", "pp", "dp")),
        (((8, 1, 1, 1), (1, 1, 1, 4), (1, 1, 2, 1), (1, 1, 1, 2)), ("tp", "cp", "pp:4", "dp", "pp:2")),
        (((1, 1, 8, 1),), ("tp", "cp", "dp", "pp")),
    ],
)
def test_placements_are_spelled_with_few_cuts(
    factors: tuple[tuple[int, int, int, int], ...], placement: tuple[str, ...]
) -> None:
    assert DeviceLayout(factors).placement == placement
