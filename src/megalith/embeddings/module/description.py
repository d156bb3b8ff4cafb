"""What `print(model)` says of a collection's tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from megalith.core.schema import TableSpec
from megalith.core.units import format_bytes
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.stores.base import StoreBytes

_LISTED = 12


def describe(
    tables: Sequence[TableSpec],
    optimizers: Sequence[RowOptimizer],
    output_dtype: torch.dtype,
    taken: StoreBytes,
    mode: str,
) -> str:
    """Every table with its rows, dim, dtype, store and optimizer; then what all take, and how they train."""
    lines = [
        f"({table.name}): {table.rows:,} x {table.dim} {table.dtype}, {_store(table)}, {table.pooling}, "
        f"{optimizer.kind}(lr={optimizer.lr:g})"
        for table, optimizer in list(zip(tables, optimizers, strict=True))[:_LISTED]
    ]
    if len(tables) > _LISTED:
        lines.append(f"... and {len(tables) - _LISTED} more tables")
    disk = f", {format_bytes(taken.disk)} of files" if taken.disk else ""
    lines.append(f"memory: {format_bytes(taken.memory)}{disk}")
    lines.append(f"vectors: {str(output_dtype).removeprefix('torch.')}; {mode}")
    return "\n".join(lines)


def training_mode(*, is_frozen: bool, training: bool, accumulate: bool) -> str:
    """What a backward pass does to the tables, in a few words."""
    if is_frozen:
        return "frozen: backward() changes nothing"
    if not training:
        return "eval(): backward() changes nothing"
    return "trains: backward() collects, step() updates" if accumulate else "trains: backward() updates"


def _store(table: TableSpec) -> str:
    return table.store_spec.kind
