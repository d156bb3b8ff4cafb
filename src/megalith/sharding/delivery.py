"""Whether a plan delivers: every id of a batch reaches each column of its row once, every vector its place.

The batch is shared out by the runtime's own `Router`, as if one rank had all samples: what a sample's ids do
does not depend on the rank that has it. What arrives is then held against the tables, not against the plan:
every id of a feature has a random number, every column of the pooled output another, and over all workers
the products of what arrives where must add up to those of the whole batch. An id that is lost, doubled, sent
to a worker without its row, or whose vector lands in other columns changes the sum (modulo 2**64; a wrong
plan that leaves it alone is as likely as guessing 64 bits). Columns of sequences are counted on behind those
of the pooled output.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from megalith.core.errors import PlanError
from megalith.core.schema import TableSpec, feature_order
from megalith.sharding.planner.statistics import TableStatistics
from megalith.sharding.runtime.layout import ExchangeLayout, Holding, Run, Stream, WorkerLayout
from megalith.sharding.runtime.routing import Bags, Outgoing, Router

Numbers = NDArray[np.uint64]
Ints = NDArray[np.int64]
_CELLS = 1 << 25
"""Lengths of bags that are looked at in one go: samples x streams of all workers."""
_IDS = 1 << 22
"""Ids of a batch that is drawn."""


def generated_batch(
    tables: Sequence[TableSpec], traffic: Mapping[str, TableStatistics], samples: int, seed: int = 0
) -> tuple[Ints, Ints]:
    """`values` and `offsets` of at most so many samples, drawn as the statistics say, feature-major."""
    draw = np.random.default_rng(seed)
    samples = max(1, min(samples, int(_IDS / max(1e-9, sum(one.lookups for one in traffic.values())))))
    rows: dict[str, int] = {}
    known: dict[str, tuple[TableSpec, TableStatistics]] = {}
    for table in tables:
        for feature in table.features:
            # A feature of several tables may only hold ids that all of them have.
            rows[feature] = min(rows.get(feature, table.rows), table.rows)
            known.setdefault(feature, (table, traffic[table.name]))
    values, lengths = [], []
    for feature, (table, statistics) in known.items():
        mean = statistics.lookups / len(table.features)
        bags = np.full(samples, round(mean)) if mean == round(mean) else draw.poisson(mean, samples)
        ends = np.array((0.0, *statistics.rows))
        places = np.interp(draw.random(int(bags.sum())), (0.0, *statistics.shares), ends)
        ids = np.minimum(places.astype(np.int64), rows[feature] - 1)
        if not statistics.hot_first:
            # Hot rows lie anywhere.
            ids = (_mixed(ids) % np.uint64(rows[feature])).astype(np.int64)
        values.append(ids)
        lengths.append(bags)
    offsets = np.concatenate(([0], np.cumsum(np.concatenate(lengths))))
    return np.concatenate(values), offsets.astype(np.int64)


def most_samples(layout: ExchangeLayout) -> int:
    """Samples whose delivery can be checked within a few hundred megabytes."""
    streams = sum(len(worker.streams) for worker in layout.workers)
    return max(1, _CELLS // max(1, streams))


def check_delivery(
    tables: Sequence[TableSpec], layout: ExchangeLayout, values: Ints, offsets: Ints
) -> NDArray[np.int64]:
    """Refuses a layout that loses, doubles or misplaces an id or a vector; returns ids by worker."""
    features = feature_order(tables)
    batch = (len(offsets) - 1) // len(features)
    wide = any(table.rows > 1 << 31 for table in tables)
    bags = Bags(
        torch.from_numpy(values).to(torch.int64 if wide else torch.int32),
        torch.from_numpy(offsets),
        None,
        batch,
        -1,
    )
    draw = np.random.default_rng(12345)
    samples = draw.integers(0, 2**63, batch, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    starts_of_sequences = _sequence_starts(layout)
    num_columns = starts_of_sequences[-1]
    columns = draw.integers(0, 2**63, num_columns, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    before = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(columns)))
    whole = _feature_numbers(values, offsets, len(features), batch, samples)
    expected, starts = _expected(tables, features, whole, before)
    found = dict.fromkeys(expected, 0)
    looked_up = np.zeros(layout.world_size, dtype=np.int64)
    owners = _Owners(starts)
    for worker, outgoing in enumerate(Router(layout)(bags)):
        held = layout.workers[worker]
        numbers, counts = _stream_numbers(worker, held, outgoing, samples)
        looked_up[worker] = sum(counts[stream] for one in held.holdings for stream in one.streams)
        for stream, output, width in _places(layout, worker):
            here = int(before[output + width]) - int(before[output])
            found[owners.of(output)] += numbers[stream] * here
        for sequence, stream, (left, right) in held.pieces:
            start = starts_of_sequences[sequence]
            here = int(before[start + right]) - int(before[start + left])
            found[layout.sequences[sequence][0].name] += numbers[stream] * here
    _add_replicated(layout, features, whole, before, starts, found)
    for (table, feature), start in zip(layout.sequences, starts_of_sequences, strict=False):
        here = whole[features.index(feature)] * (int(before[start + table.dim]) - int(before[start]))
        expected[table.name] += here
        # Every worker looks up in its own copy what its samples ask for.
        found[table.name] += here if table in layout.replicated else 0
    for table in tables:
        if (found[table.name] - expected[table.name]) % 2**64:
            raise PlanError(
                f"Under this plan ids of table '{table.name}' do not reach each column of their rows exactly "
                "once; make the plan again with `megalith plan`."
            )
    _check_output(layout)
    return looked_up


def _sequence_starts(layout: ExchangeLayout) -> list[int]:
    """The first column of each sequence, and the end of all."""
    dims = (table.dim for table, _ in layout.sequences)
    return list(accumulate(dims, initial=layout.output_dim))


class _Owners:
    """Which table a column of the pooled output belongs to."""

    def __init__(self, starts: Mapping[str, int]) -> None:
        # Tables without columns of their own begin where the next one does.
        ordered = sorted(starts.items(), key=lambda one: one[1])
        self._names, self._starts = [name for name, _ in ordered], [start for _, start in ordered]

    def of(self, output: int) -> str:
        return self._names[bisect_right(self._starts, output) - 1]


def _mixed(numbers: NDArray[np.int64]) -> Numbers:
    """Random numbers of ids (the finalizer of splitmix64)."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _sums(numbers: Numbers, sizes: Ints) -> list[int]:
    """Of consecutive pieces, modulo 2**64."""
    ends = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(numbers)))
    places = np.concatenate(([0], np.cumsum(sizes)))
    total: list[int] = (ends[places[1:]] - ends[places[:-1]]).tolist()
    return total


