"""`megalith embeddings`: the vectors of a table to a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from megalith.core.files import check_target, new_file, remove_partials
from megalith.data.table_file import check_ending, open_table_writer
from megalith.train.checkpoints import Checkpoint
from megalith.train.scoring.scorer import Scorer
from megalith.train.scoring.vectors import table_vectors


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """What a user asks `megalith embeddings` for."""

    run: Path
    table: str
    out: Path
    checkpoint: Checkpoint = None
    trust_code: bool = False


def export_vectors(request: EmbeddingsRequest) -> dict[str, Any]:
    """Writes the file, which appears when it is complete; returns what is in it."""
    out = request.out
    check_ending(out)
    check_target(out)
    scorer = Scorer(request.run, request.checkpoint, trusted=request.trust_code)
    found = table_vectors(scorer, request.table)
    remove_partials(out.parent, out.name)
    rows = 0
    with new_file(out) as partial, open_table_writer(partial, out, found.schema) as writer:
        for batch in found.batches:
            writer.write(pa.Table.from_batches([batch]))
            rows += batch.num_rows
    return {
        "run": str(request.run),
        "table": found.table,
        "step": scorer.step,
        "rows": rows,
        "dim": found.dim,
        "columns": found.schema.names,
        "out": str(out),
        "bytes": out.stat().st_size,
    }
