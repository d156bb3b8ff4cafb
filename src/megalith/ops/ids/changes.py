"""What a map of ids gives back: rows of a batch, rows that begin, ids that left, blocks of ids."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

LEAVING_REASONS = ("bound", "shrunk", "batches", "seconds", "score")
"""Why an id lost its row: for another id, for a smaller bound, or because it expired."""


class NewIdRows(NamedTuple):
    """Rows that begin: the caller writes start values and empty optimizer state. int64 each."""

    tables: Tensor
    rows: Tensor
    ids: Tensor


class EvictedIds(NamedTuple):
    """Ids that lost their row, or with row -1 were loaded and got none. int64 each."""

    tables: Tensor
    ids: Tensor
    rows: Tensor
    reasons: Tensor
    """Positions in LEAVING_REASONS."""


class MovedIdRows(NamedTuple):
    """Rows that lie elsewhere now; copied in this order none overwrites another. int64 each."""

    tables: Tensor
    ids: Tensor
    sources: Tensor
    targets: Tensor


class IdRows(NamedTuple):
    """The rows of a batch's values, and what changed for them."""

    rows: Tensor
    """int32 [values], -1 where the id has none."""
    new: NewIdRows
    evicted: EvictedIds


class IdBlock(NamedTuple):
    """Ids of a table in rising order with all that is known of them, as they are saved."""

    ids: Tensor
    """int64"""
    rows: Tensor
    """int32"""
    last: Tensor
    """int64: the last batch that used each."""
    scores: Tensor
    """float32: uses as they count after the map's batch, times the weight of that batch
    (`IdEviction.score_clock`). For a map of another policy, times its `score_factor`."""
    times: Tensor
    """int64: the latest event time, 0 where none is kept."""


class IdStatistics(NamedTuple):
    """Counts of a table since the map was made, and what it has now. Only batches that train count.

    lookups = hits + values of ids that were admitted + refused + full.
    """

    lookups: int
    """Values."""
    hits: int
    """Values whose id had a row before the batch."""
    admitted: int
    """Ids that got a row."""
    refused: int
    """Values without a row, by the rule of admission."""
    full: int
    """Values without a row, because batches under way use all that could leave."""
    evicted: int
    """Ids that lost their row to another."""
    shrunk: int
    """Ids that lost it to a smaller bound."""
    expired_by_batches: int
    expired_by_seconds: int
    expired_by_score: int
    ids: int
    """That have a row now."""
    bound: int
    index_bytes: int
    use_bytes: int
    """Ids, last batches, scores and event times by row."""
    queue_bytes: int
    """Rows that leave next, free rows, and what a table needs in any case."""
    counter_bytes: int
