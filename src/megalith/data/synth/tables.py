"""Data of a stated shape: so many tables, rows of each, ids of a bag, numbers. `model_shapes.yaml` has those
of models that others publish; the source `tables` is for one's own.

No real data set is resembled: ids are skewed as those of multi-hot features are here, numbers as Criteo's.
Labels follow a planted truth all the same, so there is something to learn.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from megalith.core.config import Config, parse_config
from megalith.core.errors import ConfigError
from megalith.data.dataset import FIRST_ID
from megalith.data.synth.calibration import (
    CategoricalShape,
    DatasetShape,
    NumericShape,
    SynthSource,
    load_shape,
)
from megalith.data.synth.fields import BagLengths, bag_shape

_FILE = "model_shapes.yaml"
_CLICK_RATE = 0.256
_BLOCK_VALUES = 1 << 22
"""Most ids and numbers of a block, so that blocks of wide rows take no more memory than others."""
_MIN_BLOCK_ROWS = 256


class _PublishedShape(Config):
    tables: int
    rows: int | tuple[int, ...]
    lookups: int | tuple[int, ...]
    numbers: int


@dataclass(frozen=True, slots=True)
class TableShapes:
    """Tables that a data set has ids for, one feature each, and how many numbers there are beside them."""

    rows: tuple[int, ...]
    """Of each table, the two that stand for missing and unknown values included."""
    lookups: tuple[int, ...]
    """Ids that a sample has for each."""
    numbers: int
    varied: bool = False
    """Whether samples have from none to twice as many ids; else all have the same number."""

    def check(self) -> None:
        """Raises a ConfigError that names the option which is out of range."""
        if not self.rows:
            raise ConfigError("--tables must be at least 1.")
        for name, values, least in (
            ("--table-rows", self.rows, FIRST_ID + 1),
            ("--lookups", self.lookups, 1),
        ):
            if min(values) < least:
                raise ConfigError(f"{name} must be at least {least}, not {min(values)}.")
        if max(self.rows) > 1 << 30:
            raise ConfigError(f"--table-rows must be at most {1 << 30}, not {max(self.rows)}.")
        if not 0 <= self.numbers <= 100_000:
            raise ConfigError(f"--numbers must lie between 0 and 100000, not {self.numbers}.")

    def cut(self, rows: int) -> TableShapes:
        """The same with at most so many rows a table."""
        smaller = tuple(min(own, rows) for own in self.rows)
        return TableShapes(smaller, self.lookups, self.numbers, self.varied)

    @property
    def one_hot(self) -> list[int]:
        """Tables for which every sample has exactly one id."""
        return [place for place, count in enumerate(self.lookups) if count == 1 and not self.varied]

    @property
    def bags(self) -> list[int]:
        """All other tables."""
        return [place for place in range(len(self.rows)) if place not in self.one_hot]

    def block_rows(self, most: int) -> int:
        """Rows of a block: a power of two, fewer where rows are wide."""
        a_row = sum(self.lookups) + self.numbers
        rows = most
        while rows > _MIN_BLOCK_ROWS and rows * a_row > _BLOCK_VALUES:
            rows //= 2
        return rows

    def field(self, place: int) -> CategoricalShape:
        """The feature that looks up table `place`."""
        return bag_shape(f"t{place}", self.rows[place] - FIRST_ID)

    def lengths(self, place: int) -> BagLengths:
        """Of the bags that look up table `place`."""
        return BagLengths(self.lookups[place], "varied" if self.varied else "fixed")

    def dataset_shape(self, source: SynthSource) -> DatasetShape:
        """What a stream draws from, without the features of several ids."""
        numeric = load_shape("criteo").numeric
        return DatasetShape(
            source=source,
            rows=0,
            click_rate=_CLICK_RATE,
            observed_rows=0,
            numeric=tuple(
                NumericShape(name=f"n{place}", quantiles=numeric[place % len(numeric)].quantiles)
                for place in range(self.numbers)
            ),
            categorical=tuple(self.field(place) for place in self.one_hot),
        )


def model_shape(source: SynthSource) -> TableShapes:
    """The shape of a published model, rows as `model_shapes.yaml` caps them."""
    shape = _published()[source]
    return make_shapes(shape.tables, shape.rows, shape.lookups, shape.numbers)


def make_shapes(
    tables: int,
    rows: int | tuple[int, ...],
    lookups: int | tuple[int, ...],
    numbers: int,
    varied: bool = False,
) -> TableShapes:
    """So many tables; `rows` and `lookups` are one number for all of them, or one for each.

    >>> make_shapes(2, 1000, (1, 20), numbers=4)
    TableShapes(rows=(1000, 1000), lookups=(1, 20), numbers=4, varied=False)
    """
    each = [(value,) * tables if isinstance(value, int) else value for value in (rows, lookups)]
    for name, values in zip(("--table-rows", "--lookups"), each, strict=True):
        if len(values) != tables:
            raise ConfigError(
                f"{name} has {len(values)} numbers for {tables} tables; give one, or one for each."
            )
    shapes = TableShapes(each[0], each[1], numbers, varied)
    shapes.check()
    return shapes


@cache
def _published() -> dict[str, _PublishedShape]:
    content: Any = yaml.safe_load((files(__package__) / _FILE).read_text(encoding="utf-8"))
    return {name: parse_config(_PublishedShape, shape, _FILE) for name, shape in content.items()}
