"""Bytes of rows in segment files, and how many rows are written again when segments are collected.

Records lie as csrc/stores/segment_format.h says. Files hold at most `space_factor` records for each row; then
a segment with few live rows is collected, and what lives in it is written again. If every row on disk is as
likely to be written anew, and files are filled to u with live rows, a collected segment is still filled to v,
where

    u = (1 - v) / -ln(v)        and v / (1 - v) rows are moved for each that is evicted

(Menon and Stockmeyer 1998; Desnoyers, SYSTOR 2012). Rows that a cache holds changed count as rows, but not as
live ones on disk: a large cache makes collection cheap.
"""

from __future__ import annotations

from math import log

BLOCK_BYTES = 4096
SEGMENT_BYTES = 16 << 20
SPACE_FACTOR = 1.42
_CHECKSUM_BYTES, _KEY_BYTES = 4, 4


def record_bytes(row_bytes: int) -> float:
    """Bytes of a file for each row: the row, its checksum and its key, of which a pool has up to 2^32.

    >>> record_bytes(260)
    268.0
    """
    return -(-(row_bytes + _CHECKSUM_BYTES) // 4) * 4.0 + _KEY_BYTES


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
