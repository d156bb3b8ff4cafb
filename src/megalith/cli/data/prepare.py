"""`megalith data prepare`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from megalith.cli.data import prepare_options as options
from megalith.cli.data.column_listing import print_listing, show_listing
from megalith.cli.data.column_values import separators_by_column, split_by_column
from megalith.cli.output import JsonFlag, print_json, print_table, progress_console, say, text_column

if TYPE_CHECKING:
    from megalith.data.prepare import PrepareOptions, PrepareResult
    from megalith.data.readers import ColumnListing

_MUCH = 0.1
"""Share of a feature's values from which those outside the vocabulary are worth a sentence."""
_LISTED = 4


def prepare(
    source: options.SourceArgument,
    files: options.FilesArgument,
    out: options.OutOption = None,
    test: options.TestOption = None,
    valid: options.ValidOption = None,
    valid_fraction: options.ValidFractionOption = 0.0,
    valid_from: options.ValidFromOption = options.ValidFrom.random,
    seed: options.SeedOption = 0,
    min_count: options.MinCountOption = None,
    hash_buckets: options.HashBucketsOption = None,
    raw: options.RawOption = None,
    max_vocabulary: options.MaxVocabularyOption = None,
    vocabulary_from: options.VocabularyFromOption = None,
    numeric: options.NumericOption = None,
    missing_number: options.MissingNumberOption = None,
    max_bad_rows: options.MaxBadRowsOption = 0,
    limit_rows: options.LimitRowsOption = None,
    memory: options.MemoryOption = "512M",
    threads: options.ThreadsOption = None,
    fields: options.FieldsOption = options.FieldsName.auto,
    label: options.LabelOption = "label",
    number: options.NumberOption = None,
    category: options.CategoryOption = None,
    drop: options.DropOption = None,
    event_time: options.EventTimeOption = None,
    weight: options.WeightOption = None,
    share: options.ShareOption = None,
    max_length: options.MaxLengthOption = None,
    keep: options.KeepOption = options.KeepName.last,
    lists: options.ListOption = None,
    delimiter: options.DelimiterOption = ",",
    dry_run: options.DryRunFlag = False,
    overwrite: options.OverwriteFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Turn click logs of any size into a data set that is ready to train on, in bounded memory.

    Columns of parquet, arrow and csv files are taken by their type: floats as numbers; integers, text and
    true/false as categories; lists of integers or text as lists of ids; lists of floats of one length as that
    many numbers. --number, --category and --drop say otherwise. A table shows what each column was taken for,
    and why; --dry-run shows only that.
    """
    from megalith.core.config import parse_config
    from megalith.core.errors import ConfigError
    from megalith.core.units import parse_bytes
    from megalith.data.prepare import PrepareOptions

    if out is None and not dry_run:
        raise ConfigError("Name the folder to write with --out, or list the columns with --dry-run.")
    least, least_of = split_by_column("--min-count", min_count)
    buckets, buckets_of = split_by_column("--hash-buckets", hash_buckets)
    most, most_of = split_by_column("--max-vocabulary", max_vocabulary)
    length, length_of = split_by_column("--max-length", max_length)
    content = {
        "source": source.value,
        "files": files,
        "out": out or Path(),
        "test_files": test or (),
        "valid_files": valid or (),
        "valid_fraction": valid_fraction,
        "valid_from": valid_from.value,
        "seed": seed,
        **({} if least is None else {"min_count": least}),
        "min_count_of": least_of,
        "hash_buckets": buckets,
        "hash_buckets_of": buckets_of,
        "raw": tuple(name.strip() for name in raw.split(",")) if raw else (),
        "max_vocabulary": most,
        "max_vocabulary_of": most_of,
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
        "event_time": event_time,
        "weight": weight,
        "share": share or (),
        "max_length": length,
        "max_length_of": length_of,
        "keep": keep.value,
        "separators": separators_by_column(lists),
        "delimiter": "\t" if delimiter == "\\t" else delimiter,
        "overwrite": overwrite,
        **({} if threads is None else {"threads": threads}),
    }
    settings = parse_config(PrepareOptions, content, "megalith data prepare")
    if dry_run:
        show_listing(settings, as_json)
        return
    out = settings.out
    prepared = _prepare_with_progress(settings, (lambda listing: None) if as_json else print_listing)
    if as_json:
        print_json(summary(out, prepared))
    else:
        _show(out, prepared)


def summary(out: Path, prepared: PrepareResult) -> dict[str, object]:
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
        "weight": schema.weight,
        "event_time": schema.preparation["recipe"]["event_time"],
        "columns": schema.preparation.get("columns"),
        "ids": {feature.name: feature.num_ids for feature in schema.categorical},
        "unknown_shares": schema.preparation["unknown_shares"],
        "bad_rows": schema.bad_rows,
        "first_bad_rows": schema.preparation["first_bad_rows"],
        "seconds": round(prepared.seconds, 3),
        "rows_per_second": round(rows / prepared.seconds),
        "num_spills": prepared.num_spills,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _prepare_with_progress(settings: PrepareOptions, tell: Callable[[ColumnListing], None]) -> PrepareResult:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    from megalith.data.prepare import prepare as run

    # SIGTERM cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, _exit_at_signal)
    columns = (text_column("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    silent = not progress_console.is_terminal
    with Progress(*columns, console=progress_console, transient=True, disable=silent) as bar:
        task = bar.add_task("reading", total=None)
        return run(
            settings,
            lambda stage, rows, total: bar.update(task, description=stage, completed=rows, total=total),
            tell,
        )


def _show(out: Path, prepared: PrepareResult) -> None:
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
    ids = sum(feature.num_ids or 0 for feature in schema.categorical)
    raw = sum(feature.is_raw for feature in schema.categorical)
    say(
        f"{len(schema.numeric)} numeric columns, {len(schema.categorical) - raw} features with {ids:,} ids"
        f"{f' and {raw} with raw ids' if raw else ''}; "
        f"peak memory {format_bytes(float(str(result['peak_memory_bytes'])))}."
    )
    if unknown := _unknown_values(schema.preparation):
        say(unknown)
    shared = [feature for feature in schema.categorical if feature.vocabulary not in (None, feature.name)]
    for feature in shared:
        say(f"'{feature.name}' shares the vocabulary and the table of '{feature.vocabulary}'.")
    if schema.weight is not None:
        say(f"Sample weight: column '{schema.weight}'.")
    if schema.event_time is not None:
        from megalith.data.readers import EventTimeColumn

        say(EventTimeColumn(**schema.preparation["recipe"]["event_time"]).describe())
    if schema.bad_rows:
        say(f"{schema.bad_rows:,} bad rows were left out:")
        for bad in schema.preparation["first_bad_rows"][:5]:
            say(f"  {bad['file']}, line {bad['line']} {bad['problem']}")


def _unknown_values(preparation: dict[str, Any]) -> str | None:
    """Which features lose much to the one id that all unknown values share, and what keeps more of them."""
    shares = [(share, name) for name, share in preparation["unknown_shares"].items() if share >= _MUCH]
    if not shares:
        return None
    worst = sorted(shares, reverse=True)[:_LISTED]
    listed = ", ".join(f"{share:.0%} of {name}" for share, name in worst)
    if len(shares) > len(worst):
        listed += f", and of {len(shares) - len(worst)} more features"
    if preparation["vocabulary_from"]:
        return f"Values that the vocabulary of {preparation['vocabulary_from']} lacks share one id: {listed}."
    return (
        f"Values outside the vocabulary share one id: {listed}. More of them are kept with a lower "
        f"--min-count, here {preparation['min_count']}, or a larger --max-vocabulary; few rows need that."
    )


def _exit_at_signal(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
