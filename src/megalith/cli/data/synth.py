"""`megalith data synth`: generated click data with a known best log loss."""

from __future__ import annotations

import math
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from megalith.cli.output import JsonFlag, print_json, print_table, progress_console, text_column

if TYPE_CHECKING:
    from megalith.data.synth.calibration import SynthSource
    from megalith.data.synth.generate import SplitTruth
    from megalith.data.synth.options import SynthOptions
    from megalith.data.synth.tables import TableShapes


class SynthSourceName(StrEnum):
    """Whose shape the data has."""

    CRITEO = "criteo"
    AVAZU = "avazu"
    TABLES = "tables"
    RM1 = "rm1"
    RM2 = "rm2"
    RM3 = "rm3"
    DLRM_V2 = "dlrm-v2"


class SynthFormat(StrEnum):
    """Ready to train on, or the real data set's own text."""

    PARQUET = "parquet"
    TEXT = "text"


def synth(
    source: Annotated[
        SynthSourceName,
        typer.Argument(
            help="The data set to resemble; `tables` has any shape, rm1 and those after it are the data of "
            "the recipes of that name."
        ),
    ],
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
    tables: Annotated[
        int | None, typer.Option(min=1, help="Of `tables`: features, each with a table [default: 8].")
    ] = None,
    table_rows: Annotated[
        str | None,
        typer.Option(
            help="Of `tables`: rows of each, or of one after the other as a,b [default: 100000]. Of rm1 "
            "and others: at most."
        ),
    ] = None,
    lookups: Annotated[
        str | None,
        typer.Option(
            help="Of `tables`: ids of a row for each, or for one after the other as a,b [default: 1]."
        ),
    ] = None,
    numbers: Annotated[
        int | None, typer.Option(min=0, help="Of `tables`: numeric features [default: 13].")
    ] = None,
    varied: Annotated[
        bool,
        typer.Option("--varied", help="Rows have from none to twice as many ids; else all have as many."),
    ] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads that make rows [default: all cores].")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder if it exists.")] = False,
    json: JsonFlag = False,
) -> None:
    """Generate click data like Criteo or Avazu, or for tables of any shape, with a known best log loss."""
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
        tables=_table_shapes(source.value, tables, table_rows, lookups, numbers, varied),
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


def _table_shapes(
    source: SynthSource,
    tables: int | None,
    table_rows: str | None,
    lookups: str | None,
    numbers: int | None,
    varied: bool,
) -> TableShapes | None:
    """What the options of tables ask for; those that the source does not take are refused."""
    from megalith.core.errors import ConfigError
    from megalith.data.synth.tables import make_shapes, model_shape

    given = {"--tables": tables, "--lookups": lookups, "--numbers": numbers}
    if source == "tables":
        rows, ids = _counts("--table-rows", table_rows or "100000"), _counts("--lookups", lookups or "1")
        count = tables or max((len(each) for each in (rows, ids) if isinstance(each, tuple)), default=8)
        return make_shapes(count, rows, ids, 13 if numbers is None else numbers, varied)
    if source in ("criteo", "avazu"):
        given |= {"--table-rows": table_rows, "--varied": varied or None}
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} is for the source `tables`; {source} has tables of its own.")
    if source in ("criteo", "avazu"):
        return None
    shapes = replace(model_shape(source), varied=varied)
    if table_rows is None:
        return shapes
    most = _counts("--table-rows", table_rows)
    if isinstance(most, tuple):
        raise ConfigError(f"--table-rows of {source} is one number, the most rows of a table.")
    return shapes.cut(most)


def _counts(option: str, text: str) -> int | tuple[int, ...]:
    """`5` or `5,10,20`."""
    from megalith.core.errors import ConfigError

    parts = text.replace("_", "").split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() and len(part) < 12 for part in parts):
        raise ConfigError(f"{option} must be a whole number or several as a,b, not '{text}'.")
    return int(parts[0]) if len(parts) == 1 else tuple(int(part) for part in parts)


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
