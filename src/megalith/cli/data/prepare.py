"""`megalith data prepare`."""

from __future__ import annotations

import enum
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from megalith.cli.output import JsonFlag, print_json, print_table, progress_console, say, text_column

if TYPE_CHECKING:
    from megalith.data.prepare import Prepared, PrepareOptions


class SourceName(enum.StrEnum):
    criteo = "criteo"
    avazu = "avazu"
    libfm = "libfm"
    parquet = "parquet"


class NumericName(enum.StrEnum):
    log = "log"
    bucket = "bucket"
    none = "none"


class ValidFrom(enum.StrEnum):
    random = "random"
    tail = "tail"


class FieldsName(enum.StrEnum):
    auto = "auto"
    positional = "positional"
    bag = "bag"
    named = "named"


def prepare(
    source: Annotated[SourceName, typer.Argument(help="The format of the files.")],
    files: Annotated[list[Path], typer.Argument(help="Training files; text may be .gz or .zst.")],
    out: Annotated[Path, typer.Option(help="Folder to write; it appears when it is complete.")],
    test: Annotated[
        list[Path] | None, typer.Option(help="A file of the split `test`; repeat for several.")
    ] = None,
    valid_fraction: Annotated[
        float, typer.Option(help="Share of the training rows for split `valid`.")
    ] = 0.0,
    valid_from: Annotated[
        ValidFrom, typer.Option(help="Hold out rows at random by number, or the last ones.")
    ] = ValidFrom.random,
    seed: Annotated[int, typer.Option(help="Decides which rows random takes.")] = 0,
    min_count: Annotated[int, typer.Option(help="Values that occur less often share id 1.")] = 10,
    hash_buckets: Annotated[
        int | None, typer.Option(help="No vocabulary: id is 2 + hash of the value modulo this.")
    ] = None,
    max_vocabulary: Annotated[int | None, typer.Option(help="Most values a feature keeps.")] = None,
    vocabulary_from: Annotated[
        Path | None, typer.Option(help="Apply the vocabulary and transforms of this data set.")
    ] = None,
    numeric: Annotated[
        NumericName | None,
        typer.Option(
            help="log: sign(x) log(1+|x|); bucket: a category, floor(log(x)^2); none: as is. [default: log]"
        ),
    ] = None,
    missing_number: Annotated[
        float | None, typer.Option(help="Written where a number is missing. [default: 0]")
    ] = None,
    max_bad_rows: Annotated[int, typer.Option(help="Rows that cannot be read and are left out.")] = 0,
    limit_rows: Annotated[int | None, typer.Option(help="Stop after so many rows (of test too).")] = None,
    memory: Annotated[str, typer.Option(help="Budget of the tables of values.")] = "512M",
    threads: Annotated[int | None, typer.Option(help="Threads that parse. [default: all cores]")] = None,
    fields: Annotated[
        FieldsName, typer.Option(help="libfm: what the entries of a row are.")
    ] = FieldsName.auto,
    label: Annotated[str, typer.Option(help="parquet: the column of labels.")] = "label",
    number: Annotated[
        list[str] | None, typer.Option(help="parquet: a column to take as number; repeat.")
    ] = None,
    category: Annotated[
        list[str] | None, typer.Option(help="parquet: a column to take as category; repeat.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="parquet: a column to leave out; repeat.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder if it exists.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Turn click logs of any size into a data set that is ready to train on, in bounded memory."""
    from megalith.core.config import parse_config
    from megalith.core.units import parse_bytes
    from megalith.data.prepare import PrepareOptions

    content = {
        "source": source.value,
        "files": files,
        "out": out,
        "test_files": test or (),
        "valid_fraction": valid_fraction,
        "valid_from": valid_from.value,
        "seed": seed,
        "min_count": min_count,
        "hash_buckets": hash_buckets,
        "max_vocabulary": max_vocabulary,
        "vocabulary_from": vocabulary_from,
        "numeric": numeric.value if numeric else None,
        "missing_number": missing_number,
        "max_bad_rows": max_bad_rows,
        "limit_rows": limit_rows,
        "memory_bytes": parse_bytes(memory),
        "fields": fields.value,
        "label": label,
        "numbers": number or (),
        "categories": category or (),
        "dropped": drop or (),
        "overwrite": overwrite,
        **({} if threads is None else {"threads": threads}),
    }
    options = parse_config(PrepareOptions, content, "megalith data prepare")
    # A polite kill cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, _exit_at_signal)
    prepared = _prepare_with_progress(options)
    if as_json:
        print_json(summary(options.out, prepared))
    else:
        _show(options.out, prepared)


def summary(out: Path, prepared: Prepared) -> dict[str, object]:
    """What `--json` prints."""
    import resource

    schema = prepared.schema
    rows = sum(split.rows for split in schema.splits.values())
    return {
        "out": str(out),
        "source": schema.source,
        "rows": rows,
        "splits": {
            name: {"rows": split.rows, "click_rate": split.click_rate, "files": len(split.files)}
            for name, split in schema.splits.items()
        },
        "numeric": list(schema.numeric),
        "ids": {feature.name: feature.num_ids for feature in schema.categorical},
        "bad_rows": schema.bad_rows,
        "first_bad_rows": schema.preparation["first_bad_rows"],
        "seconds": round(prepared.seconds, 3),
        "rows_per_second": round(rows / prepared.seconds),
        "num_spills": prepared.num_spills,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _prepare_with_progress(options: PrepareOptions) -> Prepared:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    from megalith.data.prepare import prepare as run

    columns = (text_column("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    silent = not progress_console.is_terminal
    with Progress(*columns, console=progress_console, transient=True, disable=silent) as bar:
        task = bar.add_task("reading", total=None)
        return run(
            options,
            lambda stage, rows, total: bar.update(task, description=stage, completed=rows, total=total),
        )


def _show(out: Path, prepared: Prepared) -> None:
    from megalith.core.units import format_bytes

    result = summary(out, prepared)
    schema = prepared.schema
    speed = f"{result['rows_per_second']:,} rows/s"
    say(f"{out}: {result['rows']:,} rows in {prepared.seconds:.1f} s ({speed})")
    print_table(
        "",
        ("split", "rows", "click rate", "parts"),
        [
            (name, f"{split.rows:,}", f"{split.click_rate:.4f}", len(split.files))
            for name, split in schema.splits.items()
        ],
    )
    ids = sum(feature.num_ids for feature in schema.categorical)
    say(
        f"{len(schema.numeric)} numeric columns, {len(schema.categorical)} features with {ids:,} ids; "
        f"peak memory {format_bytes(float(str(result['peak_memory_bytes'])))}."
    )
    if schema.bad_rows:
        say(f"{schema.bad_rows:,} bad rows were left out:")
        for bad in schema.preparation["first_bad_rows"][:5]:
            say(f"  {bad['file']}, line {bad['line']} {bad['problem']}")


def _exit_at_signal(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