def _feature_numbers(values: Ints, offsets: Ints, features: int, batch: int, samples: Numbers) -> list[int]:
    lengths = np.diff(offsets)
    numbers = _mixed(values) * np.repeat(np.tile(samples, features), lengths)
    return _sums(numbers, lengths.reshape(features, batch).sum(axis=1))


def _stream_numbers(
    worker: int, held: WorkerLayout, outgoing: Outgoing, samples: Numbers
) -> tuple[dict[Stream, int], dict[Stream, int]]:
    """The numbers and the counts of what arrives at a worker; ids outside its rows are refused."""
    if not held.streams:
        return {}, {}
    lengths = torch.stack(outgoing.lengths).numpy()
    values = torch.cat(outgoing.values).numpy().astype(np.int64)
    sizes = lengths.sum(axis=1, dtype=np.int64)
    limits = _limits(held.holdings)
    limit = np.repeat([limits[stream] for stream in held.streams], sizes)
    outside = np.flatnonzero((values < 0) | (values >= limit))
    if len(outside):
        number = int(np.searchsorted(np.cumsum(sizes), outside[0], side="right"))
        holding = next(one for one in held.holdings if held.streams[number] in one.streams)
        raise PlanError(
            f"Under this plan worker {worker} is sent id {int(values[outside[0]])} for {holding.name}, which "
            "it does not hold; make the plan again with `megalith plan`."
        )
    first = np.array([0 if stream.rows is None else stream.rows[0] for stream in held.streams])
    numbers = _mixed(values + np.repeat(first, sizes))
    numbers *= np.repeat(np.tile(samples, len(held.streams)), lengths.reshape(-1))
    return (
        dict(zip(held.streams, _sums(numbers, sizes), strict=True)),
        dict(zip(held.streams, sizes.tolist(), strict=True)),
    )


