"""`IdRouter`: which ids of a batch go to which worker, stream by stream.

A stream that takes all ids of a feature is a slice of the batch. Where rows are cut, the native core shares
out all partitions together (`ops/sharding/bucketize.py`). `InputDist` calls it for every batch, and so does
the check that a plan delivers every id.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.ops.sharding.bucketize import CutFeature, RowBuckets, bucketize_rows
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.runtime.input_dist.jagged_ids import JaggedIds, RoutedIds


class IdRouter:
    """Shares out the ids of batches among the workers of a layout."""

    def __init__(self, layout: ExchangeLayout) -> None:
        self._num_features = len(layout.features)
        self._partitions = _PartitionedStreams(layout) if layout.row_partitions else None
        numbers = {} if self._partitions is None else self._partitions.numbers
        # By worker and stream: the number among streams that take some rows only, None for whole features.
        self._sources = [
            [(None, s.feature) if s.rows is None else (numbers[w, s], s.feature) for s in worker.streams]
            for w, worker in enumerate(layout.workers)
        ]
        self._has_partitions = [
            any(stream.rows is not None for stream in worker.streams) for worker in layout.workers
        ]

    def __call__(self, ids: JaggedIds) -> list[RoutedIds]:
        """What goes to each worker; parts of the batch itself wherever no row is cut."""
        lengths: list[Tensor] = []
        if ids.uniform_length >= 0:
            sizes = [ids.uniform_length * ids.batch] * self._num_features
        else:
            counts = torch.diff(ids.offsets).to(torch.int32)
            lengths = list(counts.view(self._num_features, ids.batch).unbind(0))
            edges = ids.offsets[:: ids.batch].tolist() if ids.batch else [0] * (self._num_features + 1)
            sizes = [after - before for before, after in itertools.pairwise(edges)]
        values = ids.values.split(sizes)
        weights = () if ids.sample_weights is None else ids.sample_weights.split(sizes)
        if self._partitions is None:
            return [_whole_features(sources, lengths, values, weights) for sources in self._sources]
        by_row = self._partitions(ids)
        if ids.uniform_length >= 0:
            same = torch.full((ids.batch,), ids.uniform_length, dtype=torch.int32, device=ids.values.device)
            lengths = [same] * self._num_features
        routed = []
        for sources, has_partitions in zip(self._sources, self._has_partitions, strict=True):
            needs_lengths = lengths and (ids.uniform_length < 0 or has_partitions)
            routed.append(
                RoutedIds(
                    [lengths[f] if n is None else by_row.lengths[n] for n, f in sources]
                    if needs_lengths
                    else [],
                    [values[f] if n is None else by_row.values[n] for n, f in sources],
                    [weights[f] if n is None else by_row.sample_weights[n] for n, f in sources]
                    if weights
                    else [],
                )
            )
        return routed


def _whole_features(
    sources: Sequence[tuple[int | None, int]],
    lengths: list[Tensor],
    values: tuple[Tensor, ...],
    weights: tuple[Tensor, ...],
) -> RoutedIds:
    """What a worker is sent where all its streams take whole features."""
    features = [feature for _, feature in sources]
    return RoutedIds(
        [lengths[feature] for feature in features] if lengths else [],
        [values[feature] for feature in features],
        [weights[feature] for feature in features] if weights else [],
    )


class _PartitionedStreams:
    """All streams that take the ids of some rows only, numbered by worker and then partition."""

    def __init__(self, layout: ExchangeLayout) -> None:
        members = {
            stream: (stream[0], number)
            for number, partition in enumerate(layout.row_partitions)
            for stream in partition.streams
            if stream is not None
        }
        ordered = sorted(members, key=lambda stream: members[stream])
        self.numbers = {stream: number for number, stream in enumerate(ordered)}
        """Of (worker, stream)."""
        row_partitions = [
            CutFeature(
                partition.feature,
                partition.bounds,
                [-1 if stream is None else self.numbers[stream] for stream in partition.streams],
                partition.by_hash,
            )
            for partition in layout.row_partitions
        ]
        self._buckets = RowBuckets.of(row_partitions, len(ordered))

    def __call__(self, ids: JaggedIds) -> RoutedIds:
        """Lengths, ids and weights of every stream, by its number."""
        shared = bucketize_rows(ids.values, ids.offsets, ids.sample_weights, ids.batch, self._buckets)
        weights = () if shared.sample_weights is None else shared.sample_weights.split(shared.held)
        return RoutedIds(
            list(shared.lengths.unbind(0)), list(shared.values.split(shared.held)), list(weights)
        )
