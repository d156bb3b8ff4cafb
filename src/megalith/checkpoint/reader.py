"""Fills a state dictionary from the files of a checkpoint, each rank from those that hold its rows."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megalith.checkpoint.differential.chain import ChainLink
from megalith.checkpoint.differential.chain_reader import (
    ReadBlock,
    SavedTable,
    changed_rows,
    leaves_rows,
    newest_rows,
)
from megalith.checkpoint.differential.row_codec import CODES, QuantisedPart, code_bytes
from megalith.checkpoint.manifest import DENSE_FILE, BlockRecord, Manifest, SparseRecord, TableRecord
from megalith.checkpoint.pool_reader import PoolReader
from megalith.checkpoint.state import StateMismatch, leaves_of, put_values
from megalith.checkpoint.tensor_file import TensorFile
from megalith.core.errors import CheckpointError
from megalith.embeddings.row_block import GROWTH, UTILITY, WEIGHT, PartSpec, Rectangle, RowBlock
from megalith.embeddings.stores.row_files import AdoptedFiles, RowPool, StartRecord
from megalith.embeddings.table_state import TableShard, TableState

OpenFile = Callable[[str], TensorFile]


def read_into(
    state: dict[str, Any], chain: Sequence[ChainLink], fix: str = "use another checkpoint"
) -> dict[RowPool, AdoptedFiles]:
    """Fills `state` in place from a checkpoint and what it is over, newest first. What the state asks for
    must be there, in its shape; the rest is left alone.

    `fix` ends the sentence about a damaged file. Returns the segment files that pools have taken.
    """
    leaves = leaves_of(state)
    folder, manifest = chain[0]
    links = [_OpenLink(link, cache(partial(_open, link.folder))) for link in chain]
    open_file = links[0].open_file
    try:
        missing = [path for path, table in leaves.tables.items() if _is_missing(path, table, manifest)]
        for path, table in leaves.tables.items():
            if path not in missing:
                _compare(path, table, manifest.tables.get(path))
        dense = {path: _dense(path, tensor, manifest, open_file) for path, tensor in leaves.tensors.items()}
        put_values(state, manifest.values)
    except StateMismatch as error:
        raise CheckpointError(
            f"{folder} was saved by another model ({error}); load it with the recipe that made it."
        ) from error
    with torch.no_grad():
        for path, tensor in leaves.tensors.items():
            tensor.copy_(dense[path])
        pools = PoolReader(chain[-1].folder, chain[-1].manifest.pools, fix)
        adopted = pools.adopt(leaves.tables)
        for path in missing:
            for shard in leaves.tables.pop(path).shards:
                shard.clear()
        tables = {path: _without(table, adopted) for path, table in leaves.tables.items()}
        in_pools = {path for pool in chain[-1].manifest.pools for path in pool.paths if path is not None}
        for path, table in tables.items():
            deltas, base = _saved_tables(path, table, links[:-1]), _saved_tables(path, table, links[-1:])
            _reset(table, (base or deltas)[-1].record)
            if leaves_rows([*deltas, *base]):
                for block in newest_rows([*deltas, *base]):
                    table.load(block)
                continue
            if base:
                _read_table(table, links[-1], path)
            if path not in in_pools:
                _lay_over(table, deltas)
        pools.load(tables)
        for path in set(tables) & in_pools:
            _lay_over(leaves.tables[path], _saved_tables(path, leaves.tables[path], links[:-1]))
    return adopted


class _OpenLink(NamedTuple):
    """A checkpoint of a chain with its files, opened once each."""

    link: ChainLink
    open_file: OpenFile


def _open(folder: Path, name: str) -> TensorFile:
    return TensorFile(folder / name)


def _saved_tables(path: str, table: TableState, links: Sequence[_OpenLink]) -> list[SavedTable]:
    """A table as the checkpoints of a chain have it, newest first; of an optional one those in its shape."""
    found = []
    for (_, manifest), open_file in links:
        record = manifest.tables.get(path)
        if record is not None and not _is_missing(path, table, manifest):
            found.append(SavedTable(record, partial(_table_blocks, table, record, open_file)))
    return found


def _table_blocks(
    table: TableState, record: TableRecord, open_file: OpenFile
) -> Iterator[tuple[RowBlock, bool]]:
    for block in record.blocks:
        if _holds(table, block):
            yield _block(table, block, open_file, record.chunk), block.deleted


def _lay_over(table: TableState, deltas: Sequence[SavedTable]) -> None:
    """Loads what the deltas of a chain change, newest first."""
    for block in changed_rows(deltas):
        table.load(block)


def saved_table(record: TableRecord) -> TableState:
    """A table of a checkpoint as its manifest describes it; it holds no row."""
    parts = {name: PartSpec(getattr(torch, part.dtype), part.per) for name, part in record.parts.items()}
    return TableState(record.rows, record.dim, parts, (), is_raw=record.is_raw)


def saved_blocks(chain: Sequence[ChainLink], path: str) -> Iterator[RowBlock]:
    """The blocks of a table, each row as the newest checkpoint has it; parts are read when sliced."""
    table = saved_table(chain[0].manifest.tables[path])
    saved = []
    for folder, manifest in chain:
        record = manifest.tables.get(path)
        if record is not None:

            def blocks(record: TableRecord = record, folder: Path = folder) -> Iterator[ReadBlock]:
                for block in record.blocks:
                    yield _block(table, block, partial(_open, folder), record.chunk), block.deleted

            saved.append(SavedTable(record, blocks))
    yield from newest_rows(saved)


def _without(table: TableState, adopted: Container[RowPool]) -> TableState:
    """What is left to be filled of a table when some pools have taken files as they are."""
    left = (shard for shard in table.shards if shard.files is None or shard.files.pool not in adopted)
    return replace(table, shards=tuple(left))


def _is_missing(path: str, table: TableState, manifest: Manifest) -> bool:
    """Whether the checkpoint lacks a table that it may lack, or has it in another shape."""
    record = manifest.tables.get(path)
    is_other = record is None or (record.rows, record.dim) != (table.rows, table.dim)
    return table.optional and is_other


def _reset(table: TableState, record: TableRecord) -> None:
    """Start values, or zeros, for what the checkpoint leaves out or a shard leaves out in turn."""
    for shard in table.shards:
        if record.chunk is not None:
            shard.clear()
        elif shard.sparse or any(_share_rows(shard, rectangle) for rectangle in record.sparse):
            shard.reset()


def _share_rows(shard: TableShard, rectangle: SparseRecord) -> bool:
    return shard.rows[0] < rectangle.rows[1] and rectangle.rows[0] < shard.rows[1]


def _compare(path: str, table: TableState, record: TableRecord | None) -> None:
    if record is None:
        raise StateMismatch(f"it has no table '{path}'")
    if record.is_raw != table.is_raw:
        raise StateMismatch(
            f"table '{path}' is {'dynamic' if record.is_raw else 'not dynamic'} there and "
            f"{'dynamic' if table.is_raw else 'not dynamic'} here"
        )
    if (0 if table.is_raw else record.rows, record.dim) != (0 if table.is_raw else table.rows, table.dim):
        raise StateMismatch(
            f"table '{path}' is {record.rows} x {record.dim} there and {table.rows} x {table.dim} here"
        )
    ours = {name: (str(spec.dtype).removeprefix("torch."), spec.per) for name, spec in table.parts.items()}
    theirs = {name: (part.dtype, part.per) for name, part in record.parts.items()}
    if ours != theirs:
        raise StateMismatch(f"table '{path}' keeps {_listed(theirs)} there and {_listed(ours)} here")
    for shard in table.shards:
        for rectangle in record.sparse:
            if not _share_rows(shard, rectangle):
                continue
            if rectangle.chunk is not None and shard.chunk is None:
                # Zeros, wherever they are loaded.
                continue
            if rectangle.chunk != shard.chunk and None not in (rectangle.chunk, shard.chunk):
                raise StateMismatch(
                    f"rows of table '{path}' are in chunks of {rectangle.chunk} there and {shard.chunk} here"
                )
            if shard.start is None:
                raise StateMismatch(f"it lacks untrained rows of table '{path}', unknown here")
            if StartRecord.of(shard.start) != rectangle.start:
                raise StateMismatch(f"untrained rows of table '{path}' have another seed or init_scale there")


def _dense(path: str, tensor: Tensor, manifest: Manifest, open_file: OpenFile) -> Tensor:
    if path not in manifest.tensors:
        raise StateMismatch(f"it has no tensor '{path}'")
    stored = open_file(DENSE_FILE).tensor(path)
    if stored.shape != tensor.shape or stored.dtype != tensor.dtype:
        there, here = (f"{each.dtype} {tuple(each.shape)}" for each in (stored, tensor))
        raise StateMismatch(f"'{path}' is {there} there and {here} here")
    return stored


def _read_table(table: TableState, base: _OpenLink, path: str) -> None:
    """Loads all that a whole checkpoint has of a table in blocks."""
    (folder, manifest), open_file = base
    record = manifest.tables[path]
    taken = 0
    for block in record.blocks:
        if _holds(table, block):
            numbers = table.load(_block(table, block, open_file, record.chunk))
            taken += 0 if block.sparse else numbers
    # A dynamic table holds any number of ids up to its bound.
    if not table.is_raw and taken != table.held_numbers(
        Rectangle(sparse.rows, sparse.columns) for sparse in record.sparse
    ):
        raise CheckpointError(
            f"{folder} lacks rows of table '{path}'; go back to an older checkpoint with --from-step."
        )


def _holds(table: TableState, block: BlockRecord) -> bool:
    """Whether this rank may hold a row of the block; files without one are not opened."""
    if block.first is None:
        return bool(table.shards)
    first, last = block.first, block.first + block.count
    return any(first < shard.rows[1] and shard.rows[0] < last for shard in table.shards)


def _block(table: TableState, record: BlockRecord, open_file: OpenFile, chunk: int | None) -> RowBlock:
    """A block whose parts are read when they are sliced."""
    file = open_file(record.file)
    left, right = record.columns
    # Rows that are cut into chunks may have none.
    inside = 0 <= left < right <= table.dim or (chunk is not None and left == right == 0)
    inside |= record.deleted
    ids: range | Tensor
    if record.first is None:
        ids = file.tensor(f"{record.name}/ids")
        # Compared, not subtracted: raw ids may be further apart than 64 bits can say.
        rising = bool((ids[1:] > ids[:-1]).all())
        inside &= ids.dtype == torch.int64 and ids.shape == (record.count,) and rising
    else:
        ids = range(record.first, record.first + record.count)
    if not inside or not (table.is_raw or 0 <= ids[0] <= ids[-1] < table.rows):
        raise CheckpointError(
            f"Checkpoint file {file.path} is damaged: '{record.name}' has rows of no table."
        )
    if record.deleted:
        return RowBlock(ids, record.columns, {})
    parts = {
        name: file.part(
            f"{record.name}/{name}",
            (record.count, right - left) if spec.per == "element" else (record.count,),
            spec.dtype,
        )
        for name, spec in table.parts.items()
        if (spec.per == "element" or left == 0) and (name != WEIGHT or record.bits == 32)
    }
    if record.bits < 32:
        shape = record.count, code_bytes(record.bits, right - left)
        codes = file.part(f"{record.name}/{CODES}", shape, torch.uint8)
        parts[WEIGHT] = QuantisedPart(codes, record.bits, right - left, table.parts[WEIGHT].dtype)
    if chunk is not None:
        shape = record.count, (right - left) // chunk
        parts[UTILITY] = file.part(f"{record.name}/{UTILITY}", shape, torch.bfloat16)
        parts[GROWTH] = file.part(f"{record.name}/{GROWTH}", shape[:1], torch.bfloat16)
    return RowBlock(ids, record.columns, parts)


def _listed(parts: Mapping[str, tuple[str, str]]) -> str:
    return " and ".join(f"{name} ({dtype} by {per})" for name, (dtype, per) in parts.items())
