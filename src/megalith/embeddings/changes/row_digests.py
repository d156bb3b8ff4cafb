"""`RowDigests`: which rows of a rectangle have other content than when last asked for, and which are gone.

    digests = RowDigests()                          # of one consumer and one rectangle
    for block in digests.changed(shard.blocks(16 << 20)):
        ...                                         # rows that are new or differ in a bit, copied
    digests.gone                                    # ids that had a row and have none
    digests.keep()                                  # what was seen is what the next call compares with

For stores in which rows come, go, get chunks and lose them: there a batch's ids do not say what changed. A
digest has 64 bits, so of a billion changed rows one is missed with a chance of 5e-11. 16 bytes a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from megalith.embeddings.row_block import RowBlock

_NONE = torch.empty(0, dtype=torch.int64)
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
_LOW = (1 << 32) - 1


class RowDigests:
    """A digest of each row, by id."""

    def __init__(self) -> None:
        self._ids, self._digests = _NONE, _NONE
        self._seen: tuple[Tensor, Tensor] | None = None
        self.gone = _NONE
        """Ids that were there and were in no block of the last `changed`, rising."""

    def changed(self, blocks: Iterable[RowBlock]) -> Iterator[RowBlock]:
        """Of all rows those that are new or differ, in blocks of their own; to be read to the end."""
        ids, digests = [_NONE], [_NONE]
        self._seen = None
        for block in blocks:
            own_ids, own = torch.as_tensor(block.ids), row_digests(block)
            ids.append(own_ids)
            digests.append(own)
            differs = self._differ(own_ids, own)
            if bool(differs.any()):
                parts = {name: part[differs] for name, part in block.parts.items()}
                yield RowBlock(own_ids[differs], block.columns, parts)
        all_ids, order = torch.cat(ids).sort()
        self._seen = all_ids, torch.cat(digests)[order]
        self.gone = self._ids[~_are_in(self._ids, all_ids)]

    def see(self, blocks: Iterable[RowBlock]) -> None:
        """All rows are as they should be: the next `changed` compares with them."""
        ids, digests = [_NONE], [_NONE]
        for block in blocks:
            ids.append(torch.as_tensor(block.ids))
            digests.append(row_digests(block))
        self._ids, order = torch.cat(ids).sort()
        self._digests = torch.cat(digests)[order]

    def keep(self) -> None:
        """What the last `changed` saw is what the next one compares with."""
        assert self._seen is not None
        (self._ids, self._digests), self._seen = self._seen, None

    def bytes(self) -> int:
        """Of the digests."""
        return 16 * len(self._ids)

    def _differ(self, ids: Tensor, digests: Tensor) -> Tensor:
        if not len(self._ids):
            return torch.ones(len(ids), dtype=torch.bool)
        at = torch.searchsorted(self._ids, ids).clamp(max=len(self._ids) - 1)
        return (self._ids[at] != ids) | (self._digests[at] != digests)


def row_digests(block: RowBlock) -> Tensor:
    """int64 [rows]: a digest of all that a block has of each row, and of how many columns that is."""
    total = torch.full((len(block.ids),), block.columns[1] - block.columns[0], dtype=torch.int64)
    for number, name in enumerate(sorted(block.parts)):
        part: Tensor = block.parts[name][0 : len(block.ids)]
        words = _words(part)
        if words.shape[1]:
            generator = torch.Generator().manual_seed(number + 1)
            factors = torch.randint(-(1 << 63), (1 << 63) - 1, (2, words.shape[1]), generator=generator) | 1
            # The high half shows in the low one only by the shift, and the signs of numbers are high bits.
            mixed = words * factors[0]
            mixed ^= (mixed >> 32) & _LOW
            mixed *= factors[1]
            mixed ^= (mixed >> 29) & ((1 << 35) - 1)
            total = total * 0x9E3779B97F4A7C1 + mixed.sum(dim=1)
    return total


def _words(part: Tensor) -> Tensor:
    """The bits of each row as int64 [rows, words]."""
    rows = part.contiguous().view(len(part), -1) if len(part) else part.reshape(0, 1)
    if not rows.shape[1]:
        return torch.empty(len(part), 0, dtype=torch.int64)
    size = rows.shape[1] * rows.element_size()
    width = next(width for width in _WORDS if size % width == 0)
    if rows.dtype != _WORDS[width]:
        if rows.element_size() < width and rows.data_ptr() % width:
            rows = rows.clone()
        rows = rows.view(_WORDS[width])
    return rows.long()


def _are_in(ids: Tensor, rising: Tensor) -> Tensor:
    """Which ids are among others."""
    if not len(rising):
        return torch.zeros(len(ids), dtype=torch.bool)
    return rising[torch.searchsorted(rising, ids).clamp(max=len(rising) - 1)] == ids
