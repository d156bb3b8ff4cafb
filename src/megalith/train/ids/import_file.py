"""`megalith ids import`: ids with vectors from a file into a run, saved as its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from megalith.core.errors import ConfigError, nearest
from megalith.core.files import append
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.row_block import RowBlock
from megalith.train.ids.id_file import IdFile
from megalith.train.trainer import Trainer


def import_file(trainer: Trainer, table: str, path: Path) -> dict[str, Any]:
    """Takes the ids of a file into a table and saves the trainer's step again, with them.

    The trainer was created or resumed. Nothing is written where the file is refused; a kill leaves the
    checkpoint that was there.
    """
    embeddings = trainer.learner.embeddings
    if not isinstance(embeddings, EmbeddingCollection):
        raise ConfigError("Ids are imported by one process; run without torchrun.")
    counts = embeddings.dynamic_counts_by_table()
    if table not in counts:
        known = nearest(table, list(counts)) if counts else "it has none."
        raise ConfigError(f"{trainer.run.folder} has no dynamic table '{table}'; {known}")
    state = embeddings.table_states()[table]
    counted = _Counted(IdFile(path, table, state.dim, state.parts).blocks())
    kept = embeddings.import_ids(table, counted)
    trainer.save()
    trainer.store.close()
    result = {
        "run": str(trainer.run.folder),
        "table": table,
        "step": trainer.step,
        "file": str(path),
        "ids": counted.ids,
        "kept": kept,
        "ids_before": counts[table].ids,
        "ids_after": embeddings.dynamic_counts_by_table()[table].ids,
        "bound": state.rows,
    }
    append(trainer.run.imports, json.dumps(result).encode() + b"\n")
    return result


class _Counted:
    """Blocks as they come, and how many ids they had."""

    def __init__(self, blocks: Iterable[RowBlock]) -> None:
        self._blocks, self.ids = blocks, 0

    def __iter__(self) -> Iterator[RowBlock]:
        for block in self._blocks:
            self.ids += len(block.ids)
            yield block
