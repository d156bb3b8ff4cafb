"""Where the columns of shards lie in the pooled output: ranges of columns, cut, merged and ordered."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from megalith.core.schema import TableSpec
from megalith.sharding.layout.types import ColumnRange, LocalShard


def feature_columns(local: LocalShard, first_output: int) -> list[tuple[int, int]]:
    """(first column, width) in the pooled output of each feature that a shard pools.

    `first_output` is the first column of the shard's table.
    """
    table, (left, right) = local.table, local.shard.columns
    if table.pooling == "none":
        return []
    return [(first_output + number * table.dim + left, right - left) for number in range(len(local.streams))]


def elementary_columns(columns: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Ranges (first column, width), cut wherever one begins or ends, and the start of each side by side."""
    columns = set(columns)
    edges = sorted({edge for first, width in columns for edge in (first, first + width)})
    numbers = {edge: number for number, edge in enumerate(edges)}
    covered = {n for first, width in columns for n in range(numbers[first], numbers[first + width])}
    ranges = [(edges[number], edges[number + 1] - edges[number]) for number in sorted(covered)]
    starts = itertools.accumulate((width for _, width in ranges), initial=0)
    return dict(zip(ranges, starts, strict=False))


def replicated_ranges(source: int, replicated: Sequence[tuple[TableSpec, int]]) -> tuple[ColumnRange, ...]:
    """From the columns of replicated tables, side by side, to those of the pooled output.

    `replicated` has each table and its first column in the output.
    """
    starts = itertools.accumulate((table.output_dim for table, _ in replicated), initial=0)
    return merged(
        ColumnRange(source, start, output, table.output_dim)
        for start, (table, output) in zip(starts, replicated, strict=False)
        if table.output_dim
    )


def merged(ranges: Iterable[ColumnRange]) -> tuple[ColumnRange, ...]:
    """Ranges that lie side by side both at their source and in the output become one."""
    joined: list[ColumnRange] = []
    for columns in ranges:
        last = joined[-1] if joined else None
        if (
            last
            and last.source == columns.source
            and last.column + last.width == columns.column
            and last.output + last.width == columns.output
        ):
            joined[-1] = last._replace(width=last.width + columns.width)
        else:
            joined.append(columns)
    return tuple(joined)


def sum_levels(ranges: Iterable[ColumnRange]) -> tuple[tuple[ColumnRange, ...], ...]:
    """Ranges by how many sources come before them in the sum of their columns; no level repeats a column."""
    ranges = sorted(ranges)
    pieces: dict[tuple[int, int], list[ColumnRange]] = {}
    edges = sorted({edge for columns in ranges for edge in (columns.output, columns.output + columns.width)})
    numbers = {edge: number for number, edge in enumerate(edges)}
    for columns in ranges:
        for number in range(numbers[columns.output], numbers[columns.output + columns.width]):
            left, right = edges[number], edges[number + 1]
            piece = ColumnRange(columns.source, columns.column + left - columns.output, left, right - left)
            pieces.setdefault((left, right), []).append(piece)
    levels: list[list[ColumnRange]] = []
    for bounds in sorted(pieces):
        for level, piece in enumerate(pieces[bounds]):
            if level == len(levels):
                levels.append([])
            levels[level].append(piece)
    return tuple(merged(level) for level in levels)
