"""`TableState`: what a checkpoint takes of a table, and gives back: rows by their global ids.

    state.blocks(64 << 20)    # the rows that this process writes, a bounded number at a time
    state.load(block)         # takes what it holds of a block, whoever wrote it and however it was cut

A table may lie in this process whole, in rectangles, or not at all. Since rows travel under their ids, what
any number of processes saved under any plan loads on any other number under any other plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from megalith.core.schema import TableSpec
from megalith.embeddings.optimizers import RowOptimizer

WEIGHT = "weight"


class PartSpec(NamedTuple):
    """The weight of a table, or a part of its optimizer's state."""

    dtype: torch.dtype
    per: Literal["element", "row"]
    """Whether a row has a number for every column, or one."""


def part_specs(table: TableSpec, optimizer: RowOptimizer) -> dict[str, PartSpec]:
    """The parts of a table under an optimizer: `weight`, and `first` and `second` where it keeps them."""
    specs = {WEIGHT: PartSpec(getattr(torch, table.dtype), "element")}
    for name, shape in (("first", optimizer.first_state), ("second", optimizer.second_state)):
        if shape != "none":
            specs[name] = PartSpec(torch.float32, "element" if shape == "full" else "row")
    return specs


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a table, all of their columns or a range of them."""

    ids: range | Tensor
    """Global ids, rising: a run of them, or int64 [rows]."""
    columns: tuple[int, int]
    parts: Mapping[str, Any]
    """By name, tensors or what can be sliced like one: [rows, columns], or [rows] for one number a row. Parts
    with one number a row are in the block that has the row's first column."""


@dataclass(frozen=True)
class TableShard:
    """A rectangle of a table that lies in this process."""

    first_row: int
    first_column: int
    parts: dict[str, Tensor]
    writes: bool = True
    """Whether a checkpoint takes the rectangle from here; of copies exactly one process writes."""

    @property
    def rows(self) -> tuple[int, int]:
        """First row, and the one behind the last."""
        return self.first_row, self.first_row + self.parts[WEIGHT].shape[0]

    @property
    def columns(self) -> tuple[int, int]:
        """First column, and the one behind the last."""
        return self.first_column, self.first_column + self.parts[WEIGHT].shape[1]


@dataclass(frozen=True)
class TableState:
    """One logical table, of which this process holds some rectangles."""

    rows: int
    dim: int
    parts: dict[str, PartSpec]
    """The weight first, then the optimizer's state."""
    shards: tuple[TableShard, ...]

    def __post_init__(self) -> None:
        for shard in self.shards:
            (first, last), (left, right) = shard.rows, shard.columns
            if not (0 <= first <= last <= self.rows and 0 <= left <= right <= self.dim):
                raise ValueError(
                    f"a shard {shard.rows} x {shard.columns} outside of {self.rows} x {self.dim}"
                )
            for name, (dtype, per) in self.parts.items():
                shape = (last - first, right - left) if per == "element" else (last - first,)
                part = shard.parts[name]
                if tuple(part.shape) != shape or part.dtype != dtype:
                    raise ValueError(f"'{name}' of a shard is {part.dtype} {tuple(part.shape)}, not {shape}")

    def snapshot(self) -> TableState:
        """A copy of what this process writes, to be saved while training goes on."""
        copies = [
            replace(shard, parts={name: part.clone() for name, part in shard.parts.items()})
            for shard in self.shards
            if shard.writes
        ]
        return replace(self, shards=tuple(copies))

    def blocks(self, max_bytes: int) -> Iterator[RowBlock]:
        """What this process writes, in blocks of at most about `max_bytes`, at least a row each."""
        for shard in self.shards:
            (first, last), (left, right) = shard.rows, shard.columns
            if not shard.writes or first == last or left == right:
                continue
            kept = {name: part for name, part in shard.parts.items() if self._belongs(name, left)}
            row_bytes = sum(part[:1].numel() * part.element_size() for part in kept.values())
            step = max(1, max_bytes // row_bytes)
            for begin in range(first, last, step):
                end = min(begin + step, last)
                rows = slice(begin - first, end - first)
                yield RowBlock(
                    range(begin, end), shard.columns, {name: part[rows] for name, part in kept.items()}
                )

    def load(self, block: RowBlock) -> int:
        """Takes what it holds of a block; returns the numbers that it has taken."""
        return sum(self._load_shard(shard, block) for shard in self.shards)

    @property
    def held_numbers(self) -> int:
        """What all blocks of a checkpoint together have to bring."""
        return sum(part.numel() for shard in self.shards for part in shard.parts.values())

    def _belongs(self, name: str, first_column: int) -> bool:
        return self.parts[name].per == "element" or first_column == 0

    def _load_shard(self, shard: TableShard, block: RowBlock) -> int:
        rows, targets = _rows_within(block.ids, shard.rows)
        if rows.start >= rows.stop:
            return 0
        left = max(block.columns[0], shard.columns[0])
        right = min(block.columns[1], shard.columns[1])
        taken = 0
        for name, target in shard.parts.items():
            if self.parts[name].per == "row":
                if block.columns[0] != 0:
                    continue
                values = block.parts[name][rows]
            elif left < right:
                values = block.parts[name][rows, left - block.columns[0] : right - block.columns[0]]
                target = target[:, left - shard.columns[0] : right - shard.columns[0]]
            else:
                continue
            if isinstance(targets, slice):
                target[targets].copy_(values)
            else:
                target[targets.to(target.device)] = values.to(target.device)
            taken += values.numel()
        return taken


def _rows_within(ids: range | Tensor, rows: tuple[int, int]) -> tuple[slice, slice | Tensor]:
    """Which rows of a block lie in a range of a table's, and where in it: positions, or a run of them."""
    if isinstance(ids, range):
        first, last = max(ids.start, rows[0]), min(ids.stop, rows[1])
        return slice(first - ids.start, last - ids.start), slice(first - rows[0], last - rows[0])
    first, last = torch.searchsorted(ids, torch.tensor(rows)).tolist()
    return slice(first, last), ids[first:last] - rows[0]
