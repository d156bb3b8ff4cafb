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
    """DualPipe's order; PlanError unless devices and micro-batches are even and there are enough of them."""
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
    segments = tuple(_DeviceOrder(devices, device, micro_batches).segments() for device in range(devices))
    placement = (*range(devices), *reversed(range(devices)))
    return Schedule("dualpipe", devices, 2, micro_batches, segments, placement, streams=2)


class _DeviceOrder:
    """Writes the order of one device, phase after phase.

    Side 0 is the direction whose micro-batches enter at this device's end of the pipeline, side 1 the other;
    `depth` counts from that end.
    """

    def __init__(self, devices: int, device: int, micro_batches: int) -> None:
        half = devices // 2
        second_half = device >= half
        self.device = device
        self.near = 1 if second_half else 0
        """The chunk of side 0."""
        self.depth = devices - 1 - device if second_half else device
        self.inner = half - self.depth - 1
        """Devices between this one and the middle."""
        self.steady = micro_batches // 2 - devices + self.depth + 1
        self.taken = {(kind, chunk): 0 for kind in "FB" for chunk in (0, 1)}
        self.owed: list[tuple[int, int]] = []
        """Weight gradients put off: chunk and micro-batch."""
        self.written: list[Segment] = []

    def segments(self) -> tuple[Segment, ...]:
        """The eight phases of the published schedule."""
        self._add([self._forward(0) for _ in range(2 * self.inner)])
        self._add([self._forward(side) for _ in range(self.depth + 1) for side in (0, 1)])
        for _ in range(self.inner):
            self._add([self._backward(1, put_off=True), self._weight(), self._forward(1)])
        self._add_pairs()
        for _ in range(self.inner):
            self._add([self._backward(1), self._together(1)])
        self._add_backwards()
        for _ in range(self.inner):
            self._add([self._weight(), self._backward(0, put_off=True)])
        self._add([self._weight() for _ in range(len(self.owed))])
        return tuple(self.written)

    def _add_pairs(self) -> None:
        """Forwards of each side beside backwards of the other."""
        if self.inner == 0:
            # The two devices in the middle exchange the first pair: one waits for the other, so not side by
            # side.
            self._add([self._forward(0), self._backward(1), self._together(1)])
        else:
            self._add([self._together(0), self._together(1)])
        if self.steady > 1:
            turn = (self._together(0), self._together(1))
            self.written.append(Segment(turn, self.steady - 1, 2))
            for chunk in (0, 1):
                self.taken["F", chunk] += self.steady - 2
                self.taken["B", chunk] += self.steady - 2

    def _add_backwards(self) -> None:
        """Backwards of both sides; the second half of them leaves its weight gradients for the end."""
        put_off = False
        middle = (self.depth + 1) // 2
        for turn in range(self.depth + 1):
            if turn == middle and self.depth % 2 == 1:
                put_off = True
            far = self._backward(1, put_off=put_off)
            if turn == middle and self.depth % 2 == 0:
                put_off = True
            self._add([far, self._backward(0, put_off=put_off)])

    def _add(self, ops: list[Op]) -> None:
        self.written.append(Segment(tuple(ops)))

    def _next(self, kind: str, side: int) -> tuple[int, int]:
        """Chunk and micro-batch of the next operation of this kind."""
        chunk = self.near ^ side
        number = self.taken[kind, chunk]
        self.taken[kind, chunk] += 1
        return chunk, 2 * number + chunk

    def _forward(self, side: int) -> Op:
        return Op("F", self.device, *self._next("F", side))

    def _backward(self, side: int, *, put_off: bool = False) -> Op:
        chunk, micro_batch = self._next("B", side)
        if put_off:
            self.owed.append((chunk, micro_batch))
        return Op("B" if put_off else "BW", self.device, chunk, micro_batch)

    def _together(self, side: int) -> Op:
        """Forward of this side beside the backward of the other."""
        there, back = self._forward(side), self._backward(1 - side)
        return Op("FB", self.device, there.chunk, there.micro_batch, back.chunk, back.micro_batch)

    def _weight(self) -> Op:
        return Op("W", self.device, *self.owed.pop(0))
