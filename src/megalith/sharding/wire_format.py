"""What travels between ranks, in bytes: the one place that runtime, dry run and planner take it from.

Ids of a batch are one message to each worker, in units of four bytes: a head, the lengths of bags, the ids,
the sample weights. Vectors and their gradients travel row by row, a row being what one sample gets from one
source, under a codec.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from megalith.core.schema import MAX_NARROW_ROWS, TableSpec
from megalith.sharding.plan import Codec

UNIT_BYTES = 4
"""Messages of ids are counted in units of so many bytes."""
HEAD_UNITS = 5
"""Batch, ids of every bag, number of ids, number of distinct ids, whether weights follow."""
HEAD_BYTES = HEAD_UNITS * UNIT_BYTES
LENGTH_BYTES = 4
"""Of a bag's length, where bags differ."""
WEIGHT_BYTES = 4
"""Of a sample weight, and of its gradient."""
ROW_NORM_BYTES = 4
"""Of a sum over some columns of a row, for optimizers that look at whole rows."""
MAX_NARROW_DISTINCT = 1 << 16
"""Where ids are deduplicated: positions among so many distinct ones travel in two bytes, else in four."""
ROOM_GROWTH = 16
"""A message that outgrows its room gets a sixteenth more than it needs the next time."""


def has_wide_ids(tables: Iterable[TableSpec]) -> bool:
    """Whether ids travel in eight bytes: where a table has more rows than four count."""
    return any(table.rows > MAX_NARROW_ROWS for table in tables)


def id_bytes(tables: Iterable[TableSpec]) -> int:
    """Bytes of an id on its way."""
    return 8 if has_wide_ids(tables) else 4


def position_units(num_ids: int, num_distinct: int) -> int:
    """Units of the positions of ids among distinct ones."""
    return -(-num_ids // 2) if num_distinct <= MAX_NARROW_DISTINCT else num_ids


def next_room(room: int, size: int) -> int:
    """Room for the next message after one of `size`: both ends compute it alike."""
    if size > 2 * room or 2 * size < room:
        return size
    return size + size // ROOM_GROWTH if size > room else room


class CodecBytes(NamedTuple):
    """What a codec sends."""

    element: int
    """For every number."""
    vector: int
    """For every vector: the scale of int8."""
    row: int
    """For every row that is not empty: the scale of fp16."""


CODEC_BYTES: dict[Codec, CodecBytes] = {
    "fp32": CodecBytes(4, 0, 0),
    "fp16": CodecBytes(2, 0, 4),
    "bf16": CodecBytes(2, 0, 0),
    "int8": CodecBytes(1, 4, 0),
}


def row_bytes(codec: Codec, widths: Sequence[int]) -> int:
    """Bytes of a row of vectors of these widths."""
    element, vector, row = CODEC_BYTES[codec]
    columns = sum(widths)
    return columns * element + len(widths) * vector + row * bool(columns)
