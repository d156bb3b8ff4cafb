"""Which axis of parallelism crosses which level of the cluster.

A layout factors the members of every level over the four axes: of 2 regions, 4 buildings and 64 nodes, so
many are different pipeline stages and so many hold replicas. Every such factoring is a placement, and all of
them are listed; what a list of axes with cuts can say beyond that is the order inside one level, where all
members have the same link and order does not matter. Tensor parallelism takes the innermost devices and
context parallelism those next to them: both talk in every layer, so that over slower links they lose to any
layout that gives those links to stages or replicas, which talk once a micro-batch or once a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

AXES = ("tp", "cp", "dp", "pp")


@dataclass(frozen=True, eq=False)
class DeviceLayout:
    """Members of each level, from the innermost out, by axis: factors[level] = (tp, cp, dp, pp)."""

    factors: tuple[tuple[int, int, int, int], ...]

    # Sizes are asked for millions of times in a search, and so is the hash.

    @cached_property
    def tp(self) -> int:
        """Size of tensor parallelism."""
        return self.size("tp")

    @cached_property
    def cp(self) -> int:
        """Size of context parallelism."""
        return self.size("cp")

    @cached_property
    def dp(self) -> int:
        """Size of data parallelism."""
        return self.size("dp")

    @cached_property
    def pp(self) -> int:
        """Size of pipeline parallelism."""
        return self.size("pp")

    @cached_property
    def _hash(self) -> int:
        return hash(self.factors)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceLayout) and self.factors == other.factors

    def size(self, axis: str) -> int:
        """Devices along an axis."""
        column = AXES.index(axis)
        return prod(level[column] for level in self.factors)

    def crosses(self, axis: str) -> tuple[int, ...]:
        """Levels whose links this axis talks over."""
        column = AXES.index(axis)
        return tuple(index for index, level in enumerate(self.factors) if level[column] > 1)

    @cached_property
    def placement(self) -> tuple[str, ...]:
        """The layout as `Parallel.placement` spells it, with as few cuts as possible.

        >>> DeviceLayout(((8, 1, 1, 1), (1, 1, 2, 4), (1, 1, 1, 2))).placement
        ('tp', 'cp', 'dp', 'pp')
        >>> DeviceLayout(((8, 1, 1, 1), (1, 1, 1, 4), (1, 1, 2, 1), (1, 1, 1, 2))).placement
        ('tp', 'cp', 'pp:4', 'dp', 'pp:2')
        """
        pieces: list[tuple[str, int]] = []
        for level, following in zip(self.factors, [*self.factors[1:], None], strict=True):
            named = [(axis, size) for axis, size in zip(AXES, level, strict=True) if size > 1]
            for axis, size in sorted(named, key=lambda part: _rank(part[0], pieces, following)):
                if pieces and pieces[-1][0] == axis:
                    size *= pieces.pop()[1]
                pieces.append((axis, size))
        names = [axis for axis, _ in pieces]
        spelled = [axis if names.count(axis) == 1 else f"{axis}:{size}" for axis, size in pieces]
        # An axis of one device stands where it does no harm; the full list is easier to read and to compare.
        for axis in AXES:
            if axis not in names:
                after = [i for i, name in enumerate(names) if AXES.index(name) < AXES.index(axis)]
                at = after[-1] + 1 if after and axis != "pp" else (len(names) if axis == "pp" else 0)
                names.insert(at, axis)
                spelled.insert(at, axis)
        return tuple(spelled)


def _rank(axis: str, pieces: list[tuple[str, int]], following: tuple[int, ...] | None) -> tuple[int, int]:
    """Inside a level: first what goes on from the level below, last what goes on in the level above."""
    if pieces and pieces[-1][0] == axis:
        return (0, 0)
    goes_on = following is not None and following[AXES.index(axis)] > 1
    return (2 if goes_on else 1, AXES.index(axis))


def enumerate_layouts(
    counts: Sequence[int],
    tp_sizes: Iterable[int],
    cp_sizes: Iterable[int],
    *,
    max_pp: int,
    max_dp: int,
) -> Iterator[DeviceLayout]:
    """Every layout of all devices with these sizes of tensor and context parallelism."""
    cp_sizes = tuple(cp_sizes)
    for tp in tp_sizes:
        inner = fill_levels(counts, tp)
        if inner is None:
            continue
        left = [count // taken for count, taken in zip(counts, inner, strict=True)]
        for cp in cp_sizes:
            middle = fill_levels(left, cp)
            if middle is None:
                continue
            rest = [count // taken for count, taken in zip(left, middle, strict=True)]
            for stages in _products_up_to([divisors(count) for count in rest], max_pp):
                replicas = [count // stage for count, stage in zip(rest, stages, strict=True)]
                if prod(replicas) <= max_dp:
                    yield DeviceLayout(tuple(zip(inner, middle, replicas, stages, strict=True)))


def fill_levels(counts: Sequence[int], size: int) -> tuple[int, ...] | None:
    """How many members of each level an axis of `size` takes from the innermost out; None if it does not
    divide them.

    >>> fill_levels([8, 4], 16)
    (8, 2)
    """
    taken = []
    for count in counts:
        if size >= count and size % count == 0:
            taken.append(count)
            size //= count
        elif size < count and count % size == 0:
            taken.append(size)
            size = 1
        else:
            return None
    return tuple(taken) if size == 1 else None


def divisors(number: int) -> list[int]:
    """All divisors, in ascending order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def _products_up_to(options: list[list[int]], most: int) -> Iterator[tuple[int, ...]]:
    if not options:
        yield ()
        return
    for first in options[0]:
        if first > most:
            break
        for others in _products_up_to(options[1:], most // first):
            yield (first, *others)
