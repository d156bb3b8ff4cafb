"""Schedules that compute the weight gradient later, where a device would wait (Qi et al. 2023 and 2024).

ZB-H1 keeps 1F1B's memory and fills the end of the step with weight gradients; ZB-H2 also fills the beginning
with more forwards, for about twice the memory; ZB-V folds the pipeline into a V, two chunks a device, and
needs 1F1B's memory for no bubble at all when forward and both gradients take equally long. All three check
the optimizer step afterwards and so need no barrier between steps.
"""

from __future__ import annotations

from megalith.explore.pipeline.operations import Kind, Op, Schedule, Segment


def zb_h1(devices: int, micro_batches: int) -> Schedule:
    """1F1B's warm-up; device i computes weight gradients i micro-batches late."""
    return _handcrafted("zb-h1", devices, micro_batches, 1)


def zb_h2(devices: int, micro_batches: int) -> Schedule:
    """Twice the warm-up and twice the delay of ZB-H1."""
    return _handcrafted("zb-h2", devices, micro_batches, 2)


def _handcrafted(name: str, devices: int, micro_batches: int, depth: int) -> Schedule:
    """Every device holds at most `depth * (devices - 1) + 1` micro-batches between forward and weight
    gradient: the first ones in forwards that run ahead, the last ones in weight gradients that lag behind."""
    segments = []
    for device in range(devices):

        def op(kind: Kind, micro_batch: int, device: int = device) -> Op:
            return Op(kind, device, 0, micro_batch)

        ahead = min(depth * (devices - 1 - device), micro_batches)
        lag = min(depth * device, micro_batches - ahead)
        steady = micro_batches - ahead - lag
        done = micro_batches - ahead  # input gradients computed when the last forward is
        segments.append(
            (
                Segment((op("F", 0),), ahead, 1),
                Segment((op("F", ahead), op("B", 0)), lag, 1),
                Segment((op("F", ahead + lag), op("B", lag), op("W", 0)), steady, 1),
                Segment((op("B", done), op("W", steady)), ahead, 1),
                Segment((op("W", steady + ahead),), lag, 1),
            )
        )
    return Schedule(name, devices, 1, micro_batches, tuple(segments), tuple(range(devices)), barrier=False)


def zb_v(devices: int, micro_batches: int) -> Schedule:
    """Chunk 0 goes down the devices and chunk 1 comes back up, so that the first device also has the last
    stage and computes the loss; each holds `devices` micro-batches of both chunks."""
    segments = tuple(_v_segments(devices, device, micro_batches) for device in range(devices))
    placement = (*range(devices), *reversed(range(devices)))
    return Schedule("zb-v", devices, 2, micro_batches, segments, placement, barrier=False)


def _v_segments(devices: int, device: int, micro_batches: int) -> tuple[Segment, ...]:
    # The pattern needs 2p - 1 micro-batches to unfold; with fewer those beyond are left out of it.
    count = max(micro_batches, 2 * devices - 1)
    after = devices - device
    taken = {(kind, chunk): 0 for kind in "FBW" for chunk in (0, 1)}
    segments: list[Segment] = []

    def repeat(pattern: str, repeats: int) -> None:
        """`pattern` such as "F1 B1 W1"."""
        ops = []
        for word in pattern.split():
            kind, chunk = word[0], int(word[1])
            ops.append(Op(kind, device, chunk, taken[kind, chunk]))  # type: ignore[arg-type]
        if repeats <= 0:
            return
        for op in ops:
            taken[op.kind, op.chunk] += repeats
        if count == micro_batches:
            segments.append(Segment(tuple(ops), repeats, 1))
            return
        written = Segment(tuple(ops), repeats, 1).expand()
        segments.append(Segment(tuple(op for op in written if op.micro_batch < micro_batches)))

    repeat("F0", 2 * after - 1)
    repeat("F1 F0", device)
    repeat("F1 B1 W1", after)
    steady = count - taken["F", 0]
    repeat("F0 B0 W0 F1 B1 W1", steady)
    repeat("B0 W0 F1 B1 W1", taken["F", 0] - taken["F", 1])
    repeat("B0 B1", device)
    repeat("B0 W0", after)
    repeat("W1", count - taken["W", 1])
    repeat("W0", count - taken["W", 0])
    return tuple(segments)
