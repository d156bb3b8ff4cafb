"""Rows of tables, whose columns are named as those that `data prepare` was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from megalith.core.errors import DataError
from megalith.data.prepare.recipe import TEXT_FORMATS, PrepareRecipe
from megalith.data.raw.column_types import Column, as_categories, as_numbers, as_vectors
from megalith.data.raw.record_files import ColumnNames, Records
from megalith.data.raw.row_source import RawBlock, refuse_bad_rows
from megalith.data.readers import ColumnChoice, FrameSource
from megalith.data.readers.frames.files import FrameBatch, ParquetFormat
from megalith.data.readers.frames.text_lists import split_columns
from megalith.ops.text.keys import Keys
from megalith.ops.text.rows import Role, parse_delimited, plan_columns

ReadRecords = Callable[[ColumnNames], Iterator[Records]]
_HOUR = "hour"
_HOUR_PLAN = plan_columns([Role.HOUR, Role.SKIP])


class ColumnRows:
    """Parses record batches with the reader that `data prepare` has for Parquet."""

    def __init__(self, recipe: PrepareRecipe, read: ReadRecords, keep: Sequence[str] = ()) -> None:
        self._read = read
        self._choice = choice = column_choice(recipe)
        self._features = [feature.name for feature in recipe.open((), 1).features]
        self._has_hours = recipe.columns is None and "hour_of_day" in self._features
        self._integers_known = recipe.columns is not None
        self._reader = FrameSource(
            ParquetFormat(), (), choice, recipe.numeric, recipe.missing_number, recipe.raw
        )
        names = (*choice.numbers, *(name for name, _ in choice.features))
        self._columns = ColumnNames((_HOUR, *names) if self._has_hours else names, tuple(keep))

    def items(self) -> Iterator[Records]:
        """Record batches of all columns that are needed."""
        return self._read(self._columns)

    def parse(self, item: Records) -> RawBlock:
        """The rows of a record batch."""
        batch = item.batch
        block = self._reader.parse(FrameBatch(Path(item.where), item.first_row, self._typed(item)))
        refuse_bad_rows(block.bad_rows)
        keys = dict(zip((feature.name for feature in self._reader.features), block.keys, strict=True))
        if self._has_hours:
            keys |= zip(("hour_of_day", "weekday"), _hour_keys(item), strict=True)
        kept = batch.select(list(self._columns.kept)) if self._columns.kept else None
        return RawBlock(replace(block, keys=tuple(keys[name] for name in self._features)), kept)

    def _typed(self, item: Records) -> pa.RecordBatch:
        """The columns of a batch, in types that the reader takes, with labels that nobody looks at."""

        def column(name: str) -> Column:
            return Column(item.where, item.first_row, name, batch.column(name))

        choice = self._choice
        batch = split_columns(item.batch, choice.separators)
        columns = {choice.label: pa.array(np.zeros(item.batch.num_rows, np.float32))}
        columns |= {
            name: as_vectors(column(name)) if name in choice.vectors else as_numbers(column(name))
            for name in choice.numbers
        }
        for name, multi_hot in choice.features:
            integers = name in choice.integers if self._integers_known else None
            columns[name] = as_categories(column(name), multi_hot=multi_hot, integers=integers)
        return pa.record_batch(list(columns.values()), names=list(columns))


def column_choice(recipe: PrepareRecipe) -> ColumnChoice:
    """The columns of a table that holds what the files of a preparation held."""
    if recipe.columns is not None:
        # Nobody looks at weights, as at labels.
        return recipe.columns.model_copy(update={"weight": None})
    source = recipe.open((), 1)
    text = TEXT_FORMATS.get(recipe.source)
    numbers = () if text is None else tuple(each.name for each in text.columns if each.kind == "number")
    derived = {*numbers, "hour_of_day", "weekday"} if text is not None else set()
    features = tuple(
        (feature.name, feature.multi_hot) for feature in source.features if feature.name not in derived
    )
    return ColumnChoice(label=recipe.label, numbers=numbers, features=features)


def _hour_keys(item: Records) -> tuple[Keys, Keys]:
    """Hour of day and weekday of hours as YYMMDDHH, by the parser of text."""
    column = item.batch.column(_HOUR)
    whole = as_categories(Column(item.where, item.first_row, _HOUR, column), multi_hot=False, integers=None)
    texts = whole.cast(pa.large_string()).fill_null("").to_pylist()
    rows = parse_delimited("".join(f"{text},\n" for text in texts).encode(), ",", _HOUR_PLAN)
    if len(rows.problems) or len(rows.labels) != len(texts):
        row = int(rows.problems[0][0]) if len(rows.problems) else 0
        raise DataError(
            f"{item.where}, row {item.first_row + row}: column '{_HOUR}' holds '{texts[row]}', which is not "
            "an hour as YYMMDDHH; correct it or leave it empty."
        )
    hours, weekdays = rows.keys
    return hours, weekdays
