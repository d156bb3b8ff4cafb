"""Sharing out the ids of tables whose rows are cut: one pass of the native core, and its plain twin.

    cuts = RowCuts.of([(feature, [0, 500, 1000], [0, 1])], num_streams=2)
    shared = share_rows(values, offsets, None, batch, cuts)   # streams 0 and 1: rows below 500, the rest

A family is a feature with a cut of its rows. A part of it belongs to a stream, or to nobody; no two families
have a stream in common.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.ops import native


class RowCuts(NamedTuple):
    """Who takes which rows, family by family."""

    families: Tensor
    """int64 [families, 3]: feature, first part, number of parts"""
    bounds: Tensor
    """int64 [parts]: the first row of every part"""
    streams: Tensor
    """int64 [parts]: whose it is, -1 for nobody's"""
    num_streams: int

    @classmethod
    def of(cls, families: Sequence[tuple[int, Sequence[int], Sequence[int]]], num_streams: int) -> RowCuts:
        """Of each family: its feature, the bounds of its parts (one more than there are), their streams."""
        firsts = list(itertools.accumulate((len(streams) for _, _, streams in families), initial=0))
        described = [
            (feature, first, len(streams))
            for (feature, _, streams), first in zip(families, firsts, strict=False)
        ]
        bounds = [bound for _, some, _ in families for bound in some[:-1]]
        streams = [stream for _, _, some in families for stream in some]
        return cls(
            torch.tensor(described, dtype=torch.int64).view(-1, 3),
            torch.tensor(bounds, dtype=torch.int64),
            torch.tensor(streams, dtype=torch.int64),
            num_streams,
        )


class SharedRows(NamedTuple):
    lengths: Tensor
    """int32 [streams, batch]"""
    held: list[int]
    """Ids of each stream."""
    values: Tensor
    """Stream after stream, each in the order of the batch, counted from the first row of its part."""
    sample_weights: Tensor | None


def share_rows(
    values: Tensor, offsets: Tensor, sample_weights: Tensor | None, batch: int, cuts: RowCuts
) -> SharedRows:
    """The ids of every stream, of bags n = feature * batch + sample that begin at `offsets`."""
    if values.device.type != "cpu":
        return share_rows_twin(values, offsets, sample_weights, batch, cuts)
    native.share_torch_threads()
    values, offsets = values.contiguous(), offsets.contiguous()
    given = None if sample_weights is None else sample_weights.contiguous()
    features = cuts.families[:, 0]
    edges = offsets[:: batch or 1]
    total = int((edges[features + 1] - edges[features]).sum()) if batch else 0
    lengths = torch.empty(cuts.num_streams, batch, dtype=torch.int32)
    held = torch.empty(cuts.num_streams, dtype=torch.int64)
    out = torch.empty(total, dtype=values.dtype)
    weights = None if given is None else torch.empty(total)
    native.library().mg_share_rows(
        *(values.data_ptr(), values.element_size(), None if given is None else given.data_ptr()),
        *(offsets.data_ptr(), batch, cuts.families.data_ptr(), len(cuts.families)),
        *(cuts.bounds.data_ptr(), cuts.streams.data_ptr(), cuts.num_streams),
        *(
            lengths.data_ptr(),
            held.data_ptr(),
            out.data_ptr(),
            None if weights is None else weights.data_ptr(),
        ),
    )
    counts = held.tolist()
    taken = sum(counts)
    return SharedRows(lengths, counts, out[:taken], None if weights is None else weights[:taken])


def share_rows_twin(
    values: Tensor, offsets: Tensor, sample_weights: Tensor | None, batch: int, cuts: RowCuts
) -> SharedRows:
    """The same, a stream at a time."""
    lengths = torch.zeros(cuts.num_streams, batch, dtype=torch.int32)
    pieces: list[Tensor] = [values[:0]] * cuts.num_streams
    chosen: list[Tensor] = [torch.zeros(0, dtype=torch.int64)] * cuts.num_streams
    for feature, first, count in cuts.families.tolist() if batch else ():
        edges = offsets[feature * batch : (feature + 1) * batch + 1]
        places = torch.arange(int(edges[0]), int(edges[-1]))
        sample = torch.repeat_interleave(torch.arange(batch), edges.diff())
        bounds = cuts.bounds[first : first + count]
        part = torch.searchsorted(bounds, values[places].long(), right=True) - 1
        for number, stream in enumerate(cuts.streams[first : first + count].tolist()):
            if stream >= 0:
                mine = part == number
                lengths[stream] = torch.bincount(sample[mine], minlength=batch).to(torch.int32)
                chosen[stream] = places[mine]
                pieces[stream] = (values[places[mine]] - bounds[number]).to(values.dtype)
    order = torch.cat(chosen) if chosen else torch.zeros(0, dtype=torch.int64)
    ids = torch.cat(pieces) if pieces else values[:0]
    weights = None if sample_weights is None else sample_weights[order]
    return SharedRows(lengths, [len(one) for one in pieces], ids, weights)
