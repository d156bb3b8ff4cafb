"""What a pipeline does and in which order: operations, segments of operations that repeat, schedules.

A micro-batch visits virtual stages 0, 1, 2, ... forward and the same ones backward. Each stage lies on a
device (`placement`); the stages of one device are its chunks, numbered in the order data visits them. A
schedule says for each device which operation follows which. It says nothing of time: `simulate` does.

Orders are kept as segments (a few operations, how often they repeat, by how much the micro-batch grows each
time), since a step of a thousand micro-batches repeats the same three operations a thousand times; whoever
wants the plain list asks for `order`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from megalith.core.errors import PlanError

Kind = Literal["F", "B", "W", "BW", "FB"]
"""Forward; input gradient; weight gradient; both gradients at once; the forward of one micro-batch beside
both gradients of another (DualPipe)."""


class Op(NamedTuple):
    """One piece of work of a device."""

    kind: Kind
    device: int
    chunk: int
    micro_batch: int
    backward_chunk: int = -1
    """Only of FB: the chunk and micro-batch whose gradients are computed beside the forward."""
    backward_micro_batch: int = -1


class Segment(NamedTuple):
    """Operations that a device runs `repeats` times; each time the micro-batch numbers grow by `shift`."""

    ops: tuple[Op, ...]
    repeats: int = 1
    shift: int = 0

    def expand(self) -> Iterable[Op]:
        """The operations, written out."""
        for turn in range(self.repeats):
            by = turn * self.shift
            for op in self.ops:
                yield op._replace(
                    micro_batch=op.micro_batch + by,
                    backward_micro_batch=op.backward_micro_batch + by if op.kind == "FB" else -1,
                )


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order of operations on every device."""

    name: str
    devices: int
    chunks: int
    """Virtual stages on each device."""
    micro_batches: int
    segments: tuple[tuple[Segment, ...], ...]
    placement: tuple[int, ...]
    """Virtual stage -> device."""
    streams: int = 1
    """DualPipe holds two whole models: with 2 the first half of the virtual stages is one model, the second
    half the other, and micro-batch i passes through model i % 2 alone."""
    barrier: bool = True
    """Whether a step begins on all devices together. Zero-bubble schedules validate the optimizer step
    afterwards, so that each device begins its next step as soon as its own has ended."""
    derived: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What was found out about the order, which many steps share, once and for all."""

    @property
    def stages(self) -> int:
        """Virtual stages of all devices."""
        return self.devices * self.chunks

    @property
    def order(self) -> tuple[tuple[Op, ...], ...]:
        """The operations of every device, written out."""
        return tuple(
            tuple(op for segment in segments for op in segment.expand()) for segments in self.segments
        )

    @property
    def chunk_stages(self) -> tuple[tuple[int, ...], ...]:
        """Device -> the virtual stage of each of its chunks."""
        stages: list[list[int]] = [[] for _ in range(self.devices)]
        for stage, device in enumerate(self.placement):
            stages[device].append(stage)
        return tuple(tuple(own) for own in stages)

    @classmethod
    def from_order(
        cls,
        name: str,
        order: Sequence[Sequence[Op]],
        placement: Sequence[int],
        micro_batches: int,
        *,
        streams: int = 1,
        barrier: bool = True,
    ) -> Schedule:
        """A schedule of one's own; checks that each device runs everything once and in a possible order."""
        devices = len(order)
        schedule = cls(
            name=name,
            devices=devices,
            chunks=len(placement) // devices,
            micro_batches=micro_batches,
            segments=tuple((Segment(tuple(ops)),) for ops in order),
            placement=tuple(placement),
            streams=streams,
            barrier=barrier,
        )
        check_schedule(schedule)
        return schedule


def check_schedule(schedule: Schedule) -> None:
    """Raises PlanError unless every device runs each forward, input gradient and weight gradient of its
    chunks exactly once, in this order, for all micro-batches that pass it."""
    per_stream = schedule.stages // schedule.streams
    for device, stages in enumerate(schedule.chunk_stages):
        if len(stages) != schedule.chunks:
            raise PlanError(
                f"Schedule {schedule.name} places {len(stages)} stages on device {device} where every device "
                f"holds {schedule.chunks}; give each device the same number of stages."
            )
        done: dict[tuple[str, int, int], bool] = {}
        for op in (op for segment in schedule.segments[device] for op in segment.expand()):
            for kind, chunk, micro_batch in parts(op):
                before = {"F": None, "B": "F", "W": "B"}[kind]
                if op.device != device or (kind, chunk, micro_batch) in done:
                    raise PlanError(
                        f"Schedule {schedule.name} runs {kind} of chunk {chunk}, micro-batch {micro_batch} "
                        f"twice, or lists it under device {device} by mistake; list each operation once, on "
                        "its device."
                    )
                if before is not None and (before, chunk, micro_batch) not in done:
                    raise PlanError(
                        f"Schedule {schedule.name} runs {kind} of chunk {chunk}, micro-batch {micro_batch} "
                        f"on device {device} before its {before}; put the {before} first."
                    )
                done[kind, chunk, micro_batch] = True
        wanted = sum(
            3 * len(range(stage // per_stream, schedule.micro_batches, schedule.streams)) for stage in stages
        )
        if len(done) != wanted:
            raise PlanError(
                f"Schedule {schedule.name} runs {len(done)} of the {wanted} pieces of work of device "
                f"{device}; list F, B and W (or BW) of every micro-batch and chunk."
            )


def parts(op: Op) -> list[tuple[str, int, int]]:
    """An operation as the plain F, B and W it stands for: (kind, chunk, micro-batch)."""
    if op.kind == "FB":
        back = (op.backward_chunk, op.backward_micro_batch)
        return [("F", op.chunk, op.micro_batch), ("B", *back), ("W", *back)]
    return [(kind, op.chunk, op.micro_batch) for kind in op.kind]
