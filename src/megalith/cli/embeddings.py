"""`megalith embeddings`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from megalith.cli.evaluate import CheckpointOption, TrustFlag
from megalith.cli.output import JsonFlag, print_json, say


def embeddings(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    table: Annotated[str, typer.Argument(help="A table; most are named after their feature.")],
    out: Annotated[
        Path, typer.Option(help="File to write (.parquet, .csv, .arrow); it appears when it is complete.")
    ],
    checkpoint: CheckpointOption = None,
    trust_code: TrustFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Write the vectors of a table, each beside the raw value that it stands for."""
    from megalith.core.units import format_bytes
    from megalith.train.checkpoints import parse_checkpoint
    from megalith.train.scoring.export import EmbeddingsRequest, export_vectors

    result = export_vectors(EmbeddingsRequest(run, table, out, parse_checkpoint(checkpoint), trust_code))
    if json_output:
        print_json(result)
        return
    say(
        f"{out}: {result['rows']:,} vectors of {result['dim']} of table {table} at step {result['step']:,}, "
        f"{format_bytes(result['bytes'])}"
    )
