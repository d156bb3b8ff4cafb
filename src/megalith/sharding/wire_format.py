"""What travels between ranks, in bytes: the one place that runtime, dry run and planner take it from.

The ids of a batch are one message to each worker, in words of four bytes: a header, the lengths of bags, the
ids, the sample weights, the event times of samples. Vectors and their gradients travel row by row, a row
being what one sample gets from one source, under a codec (`codecs.py`). Inside a node, and between replicas
of a table, float32 travels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from megalith.core.schema import MAX_NARROW_ROWS, TableSpec
from megalith.sharding.plan import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

Size = TypeVar("Size", int, "NDArray[Any]")

WORD_BYTES = 4
"""Messages of ids are counted in words of so many bytes."""
HEADER_WORDS = 5
"""Batch, ids of every bag, number of ids, number of distinct ids, whether weights and times follow."""
HEADER_BYTES = HEADER_WORDS * WORD_BYTES
LENGTH_BYTES = 4
"""Of a bag's length, where bags differ."""
FLOAT_BYTES = 4
"""Of a float32: vectors that a node adds up, gradients of replicated tables."""
WEIGHT_BYTES = FLOAT_BYTES
"""Of a sample weight, and of its gradient."""
TIME_BYTES = 8
"""Of a sample's event time, to every worker, where ids of a table expire by it."""
ROW_NORM_BYTES = FLOAT_BYTES
"""Of a sum over some columns of a row, for optimizers that look at whole rows."""
SCALE_BYTES = FLOAT_BYTES
"""Of the factor that a codec sends along."""
MAX_NARROW_DISTINCT = 1 << 16
"""Where ids are deduplicated: positions among so many distinct ones travel in two bytes, else in four."""
CAPACITY_GROWTH = 16
"""A message that outgrows its capacity gets a sixteenth more than it needs the next time."""


def has_wide_ids(tables: Iterable[TableSpec]) -> bool:
    """Whether ids travel in eight bytes: where a table has more rows than four count, or is dynamic."""
    return any(table.is_dynamic or table.rows > MAX_NARROW_ROWS for table in tables)


def has_event_times(tables: Iterable[TableSpec]) -> bool:
    """Whether event times of samples travel with ids: where ids of a table expire by them."""
    return any(table.expires_by_time for table in tables)


def id_bytes(tables: Iterable[TableSpec]) -> int:
    """Bytes of an id on its way."""
    return 8 if has_wide_ids(tables) else 4


def has_narrow_positions(num_distinct: int) -> bool:
    """Whether positions among so many distinct ids travel in two bytes."""
    return num_distinct <= MAX_NARROW_DISTINCT


def position_words(num_ids: int, num_distinct: int) -> int:
    """Words of the positions of ids among distinct ones."""
    return -(-num_ids // 2) if has_narrow_positions(num_distinct) else num_ids


def next_capacity(capacity: int, size: int) -> int:
    """Capacity for the next message after one of `size`: both ends compute it alike."""
    if size > 2 * capacity or 2 * size < capacity:
        return size
    return size + size // CAPACITY_GROWTH if size > capacity else capacity


def gradient_flag_bytes(num_outputs: int) -> int:
    """Bytes that say of each output whether it has a gradient; whole numbers of float32 follow."""
    return -(-num_outputs // FLOAT_BYTES) * FLOAT_BYTES


def replicated_gradient_bytes(rows: Size, dim: Size) -> Size:
    """Bytes of a replicated table that ranks add up: its gradient, and a mark for every row."""
    return FLOAT_BYTES * rows * (dim + 1)


class CodecBytes(NamedTuple):
    """What a codec sends."""

    element: int
    """For every number."""
    vector: int
    """For every vector: the scale of int8."""
    row: int
    """For every row that is not empty: the scale of fp16."""


CODEC_BYTES: dict[Codec, CodecBytes] = {
    "fp32": CodecBytes(FLOAT_BYTES, 0, 0),
    "fp16": CodecBytes(2, 0, SCALE_BYTES),
    "bf16": CodecBytes(2, 0, 0),
    "int8": CodecBytes(1, SCALE_BYTES, 0),
}


def row_bytes(codec: Codec, widths: Sequence[int]) -> int:
    """Bytes of a row of vectors of these widths."""
    element, vector, row = CODEC_BYTES[codec]
    columns = sum(widths)
    return columns * element + len(widths) * vector + row * bool(columns)
