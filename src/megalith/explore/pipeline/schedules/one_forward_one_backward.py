"""GPipe, 1F1B and their forms with several chunks a device: interleaved (Megatron) and breadth-first.

All of them compute both gradients at once and give the weights one update after the last micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from megalith.core.errors import PlanError
from megalith.explore.pipeline.operations import Kind, Op, Schedule, Segment


def gpipe(devices: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards (Huang et al. 2019)."""
    return breadth_first(devices, micro_batches, 1, name="gpipe")


def breadth_first(devices: int, micro_batches: int, chunks: int, *, name: str = "breadth-first") -> Schedule:
    """All micro-batches through the first chunk of every device, then through the next (Lamy-Poirier 2023):
    interleaving's short bubble, and parameters and gradients of a chunk move once, at the price of holding
    every micro-batch."""
    segments = []
    for device in range(devices):
        forward = [_run("F", device, chunk, 0, micro_batches) for chunk in range(chunks)]
        backward = [_run("BW", device, chunk, 0, micro_batches) for chunk in reversed(range(chunks))]
        segments.append((*forward, *backward))
    return Schedule(name, devices, chunks, micro_batches, tuple(segments), looped_placement(devices, chunks))


def one_forward_one_backward(devices: int, micro_batches: int, extra_in_flight: int = 0) -> Schedule:
    """1F1B (Narayanan et al. 2019): as many forwards as there are devices behind, then one of each in turn.

    `extra_in_flight` more forwards on every device but the last hide links that take long.
    """
    segments = []
    for device in range(devices):
        behind = devices - 1 - device
        warm_up = min(behind + (extra_in_flight if behind else 0), micro_batches)
        steady = micro_batches - warm_up
        segments.append(
            (
                _run("F", device, 0, 0, warm_up),
                Segment((Op("F", device, 0, warm_up), Op("BW", device, 0, 0)), steady, 1),
                _run("BW", device, 0, steady, warm_up),
            )
        )
    return Schedule("1f1b", devices, 1, micro_batches, tuple(segments), tuple(range(devices)))


def interleaved(
    devices: int, micro_batches: int, chunks: int, *, group: int | None = None, ahead: Sequence[int] = ()
) -> Schedule:
    """Interleaved 1F1B (Narayanan et al. 2021): groups of as many micro-batches as there are devices go
    through chunk after chunk, so that the bubble is `chunks` times shorter.

    Larger groups (`group`, a divisor of the micro-batches) and `ahead` more forwards of each device before
    its first backward hold more and hide links that take long.
    """
    group = group or devices
    if micro_batches % group:
        below = micro_batches - micro_batches % group
        offers = [str(count) for count in (below, below + group) if count]
        raise PlanError(
            f"The interleaved schedule takes micro-batches in groups of {group} for {devices} pipeline "
            f"devices, and {micro_batches} do not divide; use {' or '.join(offers)} micro-batches."
        )
    total, turn = micro_batches * chunks, group * chunks
    segments = []
    for device in range(devices):

        def forward(number: int, device: int = device) -> Op:
            chunk = number % turn // group
            return Op("F", device, chunk, number // turn * group + number % group)

        def backward(number: int, device: int = device) -> Op:
            chunk = chunks - 1 - number % turn // group
            return Op("BW", device, chunk, number // turn * group + number % group)

        warm_up = min(2 * (devices - device - 1) + (chunks - 1) * group, total)
        if ahead:
            warm_up = min(warm_up + ahead[device], total)
        if micro_batches == group:
            warm_up = total
        steady = total - warm_up
        whole = steady // turn
        pairs = [op for n in range(min(turn, steady)) for op in (forward(n + warm_up), backward(n))]
        rest = [op for n in range(whole * turn, steady) for op in (forward(n + warm_up), backward(n))]
        segments.append(
            (
                Segment(tuple(forward(n) for n in range(warm_up))),
                Segment(tuple(pairs if whole else ()), whole, group),
                Segment(tuple(rest)),
                Segment(tuple(backward(n) for n in range(steady, total))),
            )
        )
    placement = looped_placement(devices, chunks)
    return Schedule("interleaved", devices, chunks, micro_batches, tuple(segments), placement)


def looped_placement(devices: int, chunks: int) -> tuple[int, ...]:
    """Stage after stage over the devices, again and again."""
    return tuple(range(devices)) * chunks


def _run(kind: Kind, device: int, chunk: int, first: int, count: int) -> Segment:
    return Segment((Op(kind, device, chunk, first),), count, 1)
