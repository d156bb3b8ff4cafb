"""What a column is taken for. A name in an option decides; else its type, as Arrow or a CSV sample has it:

    float, decimal                     number
    integer, text, true or false       category: an id taken as a number is lost, a count taken as a category
                                       is not; the listing shows either
    list of integers or texts          list of ids
    list of floats of one length       that many number columns
    list of floats of several lengths  refused: pad it, drop it, or take it as ids
    timestamp, date                    refused: name it --event-time, or drop it
    an index that pandas wrote         dropped

`docs/guides/own-data.md` says the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from megalith.core.errors import ConfigError, nearest
from megalith.data.readers.event_time import EventTimeColumn, is_time, refuse_type, unit_of_integers
from megalith.data.readers.frames.columns import ColumnChoice
from megalith.data.readers.frames.listing import (
    INTEGER_RULE,
    ColumnEntry,
    ColumnListing,
    ColumnSample,
    TakenAs,
    type_name,
)
from megalith.data.readers.frames.types import (
    is_category,
    is_fraction,
    is_integer,
    is_list,
    is_text,
    value_type,
)

_PANDAS_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
_OWN_VALUE_ROWS = 1000
_OWN_VALUE_SHARE = 0.95


class NamedColumns(NamedTuple):
    """The columns that options name."""

    label: str = "label"
    numbers: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    weight: str | None = None
    event_time: str | None = None
    lists: tuple[str, ...] = ()

    def by_option(self) -> list[tuple[str, str]]:
        """(option, column) of every name."""
        options = [("--label", self.label)]
        options += [("--number", name) for name in self.numbers]
        options += [("--category", name) for name in self.categories]
        options += [("--drop", name) for name in self.dropped]
        options += [("--list", name) for name in self.lists]
        options += [] if self.weight is None else [("--weight", self.weight)]
        return options if self.event_time is None else [*options, ("--event-time", self.event_time)]


class _Verdict(NamedTuple):
    taken_as: TakenAs
    rule: str
    note: str = ""


def list_columns(table: pa.Table, path: Path, named: NamedColumns) -> ColumnListing:
    """What each column of a sampled file is taken for."""
    option_of = _check_names(table.column_names, path, named)
    entries = []
    for field, values in zip(table.schema, table.columns, strict=True):
        sample = ColumnSample(field.name, field.type, values)
        verdict = _named(sample, option_of.get(field.name), path) or _by_type(sample)
        entries.append(
            ColumnEntry(
                column=field.name,
                type=type_name(field.type),
                taken_as=verdict.taken_as,
                rule=verdict.rule,
                distinct=sample.distinct(),
                missing=sample.missing(),
                examples=sample.examples(),
                note=verdict.note or _note(sample, verdict),
            )
        )
    return ColumnListing(file=str(path), sample_rows=table.num_rows, columns=tuple(entries))


def choose_columns(table: pa.Table, listing: ColumnListing, named: NamedColumns) -> ColumnChoice:
    """The columns as a data set keeps them; one that can be taken for nothing is refused."""
    for entry in listing.columns:
        if entry.taken_as == "refused":
            raise ConfigError(
                f"Column '{entry.column}' of {listing.file} has type {entry.type}: {entry.rule}."
            )
    features = [
        (entry.column, entry.taken_as == "list of ids")
        for entry in listing.columns
        if entry.taken_as in ("category", "list of ids")
    ]
    kinds = {field.name: field.type for field in table.schema}
    vectors = {
        name: int(ColumnSample(name, kinds[name], table[name]).lengths()[0])
        for name in listing.named("list of floats")
    }
    return ColumnChoice(
        label=named.label,
        numbers=listing.named("number", "list of floats"),
        features=tuple(features),
        integers=tuple(name for name, _ in features if is_integer(kinds[name])),
        vectors=vectors,
        weight=named.weight,
    )


def choose_event_time(table: pa.Table, path: Path, name: str) -> EventTimeColumn:
    """What the values of a column of times are: by its type, of integers by the first."""
    kind = table.schema.field(name).type
    if is_time(kind):
        return EventTimeColumn(name=name, unit="timestamps")
    given = table[name].drop_null()
    if not len(given):
        raise ConfigError(f"Column '{name}' of {path} holds no value; name another column of event times.")
    if not pa.types.is_integer(kind):
        raise refuse_type(str(path), name, kind)
    return EventTimeColumn(name=name, unit=unit_of_integers(given[0].as_py()))


def split_names(given: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Names in lists with commas; a text that is a column's whole name is that one.

    >>> split_names(["a,b", "c, d"], ["a", "b", "c, d"])
    ('a', 'b', 'c, d')
    """
    parts = [[text] if text in known else text.split(",") for text in given]
    return tuple(name if name in known else name.strip() for names in parts for name in names)


def _check_names(columns: list[str], path: Path, named: NamedColumns) -> dict[str, str]:
    """The option that names each column; a name twice, in the file or in options, is refused."""
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{path} has two columns named '{twice}'; rename one.")
    option_of: dict[str, str] = {}
    for option, name in named.by_option():
        if name not in columns:
            hint = "name the column of labels with --label" if option == "--label" and name == "label" else ""
            raise ConfigError(f"{path} has no column '{name}'; {hint or nearest(name, columns)}")
        if option_of.get(name, option) != option:
            raise ConfigError(
                f"Column '{name}' is named by {option_of[name]} and by {option}; name it once, or copy it."
            )
        option_of[name] = option
    return option_of


