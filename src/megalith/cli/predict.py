"""`megalith predict`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from megalith.cli.evaluate import CheckpointOption, TrustFlag
from megalith.cli.output import JsonFlag, note, print_json, progress_console, say, text_column


def predict(
    run: Annotated[
        Path, typer.Argument(metavar="RUN|MODEL", help="Folder of a run, or of an exported model.")
    ],
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES...|DATA_DIR",
            help="Raw files: Parquet, CSV, Arrow, or text as prepared; or a prepared data set with --split.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="File to write (.parquet, .csv, .arrow); it appears when it is complete.")
    ],
    split: Annotated[str | None, typer.Option(help="Split of a prepared data set.")] = None,
    checkpoint: CheckpointOption = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Rows scored at once [default: as `megalith eval`].")
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(metavar="<name,...>", help="Columns of the input to write beside the scores."),
    ] = None,
    column: Annotated[str, typer.Option(help="Name of the column of scores.")] = "score",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads [default: torch's].")] = None,
    trust_code: TrustFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Score rows with a trained model; labels are not needed.

    Raw columns are those that `megalith data prepare` was given; the run, or the exported model, has the
    vocabulary.
    """
    from rich.progress import Progress, TimeElapsedColumn

    from megalith.train.checkpoints import parse_checkpoint
    from megalith.train.scoring.predict import PredictRequest, predict_run

    kept = tuple(name.strip() for name in keep.split(",") if name.strip()) if keep else ()
    request = PredictRequest(
        *(
            run,
            tuple(inputs),
            out,
            split,
            parse_checkpoint(checkpoint),
            batch,
            kept,
            column,
            threads,
            trust_code,
        )
    )
    # SIGTERM cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, _exit_at_signal)
    columns = (text_column("{task.description}"), text_column("{task.completed:,} rows"), TimeElapsedColumn())
    silent = not progress_console.is_terminal
    with Progress(*columns, console=progress_console, transient=True, disable=silent) as bar:
        task = bar.add_task("scoring", total=None)
        result = predict_run(request, lambda rows: bar.update(task, completed=rows), note)
    (print_json if json_output else _show)(result)


def _show(result: dict[str, Any]) -> None:
    from megalith.core.units import format_bytes

    mean = "" if result["mean_score"] is None else f", mean score {result['mean_score']:.6f}"
    say(
        f"{result['out']}: {result['rows']:,} rows at step {result['step']:,} in {result['seconds']:.1f} s "
        f"({result['rows_per_second']:,.0f} rows/s){mean}, {format_bytes(result['bytes'])}"
    )


def _exit_at_signal(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
