"""The process groups of a plan: which devices each parallel axis joins.

Axes are laid from the innermost devices out; an axis may be cut into pieces (`pp:4`, `dp`, `pp:2`). A
device's number is then a sum of coordinates times strides, and what a group touches of each level follows
from the strides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod

from megalith.core.errors import ConfigError, PlanError, nearest
from megalith.cost.collectives import Group, LevelSpan
from megalith.explore.job import Parallel
from megalith.hardware.cluster import Cluster

AXES = ("tp", "cp", "dp", "pp")


@dataclass(frozen=True, slots=True)
class AxisPiece:
    """A contiguous part of a parallel axis: `count` coordinates, `stride` devices from one to the next."""

    axis: str
    count: int
    stride: int


@dataclass(frozen=True, slots=True)
class StageBoundary:
    """What one pipeline stage's message to the next crosses."""

    level: int
    """The innermost level that holds both stages in one member; -1: the same device."""
    member: int
    """Which member of that level's insides sends, counted over the cluster."""
    sharing: int
    """Devices in that member that send over this boundary at the same time."""


@lru_cache(maxsize=4096)
def axis_pieces(parallel: Parallel) -> tuple[AxisPiece, ...]:
    """The placement as pieces with strides; axes that are not named go outermost, in their usual order."""
    sizes = {axis: getattr(parallel, axis) for axis in AXES}
    left = dict(sizes)
    laid: list[AxisPiece] = []
    stride = 1
    named = [entry.partition(":")[0] for entry in parallel.placement]
    for entry in (*parallel.placement, *(axis for axis in AXES if axis not in named)):
        axis, colon, text = entry.partition(":")
        if axis not in sizes:
            raise ConfigError(f"parallel.placement: unknown axis '{axis}'; {nearest(axis, AXES)}")
        if colon and not text.isdigit():
            raise ConfigError(f"parallel.placement: '{entry}' must be an axis and a count, such as pp:4.")
        count = int(text) if colon else left[axis]
        if not colon and (times := parallel.placement.count(axis)) > 1:
            raise ConfigError(
                f"parallel.placement names '{axis}' {times} times; name it once, or cut it with "
                f"counts, such as {axis}:{_first_cut(sizes[axis])}."
            )
        if count < 1 or left[axis] % count:
            raise ConfigError(
                f"parallel.placement: '{entry}' does not divide what is left of {axis} ({left[axis]}); "
                f"take a divisor, such as {axis}:{max(1, gcd(left[axis], max(count, 1)))}."
            )
        laid.append(AxisPiece(axis, count, stride))
        left[axis] //= count
        stride *= count
    short = next((axis for axis in AXES if left[axis] != 1), None)
    if short:
        done = sizes[short] // left[short]
        raise ConfigError(
            f"parallel.placement lays {done} of {short}={sizes[short]}; add "
            f"'{short}:{left[short]}' where the rest goes."
        )
    return tuple(laid)


def _first_cut(size: int) -> int:
    """The smallest proper divisor of an axis, the axis itself if it has none."""
    return next((part for part in range(2, size) if size % part == 0), size)


def devices_needed(parallel: Parallel) -> int:
    """Devices that the four axes take together."""
    return parallel.tp * parallel.cp * parallel.dp * parallel.pp


