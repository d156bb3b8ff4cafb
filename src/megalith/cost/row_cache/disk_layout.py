"""Bytes of rows in segment files, and how many rows are written again when segments are collected.

Records lie as csrc/stores/segment_format.h says. Files take at most `space_factor` of the rows' bytes; then
the segment with the fewest live rows is collected and what lives in it is written again. If every row on disk
is as likely to be written anew, and files are filled to u with live rows, a collected segment is still filled
to v, where

    u = (1 - v) / -ln(v)        and v / (1 - v) rows are moved for each that is evicted

(Menon and Stockmeyer 1998; Desnoyers, SYSTOR 2012). Rows that a cache holds changed count as rows, but not as
live ones on disk: a large cache makes collection cheap.
"""

from __future__ import annotations

from math import log

BLOCK_BYTES = 4096
SEGMENT_BYTES = 16 << 20
SPACE_FACTOR = 1.4
_CHECKSUM_BYTES, _KEY_BYTES = 4, 8


def record_bytes(row_bytes: int) -> float:
    """Bytes of a file for each row: the row, its checksum and key, and what is left of a block.

    >>> round(record_bytes(260), 1)
    281.1
    """
    stride = stride_bytes(row_bytes)
    in_a_block = BLOCK_BYTES // stride
    packed = in_a_block * stride * 8 >= BLOCK_BYTES * 7
    return (BLOCK_BYTES / in_a_block if packed else stride) + _KEY_BYTES


def stride_bytes(row_bytes: int) -> int:
    """Bytes of a row with its checksum."""
    return -(-(row_bytes + _CHECKSUM_BYTES) // 4) * 4


def blocks_per_row(row_bytes: int) -> float:
    """Blocks that hold a row, on average."""
    stride = stride_bytes(row_bytes)
    in_a_block = BLOCK_BYTES // stride
    if in_a_block * stride * 8 >= BLOCK_BYTES * 7:
        return 1.0
    return 1.0 + (stride - 4) / BLOCK_BYTES


def moved_per_evicted(live_share: float) -> float:
    """Rows that collection writes again for each that is evicted, where so much of the files is live.

    >>> round(moved_per_evicted(0.57), 2), round(moved_per_evicted(0.73), 2)
    (0.4, 1.06)
    """
    low, high = 1e-9, 1.0 - 1e-9
    for _ in range(60):
        middle = (low + high) / 2
        if (1.0 - middle) / -log(middle) < live_share:
            low = middle
        else:
            high = middle
    return low / (1.0 - low)
