"""Rows that take the place of others: which, and where their content is.

`changed` is int64 [ceil(rows / 64), 2]: of every 64 rows a word with a bit for each that changed, and how
many changed before them. A changed row is then the count of its word plus the bits below its own, in
`changed_rows`. The index takes two bits a row, and one cache line tells of 256 rows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def change_index(changed: Tensor, num_rows: int) -> Tensor:
    """The index of changed rows, which rise, among `num_rows`."""
    numbers = changed.numpy().astype(np.int64)
    words = np.zeros((max(1, -(-num_rows // 64)), 2), dtype=np.int64)
    bits = words[:, 0].copy().view(np.uint64)
    np.bitwise_or.at(bits, numbers >> 6, np.left_shift(np.uint64(1), (numbers & 63).astype(np.uint64)))
    words[:, 0] = bits.view(np.int64)
    counts = np.bincount(numbers >> 6, minlength=len(words))
    words[1:, 1] = np.cumsum(counts)[:-1]
    return torch.from_numpy(words)


def changed_numbers(index: Tensor) -> Tensor:
    """The changed rows of an index, rising: int64."""
    words = index[:, 0].contiguous().numpy().view(np.uint8)
    bits = np.unpackbits(words, bitorder="little")
    return torch.from_numpy(np.flatnonzero(bits).astype(np.int64))


def merge_changes(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Numbers and rows of two changes, one after the other: where both have a row, that of the second."""
    numbers = torch.cat([first[0], second[0]])
    rows = torch.cat([first[1], second[1]])
    # Of equal numbers a stable sort keeps the order, and the last is taken.
    order = torch.argsort(numbers, stable=True)
    ordered = numbers[order]
    last = torch.ones(len(ordered), dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    return ordered[last], rows[order[last]].contiguous()
