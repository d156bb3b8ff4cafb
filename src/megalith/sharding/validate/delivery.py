"""Whether a plan delivers: every id of a batch reaches each column of its row once, every vector its columns.

The batch is routed by the runtime's `IdRouter`, as if one rank had all samples: what a sample's ids do
does not depend on the rank that has it. What arrives is then held against the tables, not against the plan:
every id of a feature has a random number, every column of the pooled output another, and over all workers
the products of what arrives where must add up to those of the whole batch. An id that is lost, doubled, sent
to a worker without its row, or whose vector lands in other columns changes the sum (modulo 2**64; a wrong
plan that leaves it alone is as likely as guessing 64 bits). Columns of sequences are counted on behind those
of the pooled output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from megalith.core.errors import PlanError
from megalith.core.schema import TableSpec, feature_order
from megalith.core.store_spec import ID_PARTITIONS
from megalith.ops.ids.partitions import id_partitions
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.layout.types import ColumnRange, WorkerLayout
from megalith.sharding.runtime.input_dist.jagged_ids import JaggedIds, RoutedIds, id_dtype
from megalith.sharding.runtime.input_dist.routing import IdRouter
from megalith.sharding.validate.batches import mixed_bits
from megalith.sharding.wire_format import has_wide_ids

Numbers = NDArray[np.uint64]
Ints = NDArray[np.int64]
_CELLS = 1 << 25
"""Lengths of bags that are looked at in one go: samples x streams of all workers."""


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
    bags = JaggedIds(
        torch.from_numpy(values).to(id_dtype(has_wide_ids(tables))),
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
    expected = _expected(tables, features, whole, before)
    delivered = dict.fromkeys(expected, 0)
    looked_up = np.zeros(layout.world_size, dtype=np.int64)
    order = {table.name: number for number, table in enumerate(tables)}
    arrived = np.zeros(len(tables), dtype=np.uint64)
    for worker, outgoing in enumerate(IdRouter(layout)(bags)):
        held = layout.workers[worker]
        use = _StreamUses(held, order)
        numbers, sizes = _stream_numbers(worker, held, use, outgoing, samples)
        looked_up[worker] = sizes[use.stream].sum()
        use.add_arrived(arrived, numbers, *_column_numbers(layout, worker, columns))
        for sequence, stream, (left, right) in held.pieces:
            start = starts_of_sequences[sequence]
            here = int(before[start + right]) - int(before[start + left])
            delivered[layout.sequences[sequence][0].name] += int(numbers[use.numbers[stream]]) * here
    for name, number in order.items():
        delivered[name] += int(arrived[number])
    _add_replicated(layout, features, whole, columns, delivered)
    for (table, feature), start in zip(layout.sequences, starts_of_sequences, strict=False):
        here = whole[features.index(feature)] * (int(before[start + table.dim]) - int(before[start]))
        expected[table.name] += here
        # Every worker looks up in its own copy what its samples ask for.
        delivered[table.name] += here if table in layout.replicated else 0
    for table in tables:
        if (delivered[table.name] - expected[table.name]) % 2**64:
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


class _StreamUses:
    """What a worker does with its streams, as arrays: one entry for each local shard and stream of it."""

    def __init__(self, held: WorkerLayout, order: Mapping[str, int]) -> None:
        self.numbers = {stream: number for number, stream in enumerate(held.streams)}
        local_shards = held.local_shards
        repeats = [len(local.streams) for local in local_shards]
        self.stream = np.array(
            [self.numbers[stream] for shard in local_shards for stream in shard.streams], dtype=np.int64
        )
        facts = np.array(
            [
                (*local.shard.rows, *local.shard.columns, order[local.table.name], local.in_node)
                for local in local_shards
                if local.streams
            ],
            dtype=np.int64,
        ).reshape(-1, 6)
        first, last, left, right, self.table, in_node = np.repeat(facts, [n for n in repeats if n], axis=0).T
        self.rows, self.width = last - first, right - left
        pooled = np.array([local.table.pooling != "none" for local in local_shards], dtype=bool)
        self.pooled = np.repeat(pooled, repeats)
        self.in_node = in_node.astype(bool)
        dynamic = np.array([local.table.is_dynamic for local in local_shards], dtype=bool)
        self.is_dynamic = np.repeat(dynamic, repeats)

    def add_arrived(self, arrived: Numbers, numbers: Numbers, direct: Numbers, in_node: Numbers) -> None:
        """Adds what reaches the pooled output to the tables' sums: numbers of ids times those of columns."""
        for column_numbers, mine in ((direct, ~self.in_node), (in_node, self.in_node)):
            chosen = np.flatnonzero(self.pooled & mine)
            ends = np.cumsum(self.width[chosen])
            before = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(column_numbers)))
            last = len(column_numbers)
            here = before[np.minimum(ends, last)] - before[np.minimum(ends - self.width[chosen], last)]
            np.add.at(arrived, self.table[chosen], numbers[self.stream[chosen]] * here)


def _sums(numbers: Numbers, sizes: Ints) -> Numbers:
    """Of consecutive pieces, modulo 2**64."""
    ends = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(numbers)))
    edges = np.concatenate(([0], np.cumsum(sizes)))
    return np.asarray(ends[edges[1:]] - ends[edges[:-1]])