def _named(sample: ColumnSample, option: str | None, path: Path) -> _Verdict | None:
    """By the option that names it, if one does."""
    if option is None:
        return None
    rule, kind = f"named by {option}", sample.kind
    simple: dict[str, Literal["label", "dropped", "event time"]] = {
        "--label": "label",
        "--drop": "dropped",
        "--event-time": "event time",
    }
    if option in simple:
        return _Verdict(simple[option], rule)
    single = value_type(kind)
    countable = is_fraction(single) or is_integer(single) or pa.types.is_boolean(single) or is_text(kind)
    if option == "--weight":
        if is_list(kind) or not countable:
            raise ConfigError(f"Column '{sample.name}' of {path} has type {kind}, which is no weight.")
        return _Verdict("weight", rule)
    if option == "--number":
        if not countable:
            raise ConfigError(
                f"Column '{sample.name}' of {path} has type {kind}, which is not a number; drop it."
            )
        return _vector(sample, rule) if is_list(kind) else _Verdict("number", rule)
    if not is_category(single):
        raise ConfigError(
            f"Column '{sample.name}' of {path} has type {kind}, which is no category; drop it with "
            f"--drop {sample.name}."
        )
    return _Verdict("list of ids" if is_list(kind) else "category", rule)


def _by_type(sample: ColumnSample) -> _Verdict:
    name, kind = sample.name, sample.kind
    single = value_type(kind)
    if _PANDAS_INDEX.fullmatch(name):
        return _Verdict("dropped", "an index that pandas wrote")
    if pa.types.is_null(single):
        return _Verdict("dropped", "no value in the sample")
    if is_list(kind):
        if is_fraction(single):
            return _vector(sample, "list of floats")
        if is_category(single):
            return _Verdict("list of ids", f"list of {_plural(single)}")
    elif pa.types.is_dictionary(kind):
        if is_category(single):
            return _Verdict("category", "dictionary, as categories of a data frame are")
    elif is_fraction(kind):
        return _Verdict("number", "float" if pa.types.is_floating(kind) else "decimal")
    elif pa.types.is_boolean(kind):
        return _Verdict("category", "true or false")
    elif is_integer(kind):
        return _Verdict("category", INTEGER_RULE)
    elif is_category(kind):
        return _Verdict("category", "text")
    elif is_time(kind):
        return _Verdict(
            "refused", f"a time; keep it with --event-time {name}, or leave it out with --drop {name}"
        )
    return _Verdict("refused", f"neither a number nor a category; leave it out with --drop {name}")


def _vector(sample: ColumnSample, rule: str) -> _Verdict:
    """A list of floats: as many number columns as each list holds."""
    lengths = np.unique(sample.lengths())
    name = sample.name
    if len(lengths) == 1 and lengths[0] > 0:
        return _Verdict(
            "list of floats",
            f"{rule}, {lengths[0]} in every row: numbers {name}_0 to {name}_{lengths[0] - 1}",
        )
    sizes = f"of {lengths[0]} to {lengths[-1]} values" if len(lengths) else "without a value"
    return _Verdict(
        "refused",
        f"lists {sizes}; pad them to one length, leave them out with --drop {name}, or take them as ids with "
        f"--category {name}",
    )


def _separator(texts: pa.ChunkedArray) -> str | None:
    """What stands inside a quarter of all texts, as between values of a list."""
    for separator in "|;":
        inside = pc.sum(pc.match_substring(texts, separator)).as_py()
        if 4 * (inside or 0) >= len(texts) > 0:
            return separator
    return None


def _plural(kind: pa.DataType) -> str:
    return "integers" if is_integer(kind) else "texts" if is_text(kind) else "true or false"


def _note(sample: ColumnSample, verdict: _Verdict) -> str:
    """What is odd about a column, to stand after its name."""
    if verdict.taken_as not in ("number", "category") or "named" in verdict.rule:
        return ""
    given = sample.values.drop_null()
    if verdict.rule == "float" and sample.missing():
        whole = pc.all(pc.equal(given, pc.floor(given)).filter(pc.invert(pc.is_nan(given)))).as_py()
        if whole:
            return (
                "holds whole numbers and missing ones, as integers of a pandas frame do that lack some; "
                f"if they are ids pass --category {sample.name}"
            )
    if verdict.rule == "text" and (separator := _separator(sample.flat.drop_null())):
        return (
            f"holds several values with '{separator}' between them; if it is a list pass "
            f"--list '{sample.name}={separator}'"
        )
    distinct = sample.distinct()
    if verdict.taken_as == "category" and distinct is not None and len(given) >= _OWN_VALUE_ROWS:
        if distinct > _OWN_VALUE_SHARE * len(given):
            return (
                "has a value of its own in nearly every row; if it numbers rows or is a time, pass "
                f"--drop {sample.name} or --event-time {sample.name}"
            )
        if distinct == 1:
            return "has one value only"
    return ""
