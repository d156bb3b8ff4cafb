"""`megalith data synth`: generated click data with a known best log loss."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from megalith.cli.output import JsonFlag, print_json, print_table, progress_console, text_column

if TYPE_CHECKING:
    from megalith.data.synth.generate import SplitTruth
    from megalith.data.synth.options import SynthOptions


class SynthSourceName(StrEnum):
    """Whose shape the data has."""

    CRITEO = "criteo"
    AVAZU = "avazu"


class SynthFormat(StrEnum):
    """Ready to train on, or the real data set's own text."""

    PARQUET = "parquet"
    TEXT = "text"


def synth(
    source: Annotated[SynthSourceName, typer.Argument(help="The data set to resemble.")],
    rows: Annotated[int, typer.Option(help="Rows to train on.")],
    out: Annotated[Path, typer.Option(help="Folder to write; it appears when it is complete.")],
    output_format: Annotated[
        SynthFormat,
        typer.Option("--format", help="parquet is ready to train on; text is for `data prepare`."),
    ] = SynthFormat.PARQUET,
    valid_rows: Annotated[
        int | None, typer.Option(help="Later rows for validation [default: a tenth].")
    ] = None,
    test_rows: Annotated[int | None, typer.Option(help="Rows later still [default: a tenth].")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    drift: Annotated[
        float,
        typer.Option(
            help="Share of the frequent ids that change places or are replaced over time; 0 is off."
        ),
    ] = 0.05,
    multi_hot: Annotated[int, typer.Option(help="Features that hold several ids a row.")] = 0,
    scale: Annotated[
        str,
        typer.Option(help="Ids a feature has: auto (no more than rows), full (as the real set), or a share."),
    ] = "auto",
    tail: Annotated[
        bool,
        typer.Option(
            "--tail",
            help="Rare ids of large features affect clicks too, so that dropping their rows costs log loss.",
        ),
    ] = False,
    days: Annotated[
        int, typer.Option(help="Give rows an event time, spread evenly over so many days; 0 gives none.")
    ] = 0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads that make rows [default: all cores].")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder if it exists.")] = False,
    json: JsonFlag = False,
) -> None:
    """Generate click data shaped like Criteo or Avazu, with a known best log loss."""
    from time import perf_counter

    from megalith.data.synth.options import SynthOptions

    options = SynthOptions(
        source=source.value,
        train_rows=rows,
        valid_rows=rows // 10 if valid_rows is None else valid_rows,
        test_rows=rows // 10 if test_rows is None else test_rows,
        seed=seed,
        drift=drift,
        multi_hot=multi_hot,
        scale=_parse_scale(scale),
        tail=tail,
        days=days,
    )
    options.check()
    start = perf_counter()
    truths = _generate_with_progress(options, out, output_format, overwrite, threads)
    seconds = perf_counter() - start
    if json:
        rate = options.total_rows / seconds
        print_json({"out": str(out), "splits": _splits(truths), "seconds": seconds, "rows_per_second": rate})
    else:
        _show(f"{out}: {options.total_rows:,} rows in {seconds:.1f} s", truths)


def _generate_with_progress(
    options: SynthOptions, out: Path, output_format: SynthFormat, overwrite: bool, threads: int | None
) -> dict[str, SplitTruth]:
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    from megalith.data.synth.generate import generate

    columns = (
        text_column("Generating"),
        BarColumn(),
        text_column("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    silent = not progress_console.is_terminal
    with Progress(*columns, console=progress_console, transient=True, disable=silent) as bar:
        task = bar.add_task("rows", total=options.total_rows)
        return generate(
            options, out, output_format.value, overwrite, threads, lambda made: bar.advance(task, made)
        )


def _splits(truths: dict[str, SplitTruth]) -> dict[str, Any]:
    return {
        name: {
            "rows": truth.rows,
            "click_rate": truth.positives / truth.rows,
            "best_log_loss": truth.best_log_loss,
            "best_ne": truth.best_ne,
        }
        for name, truth in truths.items()
    }


def _show(title: str, truths: dict[str, SplitTruth]) -> None:
    print_table(
        title,
        ("split", "rows", "click rate", "best log loss", "best NE"),
        (
            (
                name,
                f"{truth.rows:,}",
                f"{truth.positives / truth.rows:.4f}",
                f"{truth.best_log_loss:.5f}",
                f"{truth.best_ne:.4f}",
            )
            for name, truth in truths.items()
        ),
    )


def _parse_scale(text: str) -> float | Literal["auto"]:
    if text == "auto":
        return "auto"
    if text == "full":
        return 1.0
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0.0 < share <= 1.0:
        from megalith.core.errors import ConfigError

        raise ConfigError(f"--scale must be 'auto', 'full' or a number above 0 and up to 1, not '{text}'.")
    return share
