"""The listing of a table's columns: what each is taken for, the rule that decided, what a sample holds."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megalith.core.config import Config
from megalith.data.readers.frames.types import is_list, is_text, value_type

TakenAs = Literal[
    "label",
    "number",
    "category",
    "list of ids",
    "list of floats",
    "weight",
    "event time",
    "dropped",
    "refused",
]
_EXAMPLES = 3
_EXAMPLE_CHARACTERS = 24
_EXAMPLE_ROWS = 1000


class ColumnEntry(Config):
    """One column: what it is taken for, and why."""

    column: str
    type: str
    taken_as: TakenAs
    rule: str
    """Why: named by an option, or what of its type or values decided."""
    distinct: int | None
    """Values that differ in the sample, missing ones left out; None where they were not counted."""
    missing: float
    """Share of the sample's rows that have no value."""
    examples: tuple[str, ...]
    note: str = ""
    """What is worth a look, as a sentence."""


class ColumnListing(Config):
    """The columns of a file, from a sample of its first rows."""

    file: str
    sample_rows: int
    columns: tuple[ColumnEntry, ...]

    def named(self, *taken_as: TakenAs) -> tuple[str, ...]:
        """The columns that are taken for this, in the order of the file."""
        return tuple(entry.column for entry in self.columns if entry.taken_as in taken_as)

    def notes(self) -> list[str]:
        """What to look at, a sentence each."""
        integers = [entry.column for entry in self.columns if entry.rule == INTEGER_RULE]
        notes = [f"Column '{entry.column}' {entry.note}." for entry in self.columns if entry.note]
        if integers:
            names = ",".join(integers)
            notes.append(
                f"Integers are taken as ids: {names}. Name those that are quantities with --number, the "
                "others with --category."
            )
        return notes


INTEGER_RULE = "integer: an id, unless --number names it"


class ColumnSample(NamedTuple):
    """What a sample says of one column."""

    name: str
    kind: pa.DataType
    values: pa.ChunkedArray

    @property
    def flat(self) -> pa.ChunkedArray:
        """Single values: of lists those inside, of dictionaries the values themselves."""
        values = pc.list_flatten(self.values) if is_list(self.kind) else self.values
        if is_text(value_type(self.kind)):
            # One of the kinds of text that can be counted.
            return values.cast(pa.large_binary())
        return values.cast(value_type(self.kind)) if pa.types.is_dictionary(self.kind) else values

    def distinct(self) -> int | None:
        """Values that differ, missing ones left out; None where that says nothing."""
        flat = self.flat
        if pa.types.is_floating(flat.type):
            if is_list(self.kind):
                return None
            flat = flat.filter(pc.invert(pc.is_nan(flat)))
        try:
            return pc.count_distinct(flat, mode="only_valid").as_py()
        except pa.ArrowException:
            return None

    def missing(self) -> float:
        """Share of the rows without a value."""
        empty = self.values.null_count
        if pa.types.is_floating(self.kind):
            empty += pc.sum(pc.is_nan(self.values)).as_py() or 0
        return empty / len(self.values) if len(self.values) else 0.0

    def examples(self) -> tuple[str, ...]:
        """Some values, as text."""
        given = self.values.slice(0, _EXAMPLE_ROWS).drop_null()
        try:
            given = given.unique()
        except pa.ArrowException:
            # Lists cannot be compared; the first will do.
            given = given.slice(0, _EXAMPLES)
        return tuple(_shown(value) for value in given[:_EXAMPLES].to_pylist())

    def lengths(self) -> NDArray[np.int64]:
        """Lengths of the lists that are there."""
        lengths = pc.list_value_length(self.values.drop_null())
        return np.asarray(lengths.to_numpy(), np.int64)


def type_name(kind: pa.DataType) -> str:
    """A type as the listing shows it."""
    if is_list(kind):
        return f"list of {type_name(value_type(kind))}"
    if pa.types.is_dictionary(kind):
        return f"dictionary of {type_name(value_type(kind))}"
    return "text" if is_text(kind) else str(kind)


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, float):
        value = f"{value:g}"
    if isinstance(value, list):
        value = f"[{', '.join(_shown(part) for part in value[:4])}{', ...' if len(value) > 4 else ''}]"
    text = str(value)
    return text if len(text) <= _EXAMPLE_CHARACTERS else text[: _EXAMPLE_CHARACTERS - 3] + "..."
