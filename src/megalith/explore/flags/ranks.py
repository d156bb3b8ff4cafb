"""The rank that each host takes, so that a trainer's process groups lie where the plan has them.

A trainer lays its axes over ranks in one fixed order; a plan may want another, and may cut an axis in two.
Hosts can be given any rank, so most placements are reached by renumbering them: a host's number, counted
through the cluster from the inside out, is read digit by digit, and each digit has a weight in the rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from megalith.core.errors import PlanError
from megalith.explore.job import Job, Parallel
from megalith.explore.placement import axis_pieces

_LARGEST_HOST = 16
_TRAY = 4


@dataclass(frozen=True, slots=True)
class TrainerFile:
    """A file for a trainer, and what of the plan it could not say."""

    name: str
    text: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankDigit:
    """One digit of a device's number: `size` coordinates of an axis, `stride` apart on it."""

    axis: str
    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class HostRanks:
    """Host h, read as digits of these sizes from the innermost, has the rank sum of digit x weight."""

    order: tuple[str, ...]
    digits: tuple[tuple[int, int], ...]

    @property
    def as_counted(self) -> bool:
        """Hosts keep their own numbers."""
        return all(weight == 1 for _, weight in self.digits) and len(self.digits) <= 1

    def rank_of(self, host: int) -> int:
        """The rank of host number `host`, counted through the cluster from the inside out."""
        rank = 0
        for size, weight in self.digits:
            host, digit = divmod(host, size)
            rank += digit * weight
        return rank

    def shell(self, variable: str) -> str:
        """The same as arithmetic of a POSIX shell."""
        terms, below = [], 1
        for index, (size, weight) in enumerate(self.digits):
            digit = variable if below == 1 else f"{variable} / {below}"
            if index + 1 < len(self.digits):
                digit += f" % {size}"
            terms.append(f"({digit}) * {weight}" if weight > 1 else f"({digit})")
            below *= size
        return " + ".join(terms) or "0"


def axis_sizes(parallel: Parallel) -> dict[str, int]:
    """Size of each parallel axis that devices are laid out by."""
    return {"tp": parallel.tp, "cp": parallel.cp, "dp": parallel.dp, "pp": parallel.pp}


def placement_digits(parallel: Parallel) -> list[RankDigit]:
    """The placement as digits from the innermost device out, axes of size 1 left out.

    >>> placement_digits(Parallel(pp=8, dp=2, global_batch=16, placement=("pp:4", "dp", "pp:2")))[0]
    RankDigit(axis='pp', size=4, stride=1)
    """
    done = dict.fromkeys(axis_sizes(parallel), 1)
    digits = []
    for piece in axis_pieces(parallel):
        if piece.count > 1:
            digits.append(RankDigit(piece.axis, piece.count, done[piece.axis]))
        done[piece.axis] *= piece.count
    return digits


def processes_per_host(job: Job) -> int:
    """Devices of the innermost level, unless it spans hosts as an NVL72 rack does: then trays of four."""
    inner = job.cluster.levels[0].count
    world = prod(axis_sizes(job.parallel).values()) if job.parallel else inner
    count = inner if inner <= _LARGEST_HOST else _TRAY
    return min(count, world)


def host_ranks(job: Job, orders: Sequence[tuple[str, ...]]) -> HostRanks | None:
    """A numbering of the hosts that gives one of the trainer's axis `orders` the plan's placement.

    None when no order can: then devices of one host would need ranks that are not neighbours.
    """
    if job.parallel is None:
        raise PlanError(f"Job '{job.name}' has no parallel section to write flags for; run `explore search`.")
    numbered = [_number(job, order) for order in orders]
    usable = [ranks for ranks in numbered if ranks is not None]
    return next((ranks for ranks in usable if ranks.as_counted), usable[0] if usable else None)


def _number(job: Job, order: tuple[str, ...]) -> HostRanks | None:
    assert job.parallel is not None
    sizes = axis_sizes(job.parallel)
    step, weights = 1, {}
    for axis in order:
        weights[axis] = step
        step *= sizes[axis]
    host = processes_per_host(job)
    inside, digits = 1, []
    for digit in placement_digits(job.parallel):
        weight = weights[digit.axis] * digit.stride
        room = host // inside
        size = digit.size
        if room > 1:
            taken = min(size, room)
            if max(size, room) % taken or weight != inside:
                return None
            inside *= taken
            size //= taken
            weight *= taken
        if size > 1:
            if weight % host:
                return None
            digits.append((size, weight // host))
    return HostRanks(order, _merged(digits))


def _merged(digits: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Adjacent digits whose weights continue each other, as one."""
    merged: list[tuple[int, int]] = []
    for size, weight in digits:
        if merged and weight == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, weight))
    return tuple(merged)