def check_devices(parallel: Parallel, cluster: Cluster) -> None:
    """A plan must not need more devices than there are."""
    needed = devices_needed(parallel)
    if needed > cluster.devices:
        model_parallel = needed // parallel.dp
        dp, outermost = cluster.devices // model_parallel, len(cluster.levels) - 1
        members = -(-needed // cluster.devices_within(outermost - 1))
        fix = (
            f"take parallel.dp={dp}"
            if dp
            else f"take cluster.levels.{outermost}.count={members}, or lower tp, cp or pp"
        )
        raise PlanError(
            f"parallel needs tp x cp x pp x dp = {needed} devices and the cluster has "
            f"{cluster.devices}; {fix}."
        )


@lru_cache(maxsize=16384)
def group(parallel: Parallel, cluster: Cluster, axes: tuple[str, ...]) -> Group:
    """What a group over `axes` touches of each level."""
    return _spans(
        [piece for piece in axis_pieces(parallel) if piece.axis in axes and piece.count > 1], cluster
    )


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """How routed experts lie over the tensor-, context- and data-parallel ranks of a stage."""

    tensor: Group
    """The innermost `etp` ranks, which cut one expert."""
    experts: Group
    """The next `ep`, among which the experts are dealt out."""
    replicas: Group
    """The rest: copies of one expert."""


def expert_tensor_size(parallel: Parallel) -> int:
    """Ranks that one routed expert is cut over: as said, else as many of the tensor-parallel ones as leave
    room for `ep`."""
    if parallel.etp is not None:
        return parallel.etp
    ranks = parallel.tp * parallel.cp * parallel.dp
    sizes = (size for size in range(parallel.tp, 0, -1) if parallel.tp % size == 0)
    return next((size for size in sizes if ranks % (size * parallel.ep) == 0), parallel.tp)


@lru_cache(maxsize=16384)
def expert_groups(parallel: Parallel, cluster: Cluster) -> ExpertGroups:
    """The groups of routed experts, from the innermost ranks out."""
    etp = expert_tensor_size(parallel)
    ranks = [piece for piece in axis_pieces(parallel) if piece.axis != "pp" and piece.count > 1]
    tensor, others = _take([piece for piece in ranks if piece.axis == "tp"], etp)
    rest = [*others, *(piece for piece in ranks if piece.axis != "tp")]
    if (cut := prod(piece.count for piece in tensor)) < etp:
        more, rest = _take(rest, etp // cut)
        tensor += more
    rest.sort(key=lambda piece: piece.stride)
    experts, replicas = _take(rest, parallel.ep)
    if prod(piece.count for piece in tensor) != etp or prod(piece.count for piece in experts) != parallel.ep:
        whole = parallel.tp * parallel.cp * parallel.dp
        room = prod(piece.count for piece in experts)
        raise PlanError(
            f"parallel: etp x ep = {etp} x {parallel.ep} does not divide tp x cp x dp = {whole}; take "
            + (
                f"parallel.etp={prod(piece.count for piece in tensor)}"
                if room == parallel.ep
                else f"parallel.ep={room}"
            )
            + "."
        )
    return ExpertGroups(_spans(tensor, cluster), _spans(experts, cluster), _spans(replicas, cluster))


def _take(pieces: list[AxisPiece], count: int) -> tuple[list[AxisPiece], list[AxisPiece]]:
    """The innermost `count` ranks of the pieces, as far as they divide, and what is left."""
    taken, left = [], []
    for piece in pieces:
        part = gcd(piece.count, count)
        if part > 1:
            taken.append(AxisPiece(piece.axis, part, piece.stride))
        if piece.count > part:
            left.append(AxisPiece(piece.axis, piece.count // part, piece.stride * part))
        count //= part
    return taken, left


def split_group(whole: Group, level: int) -> tuple[Group, Group]:
    """A group as the part inside one member of `level` and the part across members, of equal positions
    inside."""
    inside = whole[:level]
    ranks = prod(span.ranks for span in inside)
    across = (
        *(LevelSpan(1, 1) for _ in inside),
        *(LevelSpan(span.ranks, span.sharing * ranks) for span in whole[level:]),
    )
    return inside, across


def outermost_level(ranks: Group) -> int:
    """The outermost level that a group's traffic crosses; 0 for a group of one rank."""
    return max((index for index, span in enumerate(ranks) if span.ranks > 1), default=0)


def _spans(pieces: list[AxisPiece], cluster: Cluster) -> Group:
    spans: list[LevelSpan] = []
    size = prod(piece.count for piece in pieces)
    below = 1
    for index in range(len(cluster.levels)):
        inside = _ranks_inside(pieces, cluster.devices_within(index))
        spans.append(LevelSpan(-(-inside // below), max(1, cluster.devices_within(index - 1) // below)))
        below = inside
        if inside == size:
            break
    return tuple(spans)


def _ranks_inside(pieces: list[AxisPiece], devices: int) -> int:
    """Ranks of one group inside a block of `devices` devices, where the fewest are together."""
    inside = 1
    for piece in pieces:
        reach = piece.count * piece.stride
        if devices % reach == 0:
            inside *= piece.count
        else:
            inside *= max(1, min(piece.count, devices // piece.stride))
    return inside


@lru_cache(maxsize=4096)
def stage_device(parallel: Parallel, stage: int) -> int:
    """Device number of pipeline rank `stage` at the origin of all other axes."""
    number = 0
    for piece in axis_pieces(parallel):
        if piece.axis == "pp":
            number += stage % piece.count * piece.stride
            stage //= piece.count
    return number


@lru_cache(maxsize=65536)
def boundary(parallel: Parallel, cluster: Cluster, sender: int, receiver: int) -> StageBoundary:
    """What a message from pipeline rank `sender` to `receiver` crosses, in the first replica."""
    source, target = stage_device(parallel, sender), stage_device(parallel, receiver)
    if source == target:
        return StageBoundary(-1, source, 1)
    level = next(
        (
            index
            for index in range(len(cluster.levels))
            if source // cluster.devices_within(index) == target // cluster.devices_within(index)
        ),
        len(cluster.levels) - 1,
    )
    block = cluster.devices_within(level - 1)
    # Other coordinates of the sending stage that lie in the same member cross at the same moment.
    sharing = 1
    for piece in axis_pieces(parallel):
        if piece.axis != "pp":
            sharing *= max(1, min(piece.count, block // piece.stride))
    return StageBoundary(level, source // block, sharing)
