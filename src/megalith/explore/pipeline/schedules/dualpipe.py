"""DualPipe (DeepSeek-V3, 2024): micro-batches enter at both ends of the pipeline at once.

Every device holds two stages of the model, one for each direction, so the weights are kept twice. In the
middle of the step a device computes the forward of one direction beside the backward of the other, and each
hides the other's communication: that is the operation FB, whose time `StepCosts.forward_backward` gives.

Chunk 0 of device i is stage i of the model whose micro-batches are even and go down the devices; chunk 1 is
stage p - 1 - i of the other model. In the list of virtual stages the second model follows the first.
"""

from __future__ import annotations

from megalith.core.errors import PlanError
from megalith.explore.pipeline.operations import Op, Schedule, Segment


def dualpipe(devices: int, micro_batches: int) -> Schedule:
    if devices % 2:
        raise PlanError(
            f"DualPipe folds the pipeline in two halves and {devices} devices are odd; use {devices + 1}"
            + (f" or {devices - 1}." if devices > 1 else ".")
        )
    least = 2 * devices
    if micro_batches % 2 or micro_batches < least:
        raise PlanError(
            f"DualPipe on {devices} devices takes an even number of at least {least} micro-batches and "
            f"{micro_batches} were given; use {max(least, micro_batches + micro_batches % 2)}."
        )
    segments = tuple(_device_segments(devices, device, micro_batches) for device in range(devices))
    placement = (*range(devices), *reversed(range(devices)))
    return Schedule("dualpipe", devices, 2, micro_batches, segments, placement, streams=2)


def _device_segments(devices: int, device: int, micro_batches: int) -> tuple[Segment, ...]:
    """The eight phases of the published schedule. "Near" is the direction whose micro-batches enter at this
    device's end of the pipeline, "far" the other; `depth` counts from that end."""
    half = devices // 2
    second_half = device >= half
    near = 1 if second_half else 0
    depth = devices - 1 - device if second_half else device
    inner = half - depth - 1
    middle = depth == half - 1
    taken = {(kind, chunk): 0 for kind in "FBW" for chunk in (0, 1)}
    owed: list[tuple[int, int]] = []  # weight gradients put off: (chunk, micro-batch)
    segments: list[Segment] = []

    def forward(side: int) -> Op:
        chunk = near ^ side
        number = taken["F", chunk]
        taken["F", chunk] += 1
        return Op("F", device, chunk, 2 * number + chunk)

    def backward(side: int, *, put_off: bool = False) -> Op:
        chunk = near ^ side
        number = taken["B", chunk]
        taken["B", chunk] += 1
        if put_off:
            owed.append((chunk, 2 * number + chunk))
        return Op("B" if put_off else "BW", device, chunk, 2 * number + chunk)

    def together(side: int) -> Op:
        """Forward of this side beside the backward of the other."""
        there, back = forward(side), backward(1 - side)
        return Op("FB", device, there.chunk, there.micro_batch, back.chunk, back.micro_batch)

    def weight() -> Op:
        chunk, micro_batch = owed.pop(0)
        return Op("W", device, chunk, micro_batch)

    def add(ops: list[Op]) -> None:
        segments.append(Segment(tuple(ops)))

    add([forward(0) for _ in range(2 * inner)])
    add([forward(side) for _ in range(depth + 1) for side in (0, 1)])
    for _ in range(inner):
        add([backward(1, put_off=True), weight(), forward(1)])
    steady = micro_batches // 2 - devices + depth + 1
    if middle:
        # The two devices in the middle exchange the first pair: one waits for the other, so not side by side.
        add([forward(0), backward(1), together(1)])
    else:
        add([together(0), together(1)])
    if steady > 1:
        turn = (together(0), together(1))
        segments.append(Segment(turn, steady - 1, 2))
        for chunk in (0, 1):
            taken["F", chunk] += steady - 2
            taken["B", chunk] += steady - 2
    for _ in range(inner):
        add([backward(1), together(1)])
    put_off = False
    for turn_number in range(depth + 1):
        # The second half of these backwards leaves its weight gradients for the end.
        if turn_number == (depth + 1) // 2 and depth % 2 == 1:
            put_off = True
        far = backward(1, put_off=put_off)
        if turn_number == (depth + 1) // 2 and depth % 2 == 0:
            put_off = True
        add([far, backward(0, put_off=put_off)])
    for _ in range(inner):
        add([weight(), backward(0, put_off=True)])
    add([weight() for _ in range(len(owed))])
    return tuple(segments)
