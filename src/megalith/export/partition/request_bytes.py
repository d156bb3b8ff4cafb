"""What a request moves between host and cards, and which of the ways to move less are taken."""

from __future__ import annotations

from dataclasses import dataclass

from megalith.export.partition.served.model import ServedModel, ServedTable


@dataclass(frozen=True, slots=True)
class MovingLess:
    """The lessons of the first platform; each of them can be left out to see what it is worth."""

    narrow_ids: bool = True
    """Ids and lengths of 32 bits, not 64."""
    half_vectors: bool = True
    """Pooled vectors and dense inputs in FP16, not FP32."""
    used_bytes_only: bool = True
    """Copies only what a request uses of tensors that are compiled for `largest_items`."""
    user_once: bool = True
    """User features are sent and looked up once a request, and broadcast where the dense part runs."""
    one_transfer: bool = True
    """One transfer a card and direction, not one a table."""
    card_to_card: bool = True
    """Pooled vectors go from card to card through the switch, not up to the host and down again."""
    overlap: bool = True
    """The sparse part of a request runs beside the dense part of the one before it."""
    largest_items: int = 700
    """Items of the largest request (MLPerf's)."""

    def sent_items(self, items: int) -> int:
        """Items whose bytes are copied for a request of `items`."""
        return items if self.used_bytes_only else max(items, self.largest_items)


@dataclass(frozen=True, slots=True)
class TableBytes:
    """What one table adds to a request."""

    ids: float
    """To the card: ids, and a length for each feature of a sample."""
    vectors: float
    """From it: pooled vectors."""


def table_bytes(table: ServedTable, items: int, moving: MovingLess) -> TableBytes:
    """Bytes of a table's ids and pooled vectors in a request of `items`."""
    sent, once = moving.sent_items(items), moving.user_once
    ids = table.lookups(sent, once) + table.vectors(sent, once)
    return TableBytes(
        ids * (4 if moving.narrow_ids else 8), table.vectors(sent, once) * table.dim * element_bytes(moving)
    )


def element_bytes(moving: MovingLess) -> int:
    """Of dense inputs, pooled vectors and scores."""
    return 2 if moving.half_vectors else 4


def dense_input_bytes(model: ServedModel, items: int, moving: MovingLess) -> float:
    """Dense features of a request."""
    return float(moving.sent_items(items) * model.dense.num_inputs * element_bytes(moving))


def score_bytes(model: ServedModel, items: int, moving: MovingLess) -> float:
    """What comes back."""
    return float(moving.sent_items(items) * model.dense.outputs * element_bytes(moving))


def buffer_bytes(model: ServedModel, moving: MovingLess) -> int:
    """Of one request on a card, the largest: all inputs, and every intermediate value of the dense part."""
    items = moving.largest_items
    ids = sum(table_bytes(table, items, moving).ids for table in model.tables)
    return int(ids + items * model.dense.columns * element_bytes(moving))
