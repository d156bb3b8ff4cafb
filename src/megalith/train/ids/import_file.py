"""`megalith ids import`: ids with vectors from a file into a run, saved as its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from megalith.core.errors import ConfigError
from megalith.core.files import append
from megalith.embeddings.collection import EmbeddingCollection
from megalith.train.ids.id_file import STATES, IdFile
from megalith.train.trainer import Trainer


def import_file(trainer: Trainer, table: str, path: Path) -> dict[str, Any]:
    """Takes the ids of a file into a table and saves the trainer's step again, with them.

    The trainer was created or resumed. Nothing is written where the file is refused; a kill leaves the
    checkpoint that was there.
    """
    embeddings = trainer.learner.embeddings
    if not isinstance(embeddings, EmbeddingCollection):
        raise ConfigError("Ids are imported by one process; run without torchrun.")
    # Refuses a table that is not dynamic.
    before = sum(len(block.ids) for block in embeddings.export_ids(table))
    state = embeddings.table_states()[table]
    states = {name: state.parts[name] for name in STATES if name in state.parts}
    file = IdFile(path, table, state.dim, states)
    counted = _Counted(file.blocks())
    kept = embeddings.import_ids(table, counted)
    after = sum(len(block.ids) for block in embeddings.export_ids(table))
    trainer.save()
    trainer.store.close()
    result = {
        "run": str(trainer.run.folder),
        "table": table,
        "step": trainer.step,
        "file": str(path),
        "ids": counted.ids,
        "kept": kept,
        "ids_before": before,
        "ids_after": after,
        "bound": state.rows,
    }
    append(trainer.run.imports, json.dumps(result).encode() + b"\n")
    return result


class _Counted:
    """Blocks as they come, and how many ids they had."""

    def __init__(self, blocks: Any) -> None:
        self._blocks, self.ids = blocks, 0

    def __iter__(self) -> Any:
        for block in self._blocks:
            self.ids += len(block.ids)
            yield block
