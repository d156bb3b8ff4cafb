"""`TouchedRows`: which rows of a table took a step, for several consumers that each ask in their own time.

    touched.watch("checkpoint")                    # from now on; nothing is marked while nobody watches
    ids = touched.take("checkpoint")               # rows since the last call, rising, and unmarks them
    touched.give_back("checkpoint", ids)           # where what was to be done with them failed
    touched.hold(snapshot)                         # told of rows before they change, until it is released

A byte for each row, with a bit for each consumer: a step sets all bits, a consumer clears its own. For tables
whose ids are rows of a rectangle, in memory or over a disk. Stores in which rows come, go and are cut into
chunks are compared by content instead: see `row_digests`.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

_MOST_CONSUMERS = 8


class ToldBefore(Protocol):
    """Who needs rows as they are before a step changes them: `RowSnapshot`."""

    def before(self, positions: Tensor) -> None:
        """These are about to change."""

    def wait(self) -> None:
        """Any may change: returns when none is needed as it is."""


class TouchedRows:
    """The rows of one rectangle that took a step, by position in it; used by the thread that trains."""

    def __init__(self, rows: int, *, every_row: bool = False) -> None:
        """`every_row` is for tables all of whose rows take every step."""
        self.rows, self.every_row = rows, every_row
        self._marks: Tensor | None = None
        self._bits: dict[str, int] = {}
        self._told: tuple[ToldBefore, ...] = ()

    @property
    def is_watched(self) -> bool:
        """Whether anybody asks."""
        return bool(self._bits)

    def watch(self, consumer: str) -> None:
        """Begins to mark rows for a consumer, none of which count as touched; again: forgets what was."""
        if consumer not in self._bits:
            if len(self._bits) == _MOST_CONSUMERS:
                raise ValueError(f"{_MOST_CONSUMERS} consumers of touched rows at most")
            free = set(range(_MOST_CONSUMERS)) - {bit.bit_length() - 1 for bit in self._bits.values()}
            self._bits[consumer] = 1 << min(free)
        if self._marks is None:
            self._marks = torch.zeros(0 if self.every_row else self.rows, dtype=torch.uint8)
        self._clear(self._bits[consumer])

    def forget(self, consumer: str) -> None:
        """Nobody of that name asks any more."""
        self._bits.pop(consumer, None)
        if not self._bits:
            self._marks = None

    @property
    def is_held(self) -> bool:
        """Whether anybody is to be told before rows change."""
        return bool(self._told)

    def hold(self, told: ToldBefore) -> None:
        """From now on somebody is told before rows change."""
        self._told = (*self._told, told)

    def release(self, told: ToldBefore) -> None:
        """No more; of no effect where it was not. Any thread may call it."""
        self._told = tuple(each for each in self._told if each is not told)

    def before(self, positions: Tensor) -> None:
        """Rows are about to take a step."""
        for each in self._told:
            each.before(positions)

    def before_all(self) -> None:
        """Any rows are about to change: something is loaded into them."""
        for each in self._told:
            each.wait()

    def touch(self, positions: Tensor | slice) -> None:
        """Rows took a step, or were loaded."""
        if self._marks is not None and len(self._marks):
            # By numpy, which takes half of torch's time for the few ids of a batch.
            where = positions if isinstance(positions, slice) else positions.cpu().numpy()
            self._marks.numpy()[where] = 255

    def touch_all(self) -> None:
        """All rows may be others now: something was loaded into them."""
        if self._marks is not None:
            self._marks.fill_(255)

    def count(self, consumer: str) -> int:
        """How many rows `take` would give."""
        bit = self._bits[consumer]
        assert self._marks is not None
        return self.rows if self.every_row else int((self._marks & bit).count_nonzero())

    def take(self, consumer: str) -> Tensor:
        """The positions touched since the consumer last took them, rising: they are its own from here on."""
        bit = self._bits[consumer]
        assert self._marks is not None
        if self.every_row:
            return torch.arange(self.rows)
        taken = (self._marks & bit).nonzero().view(-1)
        self._clear(bit)
        return taken

    def give_back(self, consumer: str, positions: Tensor) -> None:
        """What was taken is touched still: whatever it was taken for has failed."""
        if not self.every_row and consumer in self._bits:
            assert self._marks is not None
            self._marks[positions] |= self._bits[consumer]

    def bytes(self) -> int:
        """Of the marks."""
        return 0 if self._marks is None else len(self._marks)

    def _clear(self, bit: int) -> None:
        assert self._marks is not None
        self._marks &= 255 - bit