def _limits(holdings: Iterable[Holding]) -> dict[Stream, int]:
    """Ids of a stream must lie below: the fewest rows of what is looked up with it."""
    limits: dict[Stream, int] = {}
    for holding in holdings:
        for stream in holding.streams:
            limits[stream] = min(limits.get(stream, holding.shard.num_rows), holding.shard.num_rows)
    return limits


def _places(layout: ExchangeLayout, worker: int) -> Iterable[tuple[Stream, int, int]]:
    """Stream, first output column and width of every piece of what a worker looks up, as the runs say."""
    held = layout.workers[worker]
    node = layout.nodes[layout.node_of(worker)]
    outwards = sorted(node.runs, key=lambda run: run.column)
    direct = sorted(held.direct_runs, key=lambda run: run.column)
    inside = sorted(held.node_runs, key=lambda run: run.column)
    column = node_column = 0
    for holding in held.holdings:
        if holding.table.pooling == "none":
            continue
        for stream in holding.streams:
            width = holding.shard.dim
            if not holding.in_node:
                for output, part in _through(direct, column, width):
                    yield stream, output, part
                column += width
                continue
            for middle, part in _through(inside, node_column, width):
                for output, piece in _through(outwards, middle, part):
                    yield stream, output, piece
            node_column += width


def _through(runs: Sequence[Run], column: int, width: int) -> Iterable[tuple[int, int]]:
    """Where columns go: the outputs and widths of the runs that take them."""
    at = max(0, bisect_right(runs, column, key=lambda run: run.column) - 1)
    for run in runs[at:]:
        left, right = max(column, run.column), min(column + width, run.column + run.width)
        if run.column >= column + width:
            return
        if right > left:
            yield run.output + left - run.column, right - left


def _expected(
    tables: Sequence[TableSpec], features: Sequence[str], whole: Sequence[int], before: Numbers
) -> tuple[dict[str, int], dict[str, int]]:
    """What must arrive for every table that pools, and the first output column of each."""
    positions = {feature: position for position, feature in enumerate(features)}
    expected, starts, output = {}, {}, 0
    for table in tables:
        starts[table.name], total = output, 0
        if table.pooling != "none":
            for feature in table.features:
                here = int(before[output + table.dim]) - int(before[output])
                total += whole[positions[feature]] * here
                output += table.dim
        expected[table.name] = total
    return expected, starts


def _add_replicated(
    layout: ExchangeLayout,
    features: Sequence[str],
    whole: Sequence[int],
    before: Numbers,
    starts: Mapping[str, int],
    found: dict[str, int],
) -> None:
    """Tables that every worker has: each looks up what its own samples ask for."""
    positions = {feature: position for position, feature in enumerate(features)}
    runs = sorted(layout.replicated_runs, key=lambda run: run.column)
    owners, column = _Owners(starts), 0
    for table in layout.replicated:
        if table.pooling == "none":
            continue
        for feature in table.features:
            for output, width in _through(runs, column, table.dim):
                here = int(before[output + width]) - int(before[output])
                found[owners.of(output)] += whole[positions[feature]] * here
            column += table.dim


def _check_output(layout: ExchangeLayout) -> None:
    """Level 0 fills the pooled output from end to end."""
    at = 0
    for run in sorted(layout.levels[0] if layout.levels else (), key=lambda run: run.output):
        if run.output != at:
            break
        at += run.width
    if at != layout.output_dim:
        raise PlanError(
            f"Under this plan nobody sends column {at} of the {layout.output_dim} of the pooled output; make "
            "the plan again with `megalith plan`."
        )
