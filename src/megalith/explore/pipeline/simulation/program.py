"""A schedule and its costs as flat lists, ready for a tight loop.

Every message has a number: what forward operation (stage, micro-batch) waits for, then what backward ones
wait for; number 0 is always there. An operation is then three integers: the message it needs, the message it
sends, and its type (op_table.py), which says how long it takes and over which link it sends. What more an
operation has to do with collectives stands apart, in `OperationExtras`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from megalith.explore.pipeline.operations import Schedule

KINDS = ("F", "B", "W", "BW")

Message = tuple[int, float, float]
"""Link number, seconds, latency."""


@dataclass(frozen=True, slots=True)
class OperationExtras:
    """What an operation has to do with collectives, or its second half if it is an FB."""

    second_needs: int = 0
    second_sends: int = 0
    second_message: Message | None = None
    needs_fetch: Message | None = None
    """Parameters it waits for; asked for one operation ahead, or now if nothing overlaps."""
    early_fetch: int = -1
    """Parameters that were asked for when the step began: their index in `Program.first_fetches`."""
    prefetch: Message | None = None
    """Parameters of the next operation, asked for when this one starts."""
    reduce: Message | None = None
    """Gradients that leave when it ends."""
    waits_for_reduce: bool = False
    """Whether the device does nothing until they have arrived."""


@dataclass(slots=True)
class Program:
    """The operations of every device, in order, and the table of their types."""

    needs: list[list[int]]
    """By device and operation: the message it waits for; so the next two."""
    sends: list[list[int]]
    op_types: list[list[int]]
    extras: list[dict[int, OperationExtras]]
    first_extra_type: int
    """Types from this one on belong to operations with an entry in `extras`."""
    seconds: list[float]
    """By type; so the next two."""
    messages: list[Message | None]
    """What the link does with the operation's output; None: it is there at once."""
    labels: list[tuple[str, int]]
    """Kind and virtual stage."""
    links: list[Hashable]
    shared: bool
    """Whether two devices send over one link, so that only time decides who is first."""
    message_count: int
    micro_batches: int
    stages: int
    first_fetches: list[list[Message]] = field(default_factory=list)
    last_reduces: list[list[Message]] = field(default_factory=list)
    """By device: gradients that leave after the last operation, when nothing overlaps."""
    optimizer: list[float] = field(default_factory=list)
    owners: list[list[int]] = field(default_factory=list)
    """By device: the operation each part was cut from; empty where nothing was cut."""


def message_ends(schedule: Schedule, kind: str, stage: int) -> tuple[int, int]:
    """Numbers of the messages that micro-batch 0 needs and sends in a stage; 0: nothing."""
    count, per_stream = schedule.micro_batches, schedule.stages // schedule.streams
    first, last = stage % per_stream == 0, stage % per_stream == per_stream - 1
    if kind == "F":
        return (0 if first else 1 + stage * count), (0 if last else 1 + (stage + 1) * count)
    if kind == "W":
        return 0, 0
    base = 1 + (schedule.stages + stage) * count
    return (0 if last else base), (0 if first else base - count)
