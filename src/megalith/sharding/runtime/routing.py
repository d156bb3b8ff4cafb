"""Sharing out a batch's ids: which of them go to which worker, stream by stream.

A stream that takes all ids of a feature is a slice of the batch. Where rows are cut, all families of streams
are shared out together: one search finds the part of every id, one stable sort brings parts together.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from megalith.sharding.runtime.layout import ExchangeLayout, Stream

_FEW = 16
"""Up to here, looking for each group in turn is quicker than sorting by group."""
_MANY = 2048


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
        self._cut = _CutStreams(layout) if layout.families else None
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
        cut = None if self._cut is None else self._cut(bags, values, weights, sizes)
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
    """All streams that take the ids of some rows only, numbered by worker and then family."""

    def __init__(self, layout: ExchangeLayout) -> None:
        families = layout.families
        self._num_features = len(layout.features)
        self._features = [family.feature for family in families]
        ends = np.cumsum([0, *(family.bounds[-1] for family in families)])
        groups: dict[tuple[int, int], None] = {}
        members: dict[tuple[int, Stream], tuple[tuple[int, int], int]] = {}
        for number, family in enumerate(families):
            of_worker: dict[int, int] = {}
            for one in family.streams:
                if one is not None:
                    turn = of_worker.get(one[0], 0)
                    of_worker[one[0]] = turn + 1
                    groups[one[0], turn] = None
                    members[one] = ((one[0], turn), number)
        ordered = sorted(members, key=lambda one: members[one])
        self.numbers = {one: number for number, one in enumerate(ordered)}
        group_numbers = {group: number for number, group in enumerate(sorted(groups))}
        self._num_groups = len(group_numbers)
        # Families stand one after the other on one axis of rows; ids that nobody takes form a last group.
        edges, stream, group = [], [], []
        for start, family in zip(ends, families, strict=False):
            edges += [int(start) + bound for bound in family.bounds[:-1]]
            stream += [len(ordered) if one is None else self.numbers[one] for one in family.streams]
            group += [
                self._num_groups if one is None else group_numbers[members[one][0]] for one in family.streams
            ]
        self._starts = torch.from_numpy(ends[:-1].astype(np.int64))
        self._edges, self._stream = torch.tensor(edges), torch.tensor(stream)
        first_rows = [bound for family in families for bound in family.bounds[:-1]]
        self._first_rows = torch.tensor(first_rows)
        self._inner = [torch.tensor(family.bounds[1:-1]) for family in families]
        parts = itertools.accumulate((len(family.streams) for family in families), initial=0)
        self._first_parts = list(parts)[:-1]
        self._group = torch.tensor(group, dtype=torch.uint8 if self._num_groups < 256 else torch.int16)

    def __call__(
        self, bags: Bags, values: tuple[Tensor, ...], weights: tuple[Tensor, ...], sizes: list[int]
    ) -> Outgoing:
        """Lengths, ids and weights of every stream, by its number."""
        rows = torch.cat([values[feature] for feature in self._features])
        part = self._parts(rows, [sizes[feature] for feature in self._features])
        order = _grouped(self._group.index_select(0, part), self._num_groups)
        ids = (rows - self._first_rows.to(rows.dtype).index_select(0, part)).index_select(0, order)
        bag = self._stream.index_select(0, part).mul_(bags.batch).add_(self._sample_of_value(bags))
        num_bags = len(self.numbers) * bags.batch
        # Bags beyond these are of ids that nobody takes.
        lengths = torch.from_numpy(np.bincount(bag.numpy(), minlength=num_bags)[:num_bags])
        table = lengths.to(torch.int32).view(len(self.numbers), bags.batch)
        held = table.sum(1).tolist()
        given: tuple[Tensor, ...] = ()
        if weights:
            given = torch.cat([weights[f] for f in self._features]).index_select(0, order).split(held)
        return Outgoing(list(table.unbind(0)), list(ids.split(held)), list(given))

    def _parts(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """The part of its family that each id falls into, parts of all families counted on."""
        if len(rows) < _MANY * len(sizes):
            rows = rows + torch.repeat_interleave(self._starts, torch.tensor(sizes))
            return torch.searchsorted(self._edges, rows, right=True, out_int32=True).sub_(1)
        # With many ids a family, a call for each is quicker: its few bounds are found in fewer steps.
        part = torch.empty(len(rows), dtype=torch.int32)
        families = zip(rows.split(sizes), part.split(sizes), self._inner, self._first_parts, strict=True)
        for ids, found, inner, first in families:
            torch.bucketize(ids, inner.to(ids.dtype), right=True, out_int32=True, out=found).add_(first)
        return part

    def _sample_of_value(self, bags: Bags) -> Tensor:
        samples = torch.arange(bags.batch).repeat(len(self._features))
        if bags.uniform == 1:
            return samples
        if bags.uniform >= 0:
            return samples.repeat_interleave(bags.uniform)
        lengths = torch.diff(bags.offsets).view(self._num_features, bags.batch)[self._features]
        return samples.repeat_interleave(lengths.flatten())


def _grouped(group: Tensor, num_groups: int) -> Tensor:
    """Positions of the members of each group, group after group, each in order; the last one is left out."""
    found = group.numpy()
    if num_groups <= _FEW:
        return torch.from_numpy(np.concatenate([np.flatnonzero(found == one) for one in range(num_groups)]))
    # NumPy sorts numbers of one or two bytes by radix.
    order = np.argsort(found, kind="stable")
    return torch.from_numpy(order[: np.count_nonzero(found != num_groups)])
