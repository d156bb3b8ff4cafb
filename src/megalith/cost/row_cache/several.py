"""Predictions of several caches added up: those of one process, and those of many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from megalith.cost.row_cache.prediction import CachePrediction, RowTraffic
from megalith.cost.row_cache.step_time import TierPrediction


def add_caches(caches: Sequence[CachePrediction]) -> CachePrediction:
    """The caches of one process, each for rows of one shape; all see the same batches."""
    first = caches[0]
    written = [cache.run.evicted_rows + cache.run.moved_rows + 1e-9 for cache in caches]
    records = sum(rows * cache.record_bytes for rows, cache in zip(written, caches, strict=True))
    return CachePrediction(
        batch=first.batch,
        steps=first.steps,
        run=_add_traffic([cache.run for cache in caches]),
        late=_add_traffic([cache.late for cache in caches]),
        touched_rows=sum(cache.touched_rows for cache in caches),
        cached_rows=sum(cache.cached_rows for cache in caches),
        record_bytes=records / sum(written),
        disk_bytes=sum(cache.disk_bytes for cache in caches),
    )


def add_ranks(ranks: Sequence[tuple[float, TierPrediction]]) -> TierPrediction:
    """The ranks of a run, each with its lookups in a step: all wait for the slowest."""
    lookups = sum(own for own, _ in ranks)
    _, slowest = max(ranks, key=lambda entry: entry[1].step_seconds)
    return replace(
        slowest,
        hit_rate=sum(own * tier.hit_rate for own, tier in ranks) / lookups if lookups else 1.0,
        reads_per_sample=sum(tier.reads_per_sample for _, tier in ranks),
        written_rows_per_sample=sum(tier.written_rows_per_sample for _, tier in ranks),
        touched_rows=sum(tier.touched_rows for _, tier in ranks),
        disk_bytes=sum(tier.disk_bytes for _, tier in ranks),
    )


def _add_traffic(traffic: Sequence[RowTraffic]) -> RowTraffic:
    names = [field.name for field in fields(RowTraffic)]
    return RowTraffic(**{name: sum(getattr(own, name) for own in traffic) for name in names})
