"""Categorical fields to draw ids from: their distribution, its drift, and the effects of ids on clicks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from megalith.data.dataset import FIRST_ID, MISSING_ID
from megalith.data.synth.calibration import CategoricalShape
from megalith.data.synth.drift import RankChanges, plan_changes
from megalith.data.synth.sampler import STEPS, StepTable, Words, id_table
from megalith.data.synth.truth import FieldEffects, Floats, plant_field

BAG_CARDINALITY = 100_000
_BODY = 1024
_DRIFTING_FIELD = 256
"""Fields with fewer ids do not drift."""


@dataclass(frozen=True, slots=True)
class SynthBags:
    """A multi-hot column: row b holds ids[offsets[b] : offsets[b + 1]]."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BagLengths:
    """How many ids the samples of a multi-hot feature have."""

    mean: int
    spread: Literal["fixed", "varied", "geometric"]
    """All as many; evenly spread from none to twice as many; or many short bags and few long ones."""

    @property
    def longest(self) -> int:
        """Most ids of a sample."""
        return self.mean * {"fixed": 1, "varied": 2, "geometric": 4}[self.spread]

    def draw(self, generator: np.random.Generator, rows: int) -> NDArray[np.int64]:
        """One length for each row."""
        if self.spread == "geometric":
            return np.minimum(generator.geometric(1 / (self.mean + 1), rows) - 1, self.longest)
        if self.spread == "varied":
            return generator.integers(0, self.longest + 1, rows)
        return np.full(rows, self.mean, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SynthField:
    """A categorical field, ready to draw from."""

    shape: CategoricalShape
    cardinality: int
    table: StepTable
    changes: RankChanges
    effects: FieldEffects
    shares: NDArray[np.float64]

    @property
    def rare(self) -> int:
        """Key of every id outside the body."""
        return len(self.effects.start) - 2

    @property
    def rare_ids(self) -> range:
        """The ids outside the body that are drawn; behind them are the ids that enter."""
        return range(self.changes.body + FIRST_ID, self.cardinality - len(self.changes.entered) + FIRST_ID)

    @property
    def missing(self) -> int:
        """Key of a missing value."""
        return len(self.effects.start) - 1

    def keys_by_rank(self, time: float) -> NDArray[np.int32]:
        """The key that holds each rank at `time`; the last entry stands for all rarer ranks."""
        return np.append(self.changes.holders(time), np.int32(self.rare))

    def ids_by_key(self) -> NDArray[np.int32]:
        """The id of each key; ids that enter take the end of the id range."""
        entering = len(self.changes.entered)
        body = np.arange(self.changes.body)
        new = np.arange(self.cardinality - entering, self.cardinality)
        ids = np.concatenate([body + FIRST_ID, new + FIRST_ID, [-1, MISSING_ID]])
        return ids.astype(np.int32)


def make_field(
    shape: CategoricalShape, cardinality: int, drift: float, generator: np.random.Generator
) -> SynthField:
    """Plans a field's drift and plants its effects."""
    body = min(cardinality, _BODY)
    if cardinality >= _DRIFTING_FIELD:
        # Ids outside the body leave room for ids that enter.
        body = min(cardinality * 3 // 4, _BODY)
    whole = id_table(shape, cardinality)
    shares = np.diff(np.searchsorted(whole.start, np.arange(body + 1))) / STEPS * (1.0 - shape.missing)
    drifting = drift if cardinality >= _DRIFTING_FIELD else 0.0
    changes = plan_changes(shares, drifting, (cardinality - body) // 2, generator)
    effects = plant_field(shares, changes, drift, generator)
    table = id_table(shape, cardinality - len(changes.entered))
    return SynthField(shape, cardinality, table, changes, effects, shares)


def bag_shape(name: str, cardinality: int) -> CategoricalShape:
    """A multi-hot feature, such as recently seen items; invented, neither data set has one."""
    shares = (0.03, 0.05, 0.065, 0.09, 0.14, 0.21, 0.33, 0.44)
    return CategoricalShape(name=name, cardinality=cardinality, shares=shares, tail_exponent=0.8)


def draw_ids(
    field: SynthField, words: Words, time: float, missing: NDArray[np.bool_] | None
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Ids and keys, one for each random word."""
    ranks = field.table.draw(words)
    body = np.int32(field.changes.body)
    key = field.keys_by_rank(time)[np.minimum(ranks, body)]
    if missing is not None:
        key[missing] = field.missing
    ids = field.ids_by_key()[key]
    rare = ids < 0
    np.copyto(ids, ranks + np.int32(FIRST_ID), where=rare)
    return ids, key


def draw_bags(
    field: SynthField, lengths: BagLengths, generator: np.random.Generator, rows: int, time: float
) -> tuple[SynthBags, Floats]:
    """Bags of ids, and the sum of their effects."""
    offsets = np.concatenate([[0], np.cumsum(lengths.draw(generator, rows))]).astype(np.int32)
    ids, key = draw_ids(field, random_words(generator, int(offsets[-1])), time, None)
    running = np.concatenate([[0.0], np.cumsum(field.effects.at(time)[key], dtype=np.float64)])
    return SynthBags(ids, offsets), (running[offsets[1:]] - running[offsets[:-1]]).astype(np.float32)


def random_words(generator: np.random.Generator, count: int) -> Words:
    """Random 32-bit words, one for each value to draw."""
    return generator.integers(0, 1 << 32, count, dtype=np.uint32)
