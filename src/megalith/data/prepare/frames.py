"""What `data prepare` makes of a table's columns: the listing, and the choice that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from megalith.core.errors import ConfigError, nearest
from megalith.data.prepare.options import PrepareOptions
from megalith.data.readers import ColumnChoice, ColumnEntry, ColumnListing, EventTimeColumn
from megalith.data.readers.frames.csv_file import CsvFormat
from megalith.data.readers.frames.files import ArrowFormat, FrameFormat, ParquetFormat
from megalith.data.readers.frames.listing import TakenAs
from megalith.data.readers.frames.rules import (
    NamedColumns,
    choose_columns,
    choose_event_time,
    list_columns,
    split_names,
)
from megalith.data.readers.frames.text_lists import split_sample

TellListing = Callable[[ColumnListing], None]


class FrameColumns(NamedTuple):
    """The columns of a table, chosen, and why."""

    listing: ColumnListing
    columns: ColumnChoice
    event_time: EventTimeColumn | None
    vocabularies: dict[str, str]
    """By feature, the one whose vocabulary it shares."""


def frame_format(source: str, delimiter: str, chunk_bytes: int) -> FrameFormat:
    """The reader of files of a source."""
    if source == "csv":
        return CsvFormat(delimiter, chunk_bytes)
    return ArrowFormat() if source == "arrow" else ParquetFormat()


def choose_frame(options: PrepareOptions, tell: TellListing) -> FrameColumns:
    """From the options and the first rows of the first file; `tell` hears of the listing before anything is
    refused."""
    path = options.files[0]
    table = _sample(options, options.separators)
    names = table.column_names
    named = NamedColumns(
        options.label,
        split_names(options.numbers, names),
        split_names(options.categories, names),
        split_names(options.dropped, names),
        options.weight,
        options.event_time,
        tuple(options.separators),
    )
    listing = list_columns(table, path, named)
    tell(listing)
    columns = choose_columns(table, listing, named)
    time = None if options.event_time is None else choose_event_time(table, path, options.event_time)
    groups = _groups(options, columns)
    columns = columns.model_copy(
        update={
            "features": _neighbours(columns.features, groups),
            "max_lengths": _max_lengths(options, columns),
            "keep": options.keep,
            "separators": dict(options.separators),
        }
    )
    _refuse_name_twice(columns, path)
    shared = {name: group[0] for group in groups for name in group}
    return FrameColumns(listing, columns, time, shared)


def existing_listing(
    options: PrepareOptions, columns: ColumnChoice, time: EventTimeColumn | None, origin: Path
) -> ColumnListing:
    """The listing of a file whose columns another data set has chosen."""
    path = options.files[0]
    table = _sample(options, columns.separators)
    known: dict[str, TakenAs] = {columns.label: "label"}
    known |= {name: "list of floats" if name in columns.vectors else "number" for name in columns.numbers}
    known |= {name: "list of ids" if multi_hot else "category" for name, multi_hot in columns.features}
    known |= {} if columns.weight is None else {columns.weight: "weight"}
    known |= {} if time is None else {time.name: "event time"}
    # The rules look at the values; what decides is the other data set.
    unused = tuple(name for name in table.column_names if name not in known)
    plain = NamedColumns(columns.label, dropped=unused)
    listing = list_columns(table, path, plain) if columns.label in table.column_names else None
    entries = () if listing is None else listing.columns
    return ColumnListing(
        file=str(path),
        sample_rows=table.num_rows,
        columns=tuple(_as_known(entry, known, origin) for entry in entries),
    )


def _sample(options: PrepareOptions, separators: Mapping[str, str]) -> pa.Table:
    """The first rows of the first file, texts of several ids as lists."""
    table = frame_format(options.source, options.delimiter, options.chunk_bytes).sample(options.files[0])
    return split_sample(table, separators)


def _as_known(entry: ColumnEntry, known: dict[str, TakenAs], origin: Path) -> ColumnEntry:
    rule = f"as in {origin}" if entry.column in known else f"not used in {origin}"
    return entry.model_copy(update={"taken_as": known.get(entry.column, "dropped"), "rule": rule, "note": ""})


def _groups(options: PrepareOptions, columns: ColumnChoice) -> list[tuple[str, ...]]:
    """The features of each shared vocabulary, the one that names it first."""
    names = [name for name, _ in columns.features]
    groups = [split_names([text], names) for text in options.share]
    seen: set[str] = set()
    for group in groups:
        if len(group) < 2:
            raise ConfigError(f"--share {','.join(group)} names one feature; name those that share, as a,b.")
        for name in group:
            if name not in names:
                raise ConfigError(f"--share names '{name}', which is no feature; {nearest(name, names)}")
            if name in seen:
                raise ConfigError(f"--share names '{name}' twice; name all that share in one list.")
            seen.add(name)
    return groups


def _neighbours(
    features: Sequence[tuple[str, bool]], groups: Sequence[tuple[str, ...]]
) -> tuple[tuple[str, bool], ...]:
    """Features in the order of the file, those that share a vocabulary behind the first of them."""
    multi_hot = dict(features)
    group_of = {name: group for group in groups for name in group}
    order: dict[str, bool] = {}
    for name, _ in features:
        for member in group_of.get(name, (name,)):
            order.setdefault(member, multi_hot[member])
    return tuple(order.items())


def _max_lengths(options: PrepareOptions, columns: ColumnChoice) -> dict[str, int]:
    lists = [name for name, multi_hot in columns.features if multi_hot]
    for name in options.max_length_of:
        if name not in lists:
            raise ConfigError(f"--max-length names '{name}', which is no list of ids; {nearest(name, lists)}")
    lengths = {name: options.max_length_of.get(name, options.max_length) for name in lists}
    return {name: length for name, length in lengths.items() if length is not None}


def _refuse_name_twice(columns: ColumnChoice, path: Path) -> None:
    """A vector's columns must not have the name of another."""
    numbers = [column for name in columns.numbers for column in columns.number_columns(name)]
    names = [columns.label, *numbers, *(name for name, _ in columns.features)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"{path}: a list of floats would become column '{twice}', which is there; rename it."
        )
