"""Sharing out a batch's ids: which of them go to which worker, stream by stream.

A stream that takes all ids of a feature is a slice of the batch. Where rows are cut, the native core shares
out all partitions together (`ops/sharding/bucketize.py`).
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.ops.sharding.bucketize import RowBuckets, bucketize_rows
from megalith.sharding.layout.exchange_layout import ExchangeLayout


class Bags(NamedTuple):
    """The ids of a batch, feature-major: bag n = feature * batch + sample."""

    values: Tensor
    """As they travel: int32, or int64 where a table has more rows than that counts."""
    offsets: Tensor
    sample_weights: Tensor | None
    batch: int
    uniform: int
    """The number of ids of every bag, or -1 where bags differ."""


class Outgoing(NamedTuple):
    """What one worker is sent, stream by stream."""

    lengths: list[Tensor]
    """int32 [batch] each; empty where all bags of the batch are of one length and none is cut."""
    values: list[Tensor]
    sample_weights: list[Tensor]
    """Empty where there are none."""


class Router:
    def __init__(self, layout: ExchangeLayout) -> None:
        self._num_features = len(layout.features)
        self._streams = [worker.streams for worker in layout.workers]
        self._cut = _CutStreams(layout) if layout.row_partitions else None
        numbers = {} if self._cut is None else self._cut.numbers
        self._sources = [
            [(None, s.feature) if s.rows is None else (numbers[w, s], s.feature) for s in streams]
            for w, streams in enumerate(self._streams)
        ]
        self._has_cut = [any(stream.rows is not None for stream in streams) for streams in self._streams]

    def __call__(self, bags: Bags) -> list[Outgoing]:
        """What goes to each worker; parts of the batch itself wherever no row is cut."""
        lengths: list[Tensor] = []
        if bags.uniform >= 0:
            sizes = [bags.uniform * bags.batch] * self._num_features
        else:
            counts = torch.diff(bags.offsets).to(torch.int32)
            lengths = list(counts.view(self._num_features, bags.batch).unbind(0))
            edges = bags.offsets[:: bags.batch].tolist() if bags.batch else [0] * (self._num_features + 1)
            sizes = [after - before for before, after in itertools.pairwise(edges)]
        values = bags.values.split(sizes)
        weights = () if bags.sample_weights is None else bags.sample_weights.split(sizes)
        cut = None if self._cut is None else self._cut(bags)
        if bags.uniform >= 0 and cut is not None:
            one = torch.full((bags.batch,), bags.uniform, dtype=torch.int32, device=bags.values.device)
            lengths = [one] * self._num_features
        outgoing = []
        for worker, sources in enumerate(self._sources):
            if cut is None:
                wanted = [feature for _, feature in sources]
                pick = [lengths[f] for f in wanted] if lengths else []
                given = [weights[f] for f in wanted] if weights else []
                outgoing.append(Outgoing(pick, [values[f] for f in wanted], given))
                continue
            told = lengths and (bags.uniform < 0 or self._has_cut[worker])
            outgoing.append(
                Outgoing(
                    [lengths[f] if n is None else cut.lengths[n] for n, f in sources] if told else [],
                    [values[f] if n is None else cut.values[n] for n, f in sources],
                    [weights[f] if n is None else cut.sample_weights[n] for n, f in sources]
                    if weights
                    else [],
                )
            )
        return outgoing


class _CutStreams:
    """All streams that take the ids of some rows only, numbered by worker and then partition."""

    def __init__(self, layout: ExchangeLayout) -> None:
        members = {
            one: (one[0], number)
            for number, partition in enumerate(layout.row_partitions)
            for one in partition.streams
            if one is not None
        }
        ordered = sorted(members, key=lambda one: members[one])
        self.numbers = {one: number for number, one in enumerate(ordered)}
        row_partitions = [
            (
                partition.feature,
                partition.bounds,
                [-1 if one is None else self.numbers[one] for one in partition.streams],
            )
            for partition in layout.row_partitions
        ]
        self._buckets = RowBuckets.of(row_partitions, len(ordered))

    def __call__(self, bags: Bags) -> Outgoing:
        """Lengths, ids and weights of every stream, by its number."""
        shared = bucketize_rows(bags.values, bags.offsets, bags.sample_weights, bags.batch, self._buckets)
        weights = () if shared.sample_weights is None else shared.sample_weights.split(shared.held)
        return Outgoing(list(shared.lengths.unbind(0)), list(shared.values.split(shared.held)), list(weights))
