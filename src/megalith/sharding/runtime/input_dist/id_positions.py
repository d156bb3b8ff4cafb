"""Where the ids of a stream stand in the batch that they came from: what comes back for them belongs there.

A stream that takes all ids of a feature has them one after the other. Where rows are cut, the ids of a
feature are sorted by part once, whatever the number of parts. Called by what sends something back for every
id: `sequence_dist.py`, `sample_weight_gradients.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.ops.ids.partitions import id_partitions
from megalith.sharding.layout.types import IdStream
from megalith.sharding.runtime.input_dist.jagged_ids import JaggedIds, ReceivedIds


class IdPositions(NamedTuple):
    """The positions of a batch's ids."""

    sizes: list[int]
    """Ids of each feature."""
    starts: list[int]
    """The first id of each feature in the batch."""
    positions: dict[IdStream, Tensor]
    """Of the streams that take some rows only: positions among the ids of their feature, rising."""

    def count(self, stream: IdStream) -> int:
        """Ids that the stream takes."""
        return self.sizes[stream.feature] if stream.rows is None else len(self.positions[stream])


class IdPositionFinder:
    """Finds the positions of the ids that some streams take."""

    def __init__(self, streams: Iterable[IdStream], num_features: int) -> None:
        self._num_features = num_features
        by_feature: dict[tuple[int, bool], set[IdStream]] = {}
        for stream in streams:
            if stream.rows is not None:
                by_feature.setdefault((stream.feature, stream.by_hash), set()).add(stream)
        self._row_streams = [(cut, sorted(some)) for cut, some in by_feature.items()]
        self._edges = {
            cut: sorted({edge for stream in some for edge in stream.rows or ()})
            for cut, some in self._row_streams
        }

    def __call__(self, ids: JaggedIds) -> IdPositions:
        """The positions of a batch of this rank."""
        ends = ids.offsets[:: ids.batch].tolist() if ids.batch else [0] * (self._num_features + 1)
        sizes = [end - start for start, end in itertools.pairwise(ends)]
        positions: dict[IdStream, Tensor] = {}
        for (feature, by_hash), streams in self._row_streams:
            values = ids.values[ends[feature] : ends[feature + 1]]
            if by_hash:
                values = id_partitions(values.long()).long()
            edges = self._edges[feature, by_hash]
            # Part n begins at edge n - 1; ids before the first edge and from the last one on are nobody's.
            part = torch.bucketize(values, torch.tensor(edges, dtype=values.dtype), right=True)
            order = torch.argsort(part, stable=True)
            begins = [0, *torch.bincount(part, minlength=len(edges) + 1).cumsum(0).tolist()]
            for stream in streams:
                assert stream.rows is not None
                first, last = (edges.index(edge) + 1 for edge in stream.rows)
                taken = order[begins[first] : begins[last]]
                positions[stream] = taken if last - first == 1 else taken.sort().values
        return IdPositions(sizes, ends[:-1], positions)


def rank_edges(received: ReceivedIds, streams: Sequence[int]) -> list[list[int]]:
    """Where the ids of each rank begin among what came, and where those of the last one end, by stream."""
    total = sum(received.batches)
    samples = torch.tensor([0, *received.batches]).cumsum(0)
    return [received.offsets[stream * total + samples].tolist() for stream in streams]