def _feature_numbers(values: Ints, offsets: Ints, features: int, batch: int, samples: Numbers) -> list[int]:
    lengths = np.diff(offsets)
    numbers = mixed_bits(values) * np.repeat(np.tile(samples, features), lengths)
    total: list[int] = _sums(numbers, lengths.reshape(features, batch).sum(axis=1)).tolist()
    return total


def _stream_numbers(
    worker: int, held: WorkerLayout, use: _StreamUses, outgoing: RoutedIds, samples: Numbers
) -> tuple[Numbers, Ints]:
    """The numbers and the counts of what arrives at a worker, by stream; ids outside its rows are refused."""
    if not held.streams:
        return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
    lengths = torch.stack(outgoing.lengths).numpy()
    values = torch.cat(outgoing.values).numpy().astype(np.int64)
    sizes = lengths.sum(axis=1, dtype=np.int64)
    # Ids of a stream must lie below the fewest rows of what is looked up with it; those of dynamic tables may
    # be any of their partitions.
    limits = np.full(len(held.streams), np.iinfo(np.int64).max)
    np.minimum.at(limits, use.stream, use.rows)
    is_raw = np.ones(len(held.streams), dtype=bool)
    np.logical_and.at(is_raw, use.stream, use.is_dynamic)
    bad = ~np.repeat(is_raw, sizes) & ((values < 0) | (values >= np.repeat(limits, sizes)))
    if any(stream.by_hash for stream in held.streams):
        partitions = id_partitions(torch.from_numpy(values)).numpy()
        edges = [stream.rows if stream.by_hash else None for stream in held.streams]
        first_last = np.array([edge or (0, ID_PARTITIONS) for edge in edges])
        bad |= (partitions < np.repeat(first_last[:, 0], sizes)) | (
            partitions >= np.repeat(first_last[:, 1], sizes)
        )
    outside = np.flatnonzero(bad)
    if len(outside):
        number = int(np.searchsorted(np.cumsum(sizes), outside[0], side="right"))
        local = next(shard for shard in held.local_shards if held.streams[number] in shard.streams)
        raise PlanError(
            f"Under this plan worker {worker} is sent id {int(values[outside[0]])} for {local.name}, which "
            "it does not hold; make the plan again with `megalith plan`."
        )
    first = np.array([stream.first_id for stream in held.streams])
    numbers = mixed_bits(values + np.repeat(first, sizes))
    numbers *= np.repeat(np.tile(samples, len(held.streams)), lengths.reshape(-1))
    return _sums(numbers, sizes), sizes


def _column_numbers(layout: ExchangeLayout, worker: int, columns: Numbers) -> tuple[Numbers, Numbers]:
    """Of the columns that a worker looks up, the numbers of the outputs where the spans take them: those that
    it sends itself, and those that its node adds up first."""
    held, node = layout.workers[worker], layout.nodes[layout.node_of(worker)]
    in_node = _carried(held.node_columns, _carried(node.spans, columns)) if held.node_columns else columns[:0]
    return _carried(held.direct_columns, columns), in_node


def _carried(spans: Sequence[ColumnRange], outputs: Numbers) -> Numbers:
    """Numbers of outputs at the columns that spans take there; where several spans do, their sum."""
    end = max((span.column + span.width for span in spans), default=0)
    numbers = np.zeros(end, dtype=np.uint64)
    for span in spans:
        numbers[span.column : span.column + span.width] += outputs[span.output : span.output + span.width]
    return numbers


def _expected(
    tables: Sequence[TableSpec], features: Sequence[str], whole: Sequence[int], before: Numbers
) -> dict[str, int]:
    """What must arrive for every table that pools."""
    positions = {feature: position for position, feature in enumerate(features)}
    expected, output = {}, 0
    for table in tables:
        total = 0
        if table.pooling != "none":
            for feature in table.features:
                here = int(before[output + table.dim]) - int(before[output])
                total += whole[positions[feature]] * here
                output += table.dim
        expected[table.name] = total
    return expected


def _add_replicated(
    layout: ExchangeLayout,
    features: Sequence[str],
    whole: Sequence[int],
    columns: Numbers,
    delivered: dict[str, int],
) -> None:
    """Tables that every worker has: each looks up what its own samples ask for."""
    positions = {feature: position for position, feature in enumerate(features)}
    numbers = _carried(layout.replicated_columns, columns)
    before = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(numbers)))
    column = 0
    for table in layout.replicated:
        if table.pooling == "none":
            continue
        for feature in table.features:
            end = min(column + table.dim, len(numbers))
            here = int(before[end]) - int(before[min(column, end)])
            delivered[table.name] += whole[positions[feature]] * here
            column += table.dim


def _check_output(layout: ExchangeLayout) -> None:
    """Level 0 fills the pooled output from end to end."""
    at = 0
    for span in sorted(layout.levels[0] if layout.levels else (), key=lambda span: span.output):
        if span.output != at:
            break
        at += span.width
    if at != layout.output_dim:
        raise PlanError(
            f"Under this plan nobody sends column {at} of the {layout.output_dim} of the pooled output; make "
            "the plan again with `megalith plan`."
        )
