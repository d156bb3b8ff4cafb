"""What a card is asked to do and what it says of it, as whole numbers that fit the slots of a ring.

A task runs some requests, or a range of one's samples, on one part of one version. Its entries say where the
tensors of a request lie in the memory of rooms, and where in the card's own memory the outputs go.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from megalith.core.errors import MegalithError

MOST_ENTRIES, MOST_SOURCES = 16, 64
TEXT_BYTES = 512
"""Room that each entry has for a sentence, should it be refused."""
WHOLE, LOOKUPS, DENSE = 0, 1, 2
PART_KINDS = ("whole", "lookups", "dense")
FINE, REFUSED, FAILED = 0, 1, 2


class Entry(NamedTuple):
    """A request of a task. Addresses count in the memory of rooms; -1 is a tensor that was not sent."""

    batch: int
    """Samples of the request."""
    first: int
    last: int
    """Those that this task runs."""
    dense_at: int
    values_at: int
    num_values: int
    value_bytes: int
    lengths_at: int
    user_values_at: int
    num_user_values: int
    user_value_bytes: int
    user_lengths_at: int
    out_at: int = 0
    """In the memory of the card's outputs."""

    @property
    def samples(self) -> int:
        """That the task runs."""
        return self.last - self.first


class PooledSource(NamedTuple):
    """Pooled vectors that another card has made: where they lie in its memory; card -1 has lost them."""

    card: int
    offset: int
    descriptor: int = -1
    """Of that memory, in the front process."""


class Task(NamedTuple):
    """A message to a card."""

    number: int
    kind: int
    part: int
    """The number of the part, which front and card share."""
    entries: tuple[Entry, ...]
    sources: tuple[PooledSource, ...] = ()
    pooled_at: int = 0
    """In the memory of outputs, where lookups put their vectors."""


class EntryResult(NamedTuple):
    """What became of an entry: FINE, or REFUSED or FAILED with a sentence."""

    status: int = FINE
    sentence: str = ""


class TaskResult(NamedTuple):
    """What a card answers. Times are those of `time.monotonic_ns`."""

    number: int
    began: int
    checked: int
    computed: int
    ended: int
    entries: tuple[EntryResult, ...]


_HEAD = struct.Struct("6q")
_ENTRY = struct.Struct("13q")
_SOURCE = struct.Struct("3q")
_RESULT = struct.Struct("6q")
_STATUS = struct.Struct("2q")
TASK_BYTES = _HEAD.size + MOST_ENTRIES * _ENTRY.size + MOST_SOURCES * _SOURCE.size
RESULT_BYTES = _RESULT.size + MOST_ENTRIES * (_STATUS.size + TEXT_BYTES)


def pack_task(task: Task, memory: memoryview) -> None:
    """Writes a task to a slot."""
    if len(task.entries) > MOST_ENTRIES or len(task.sources) > MOST_SOURCES:
        raise MegalithError(f"A task has at most {MOST_ENTRIES} entries and {MOST_SOURCES} sources.")
    number, kind, part, entries, sources, pooled_at = task
    _HEAD.pack_into(memory, 0, number, kind, part, len(entries), len(sources), pooled_at)
    at = _HEAD.size
    for entry in entries:
        _ENTRY.pack_into(memory, at, *entry)
        at += _ENTRY.size
    for source in sources:
        _SOURCE.pack_into(memory, at, *source)
        at += _SOURCE.size


def unpack_task(memory: memoryview) -> Task:
    """Reads a task from a slot."""
    number, kind, part, num_entries, num_sources, pooled_at = _HEAD.unpack_from(memory, 0)
    at = _HEAD.size
    entries = tuple(Entry(*_ENTRY.unpack_from(memory, at + n * _ENTRY.size)) for n in range(num_entries))
    at += num_entries * _ENTRY.size
    sources = tuple(
        PooledSource(*_SOURCE.unpack_from(memory, at + n * _SOURCE.size)) for n in range(num_sources)
    )
    return Task(number, kind, part, entries, sources, pooled_at)


def pack_result(result: TaskResult, memory: memoryview) -> None:
    """Writes a result to a slot; long sentences are cut."""
    number, began, checked, computed, ended, entries = result
    _RESULT.pack_into(memory, 0, number, began, checked, computed, ended, len(entries))
    at = _RESULT.size
    for status, sentence in entries:
        text = sentence.encode(errors="replace")[:TEXT_BYTES] if sentence else b""
        _STATUS.pack_into(memory, at, status, len(text))
        at += _STATUS.size
        if text:
            memory[at : at + len(text)] = text
            at += len(text)


def unpack_result(memory: memoryview) -> TaskResult:
    """Reads a result from a slot."""
    number, began, checked, computed, ended, count = _RESULT.unpack_from(memory, 0)
    at = _RESULT.size
    entries = []
    for _ in range(count):
        status, size = _STATUS.unpack_from(memory, at)
        at += _STATUS.size
        entries.append(EntryResult(status, bytes(memory[at : at + size]).decode(errors="replace")))
        at += size
    return TaskResult(number, began, checked, computed, ended, tuple(entries))
