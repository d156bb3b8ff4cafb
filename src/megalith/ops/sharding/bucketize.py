"""The ids of row-sharded tables, bucketized by who holds the rows: one pass of the native core, and its twin.

    buckets = RowBuckets.of([CutFeature(feature, [0, 500, 1000], [0, 1])], num_streams=2)
    split = bucketize_rows(values, offsets, None, batch, buckets)   # streams: rows below 500, the others

A row partition is a feature with a cut of its table's rows into buckets; of a dynamic table, whose ids may be
any, of the 64 parts that a fixed hash cuts them into. A bucket belongs to a stream, or to nobody; no two
partitions have a stream in common.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.ops import native
from megalith.ops.ids.partitions import id_partitions
from megalith.ops.tensors import address


class CutFeature(NamedTuple):
    """A row partition: a feature, where its buckets begin and end, and who takes them."""

    feature: int
    bounds: Sequence[int]
    """Rows at which buckets begin, and where the last one ends; numbers of parts where ids are hashed."""
    streams: Sequence[int]
    """Of each bucket, -1 for nobody's."""
    by_hash: bool = False
    """Whether buckets are parts that ids are hashed into; their ids travel as they are."""


class RowBuckets(NamedTuple):
    """Who takes which rows, partition by partition."""

    partitions: Tensor
    """int64 [partitions, 4]: feature, first bucket, number of buckets, whether ids are hashed"""
    bounds: Tensor
    """int64 [buckets]: the first row of every bucket, or its first part"""
    streams: Tensor
    """int64 [buckets]: whose it is, -1 for nobody's"""
    num_streams: int

    @classmethod
    def of(cls, partitions: Sequence[CutFeature], num_streams: int) -> RowBuckets:
        """The partitions as the operator takes them."""
        firsts = itertools.accumulate((len(cut.streams) for cut in partitions), initial=0)
        described = [
            (cut.feature, first, len(cut.streams), int(cut.by_hash))
            for cut, first in zip(partitions, firsts, strict=False)
        ]
        bounds = [bound for cut in partitions for bound in cut.bounds[:-1]]
        streams = [stream for cut in partitions for stream in cut.streams]
        return cls(
            torch.tensor(described, dtype=torch.int64).view(-1, 4),
            torch.tensor(bounds, dtype=torch.int64),
            torch.tensor(streams, dtype=torch.int64),
            num_streams,
        )


class BucketizedRows(NamedTuple):
    """The ids of each stream, as they are sent."""

    lengths: Tensor
    """int32 [streams, batch]"""
    held: list[int]
    """Ids of each stream."""
    values: Tensor
    """Stream after stream, each in the order of the batch, counted from the first row of its bucket; ids that
    are hashed as they are."""
    sample_weights: Tensor | None


def bucketize_rows(
    values: Tensor, offsets: Tensor, sample_weights: Tensor | None, batch: int, buckets: RowBuckets
) -> BucketizedRows:
    """The ids of every stream, of bags n = feature * batch + sample that begin at `offsets`."""
    if values.device.type != "cpu":
        return bucketize_rows_twin(values, offsets, sample_weights, batch, buckets)
    native.share_torch_threads()
    values, offsets = values.contiguous(), offsets.contiguous()
    given = None if sample_weights is None else sample_weights.contiguous()
    features = buckets.partitions[:, 0]
    edges = offsets[:: batch or 1]
    total = int((edges[features + 1] - edges[features]).sum()) if batch else 0
    lengths = torch.empty(buckets.num_streams, batch, dtype=torch.int32)
    held = torch.empty(buckets.num_streams, dtype=torch.int64)
    out = torch.empty(total, dtype=values.dtype)
    weights = None if given is None else torch.empty(total)
    native.library().mg_bucketize_rows(
        *(values.data_ptr(), values.element_size(), address(given)),
        *(offsets.data_ptr(), batch, buckets.partitions.data_ptr(), len(buckets.partitions)),
        *(buckets.bounds.data_ptr(), buckets.streams.data_ptr(), buckets.num_streams),
        *(lengths.data_ptr(), held.data_ptr(), out.data_ptr(), address(weights)),
    )
    counts = held.tolist()
    taken = sum(counts)
    return BucketizedRows(lengths, counts, out[:taken], None if weights is None else weights[:taken])


def bucketize_rows_twin(
    values: Tensor, offsets: Tensor, sample_weights: Tensor | None, batch: int, buckets: RowBuckets
) -> BucketizedRows:
    """The same, a stream at a time."""
    lengths = torch.zeros(buckets.num_streams, batch, dtype=torch.int32)
    pieces: list[Tensor] = [values[:0]] * buckets.num_streams
    chosen: list[Tensor] = [torch.zeros(0, dtype=torch.int64)] * buckets.num_streams
    for feature, first, count, by_hash in buckets.partitions.tolist() if batch else ():
        edges = offsets[feature * batch : (feature + 1) * batch + 1]
        positions = torch.arange(int(edges[0]), int(edges[-1]))
        sample = torch.repeat_interleave(torch.arange(batch), edges.diff())
        bounds = buckets.bounds[first : first + count]
        keys = values[positions].long()
        if by_hash:
            keys = id_partitions(keys).long()
        bucket = torch.searchsorted(bounds, keys, right=True) - 1
        for number, stream in enumerate(buckets.streams[first : first + count].tolist()):
            if stream >= 0:
                mine = bucket == number
                lengths[stream] = torch.bincount(sample[mine], minlength=batch).to(torch.int32)
                chosen[stream] = positions[mine]
                start = 0 if by_hash else bounds[number]
                pieces[stream] = (values[positions[mine]] - start).to(values.dtype)
    order = torch.cat(chosen) if chosen else torch.zeros(0, dtype=torch.int64)
    ids = torch.cat(pieces) if pieces else values[:0]
    weights = None if sample_weights is None else sample_weights[order]
    return BucketizedRows(lengths, [len(piece) for piece in pieces], ids, weights)
