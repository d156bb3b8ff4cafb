"""A run's tables to frozen ones: blocks of rows are encoded into their places in a file, some at a time.

Every store gives its rows as `blocks`: dense ones all of them, tiered ones those that were trained (the
others have their start values, and are encoded too), adaptive ones the columns that live, dynamic ones by raw
id.
Memory holds a block of rows and a few numbers for each row, whatever the size of the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from megalith.core.errors import DataError
from megalith.core.schema import TableSpec
from megalith.embeddings.row_block import WEIGHT, RowBlock
from megalith.embeddings.table_state import TableState
from megalith.export.manifest import FrozenTableRecord, TablePrecision
from megalith.export.tensor_file import create_tensors
from megalith.ops.frozen.encode import encode_rows
from megalith.ops.frozen.formats import RowFormat, choose_format
from megalith.ops.frozen.prefix import PrefixFormat, stored_starts
from megalith.ops.stores.start_values import start_values_

_BLOCK_BYTES = 16 << 20
_START_ROWS = 1 << 16
_LAST_ID = 2**63 - 1


@dataclass(frozen=True)
class TableSource:
    """A trained table: what it is, its rows, and of a dynamic one the row that unknown ids share."""

    spec: TableSpec
    state: TableState
    unknown: TableState | None = None

    @cached_property
    def chunk(self) -> int | None:
        """Columns of a chunk; None where rows are whole."""
        return next((shard.chunk for shard in self.state.shards), None)

    @property
    def ids(self) -> Tensor | None:
        """Of a dynamic table the ids that have a row, rising; None: an id is its row."""
        return self._listed[0]

    @property
    def unknown_row(self) -> int | None:
        """The row of ids without one; None where they read zeros."""
        return self._listed[1]

    @cached_property
    def _listed(self) -> tuple[Tensor | None, int | None]:
        """Ids and the row of all others, which stands under an id that nothing has: whoever asks for that
        one asks for an unknown id."""
        if not self.state.is_raw:
            return None, None
        known = [torch.as_tensor(block.ids) for block in self.state.blocks(_BLOCK_BYTES)]
        ids = torch.cat([torch.empty(0, dtype=torch.int64), *known]).sort().values
        if self.unknown is None:
            return ids, None
        unused = unused_id(ids, self.spec.padding_index)
        ids = torch.cat([ids, torch.tensor([unused])]).sort().values
        return ids, int(torch.searchsorted(ids, unused))

    @property
    def num_rows(self) -> int:
        """Rows that are stored."""
        return self.state.rows if self.ids is None else len(self.ids)

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Numbers of rows, int64, and their weights, float32 [rows, columns that live]; each row once, those
        without columns left out."""
        touched = torch.zeros(self.num_rows, dtype=torch.bool)
        for block in self.state.blocks(_BLOCK_BYTES):
            rows, weights = self._rows_of(block), _weights_of(block)
            touched[rows] = True
            if weights.shape[1]:
                yield rows, weights
        if self.unknown is not None:
            assert self.unknown_row is not None
            for block in self.unknown.blocks(_BLOCK_BYTES):
                yield torch.tensor([self.unknown_row]), self._live(_weights_of(block))
        elif self.ids is None and self.chunk is None:
            yield from self._untrained(touched)

    def _rows_of(self, block: RowBlock) -> Tensor:
        ids = torch.arange(block.ids.start, block.ids.stop) if isinstance(block.ids, range) else block.ids
        if self.ids is None:
            return ids
        return torch.searchsorted(self.ids, ids)

    def _live(self, weights: Tensor) -> Tensor:
        """The columns of a whole row that are stored: all, or up to the last chunk that is not zeros."""
        if self.chunk is None:
            return weights
        last = int(weights.ne(0).any(dim=0).nonzero().max()) + 1 if bool(weights.ne(0).any()) else 0
        return weights[:, : -(-last // self.chunk) * self.chunk]

    def _untrained(self, touched: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows that no block brought: they have their start values."""
        for shard in self.state.shards:
            if not shard.sparse:
                continue
            start = shard.start
            assert start is not None
            for first in range(shard.rows[0], shard.rows[1], _START_ROWS):
                last = min(first + _START_ROWS, shard.rows[1])
                missing = (~touched[first:last]).nonzero().view(-1)
                if len(missing):
                    whole = torch.empty(last - first, start.dim, dtype=start.dtype)
                    values = start_values_(whole, start, first - shard.rows[0])
                    yield missing + first, values[missing].float()


def freeze_table(source: TableSource, precision: TablePrecision, path: Path) -> FrozenTableRecord:
    """Encodes a table into a file of its own; returns what the manifest says of it."""
    spec, name = source.spec, f"table '{source.spec.name}'"
    form = choose_format((weights for _, weights in source.blocks()), precision, name)
    layout = None if source.chunk is None else PrefixFormat(form, spec.dim, source.chunk)
    starts = None if layout is None else _starts(source, layout)
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    if source.ids is not None:
        shapes[f"{spec.name}/ids"] = torch.int64, (source.num_rows,)
    if starts is None:
        row_bytes = form.row_bytes(spec.dim)
        shapes[f"{spec.name}/rows"] = torch.uint8, (source.num_rows, row_bytes)
    else:
        assert layout is not None
        shapes[f"{spec.name}/starts"] = torch.uint32, (source.num_rows + 1,)
        shapes[f"{spec.name}/rows"] = torch.uint8, (int(starts[-1]) * layout.unit,)
    tensors = create_tensors(path, shapes)
    if source.ids is not None:
        tensors[f"{spec.name}/ids"].copy_(source.ids)
    rows = tensors[f"{spec.name}/rows"]
    if starts is None:
        _fill(source, form, rows, name)
    else:
        assert layout is not None
        tensors[f"{spec.name}/starts"].copy_(stored_starts(starts, name))
        _fill_prefixes(source, layout, starts, rows, name)
    return FrozenTableRecord(
        name=spec.name,
        rows=source.num_rows,
        dim=spec.dim,
        features=spec.features,
        pooling=spec.pooling,
        padding_index=spec.padding_index,
        precision=precision,
        scale=form.scale,
        row_bytes=form.row_bytes(spec.dim) if layout is None else None,
        chunk=None if layout is None else layout.chunk,
        start_bytes=None if layout is None else layout.unit,
        ids="rows" if source.ids is None else "listed",
        unknown=source.unknown_row,
        file=path.name,
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
    )


def _fill(source: TableSource, form: RowFormat, rows: Tensor, name: str) -> None:
    written = 0
    for numbers, weights in source.blocks():
        rows[numbers] = encode_rows(weights, form, name)
        written += len(numbers)
    if written != source.num_rows:
        raise DataError(f"The checkpoint has {written:,} of {source.num_rows:,} rows of {name}.")


def _starts(source: TableSource, layout: PrefixFormat) -> Tensor:
    """Where each row begins, int64 [rows + 1], in units."""
    units = torch.zeros(source.num_rows + 1, dtype=torch.int64)
    for numbers, weights in source.blocks():
        units[numbers + 1] = layout.units(-(-weights.shape[1] // layout.chunk))
    return units.cumsum_(0)


def _fill_prefixes(
    source: TableSource, layout: PrefixFormat, starts: Tensor, rows: Tensor, name: str
) -> None:
    for numbers, weights in source.blocks():
        if weights.shape[1]:
            encoded = encode_rows(weights, layout.form, name)
            places = (starts[numbers] * layout.unit)[:, None] + torch.arange(encoded.shape[1])
            rows[places] = encoded


def unused_id(ids: Tensor, padding: int | None) -> int:
    """The highest id that is neither in a rising list nor padding."""
    taken = set(ids[-1:].tolist()) | {padding}
    candidate, row = _LAST_ID, len(ids) - 1
    while candidate in taken:
        if row >= 0 and int(ids[row]) == candidate:
            row -= 1
            taken |= set(ids[row : row + 1].tolist()) if row >= 0 else set()
        candidate -= 1
    return candidate


def _weights_of(block: RowBlock) -> Tensor:
    width = block.columns[1] - block.columns[0]
    assert block.columns[0] == 0, "tables of one process are not cut by columns"
    if not width:
        return torch.empty(len(block.ids), 0)
    weights: Tensor = block.parts[WEIGHT][0 : len(block.ids), 0:width]
    return weights.float().contiguous()
