"""`megalith ids export`: a dynamic table of a checkpoint as a file of ids and vectors.

Rows come straight from the checkpoint's files, some at a time: neither the model nor the table is built, so
memory does not grow with the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from torch import Tensor

from megalith.checkpoint.store import CheckpointStore
from megalith.core.errors import ConfigError, MegalithError, nearest
from megalith.core.files import new_file
from megalith.data.prepare.recipe import PrepareRecipe
from megalith.embeddings.row_block import WEIGHT
from megalith.embeddings.stores.dynamic.shard import whole_columns
from megalith.embeddings.table_state import TableState
from megalith.train.checkpoints import existing_step
from megalith.train.ids.id_file import STATES, file_schema, piece_rows, to_record_batch
from megalith.train.run.folder import RunFolder

_TABLES = "learner/tables/"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What a user asks `megalith ids export` for."""

    run: Path
    table: str
    out: Path
    step: int | None = None
    """None is the newest checkpoint."""
    state: bool = False
    """Whether the optimizer's state goes with the vectors."""


def export_table(request: ExportRequest) -> dict[str, Any]:
    """Writes the file, which appears when it is complete; returns what is in it."""
    run = RunFolder(request.run)
    run.recipe()
    table = open_dynamic_table(run, request.table, request.step)
    state = table.state
    kept = {name: state.parts[name] for name in STATES if request.state and name in state.parts}
    schema = file_schema(state.dim, kept, with_values=table.has_texts)
    count, rows = 0, piece_rows(state.dim)
    with new_file(request.out) as partial, pq.ParquetWriter(partial, schema, compression="zstd") as writer:
        unit = table.score_unit()
        for ids, parts in table.pieces((WEIGHT, *kept, "last", "score", "time"), rows):
            parts["score"] = parts["score"].double() / unit
            writer.write_batch(to_record_batch(ids, parts, schema), row_group_size=rows)
            count += len(ids)
    return {
        "run": str(request.run),
        "table": request.table,
        "step": table.step,
        "ids": count,
        "dim": state.dim,
        "columns": schema.names,
        "out": str(request.out),
        "bytes": request.out.stat().st_size,
    }


@dataclass(frozen=True, slots=True)
class SavedDynamicTable:
    """A dynamic table of a checkpoint, read from its files."""

    store: CheckpointStore
    step: int
    path: str
    state: TableState
    has_texts: bool
    """Whether its ids are raw ones of texts."""

    def pieces(self, names: Sequence[str], rows: int) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Ids with these parts, at most `rows` at a time."""
        for block in self.store.saved_blocks(self.step, self.path):
            ids = torch.as_tensor(block.ids)
            for first in range(0, len(ids), rows):
                last = min(first + rows, len(ids))
                parts = {name: block.parts[name][first:last] for name in names}
                for name in parts.keys() & {WEIGHT, *STATES}:
                    parts[name] = whole_columns(parts[name], self.state.dim)
                yield ids[first:last], parts

    def score_unit(self) -> float:
        """Scores are saved in what a use adds to them at that batch."""
        (clock,) = self.store.saved_blocks(self.step, f"{self.path}.clock")
        return float(clock.parts["unit"][0:1])


def open_dynamic_table(run: RunFolder, name: str, step: int | None) -> SavedDynamicTable:
    """A dynamic table of the checkpoint of a step, by default the newest."""
    store = CheckpointStore(run.checkpoints)
    step = store.latest() if step is None else existing_step(run, store, step)
    if step is None:
        raise MegalithError(
            f"{run.folder} has no checkpoint yet; train it with `megalith train {run.folder}`."
        )
    saved = store.saved_tables(step)
    dynamic = {
        path.removeprefix(_TABLES): path
        for path, state in saved.items()
        if path.startswith(_TABLES) and state.is_raw
    }
    if name not in dynamic:
        names = list(dynamic)
        known = nearest(name, names) if names else "it has none."
        raise ConfigError(f"{run.folder} has no dynamic table '{name}'; {known}")
    path = dynamic[name]
    return SavedDynamicTable(store, step, path, saved[path], _has_texts(run, name))


def _has_texts(run: RunFolder, table: str) -> bool:
    """Whether ids of a table are raw ones of texts, by the feature of the same name in the run's data."""
    try:
        schema = run.trained_on().schema
    except MegalithError:
        # Rows come from the checkpoint alone: only their texts are not known without the data.
        return False
    content = schema.preparation.get("recipe")
    if not isinstance(content, dict) or table not in content.get("raw", ()):
        return False
    columns = PrepareRecipe(**content).columns
    return columns is None or table not in columns.integers
