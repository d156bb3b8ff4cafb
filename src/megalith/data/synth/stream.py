"""Blocks of generated rows. A block depends only on the options, its split and its number.

So blocks can be made in any order, by any number of threads, and a file is the same however it is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from megalith.core.errors import ConfigError
from megalith.data.dataset import FIRST_ID, MISSING_ID
from megalith.data.synth.calibration import CategoricalShape, NumericShape, Shape, Source, load_shape
from megalith.data.synth.drift import RankChanges, plan_changes
from megalith.data.synth.sampler import STEPS, StepTable, Words, id_table, number_table
from megalith.data.synth.truth import (
    LOGIT_DEVIATION,
    VARIANCE_SHARES,
    Curve,
    FieldEffects,
    Floats,
    Product,
    plant_curve,
    plant_field,
    plant_products,
    solve_bias,
)

BLOCK_ROWS = 16_384
SPLITS = ("train", "valid", "test")
MAX_BAG = 20
_BODY = 1024
_SMALLEST_CAP = 10_000
_PILOT_BLOCKS = 4
_DRIFTING_FIELD = 256
"""Fields with fewer ids keep them all in place."""

_TRUTH, _PILOT, _ROWS = range(3)


@dataclass(frozen=True, slots=True)
class SynthOptions:
    """What to generate; splits follow each other in time: train, valid, test."""

    source: Source
    train_rows: int
    valid_rows: int = 0
    test_rows: int = 0
    seed: int = 0
    drift: float = 0.05
    multi_hot: int = 0
    scale: float | Literal["auto"] = "auto"
    """Share of the real cardinalities; "auto" takes no more ids than there are rows."""

    def check(self) -> None:
        if self.train_rows <= 0:
            raise ConfigError(f"--rows must be at least 1, not {self.train_rows}.")
        for name, rows in (("--valid-rows", self.valid_rows), ("--test-rows", self.test_rows)):
            if rows < 0:
                raise ConfigError(f"{name} must not be negative, not {rows}.")
        if self.seed < 0:
            raise ConfigError(f"--seed must not be negative, not {self.seed}.")
        if not 0.0 <= self.drift <= 1.0:
            raise ConfigError(f"--drift must lie between 0 (off) and 1, not {self.drift}.")
        if not 0 <= self.multi_hot <= 100:
            raise ConfigError(f"--multi-hot must lie between 0 and 100, not {self.multi_hot}.")
        if self.scale != "auto" and not 0.0 < self.scale <= 1.0:
            raise ConfigError(
                f"--scale must be 'auto', 'full' or a number above 0 and up to 1, not {self.scale}."
            )

    @property
    def rows(self) -> dict[str, int]:
        return dict(zip(SPLITS, (self.train_rows, self.valid_rows, self.test_rows), strict=True))

    @property
    def total_rows(self) -> int:
        return self.train_rows + self.valid_rows + self.test_rows

    def cardinality(self, real: int) -> int:
        """How many ids a field of `real` ids gets here."""
        if self.scale == "auto":
            return min(real, max(self.total_rows, _SMALLEST_CAP))
        return max(min(real, _SMALLEST_CAP), round(real * self.scale))


@dataclass(frozen=True, slots=True)
class Bags:
    """A multi-hot column: row b holds ids[offsets[b] : offsets[b + 1]]."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Block:
    """Generated rows, by column."""

    labels: Floats
    probabilities: Floats
    numbers: list[NDArray[np.int32]]
    """Raw values of the numeric fields; meaningless where missing."""
    numbers_missing: list[NDArray[np.bool_] | None]
    logs: list[Floats]
    """sign(x) log(1 + |x|), missing 0: as prepared data has them."""
    ids: list[NDArray[np.int32]]
    bags: list[Bags]


@dataclass(frozen=True, slots=True)
class Field:
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
    def missing(self) -> int:
        return len(self.effects.start) - 1

    def keys_by_rank(self, time: float) -> NDArray[np.int32]:
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
) -> Field:
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
    return Field(shape, cardinality, table, changes, effects, shares)


def bag_shape(number: int) -> CategoricalShape:
    """A multi-hot feature, such as recently seen items; invented, neither data set has one."""
    shares = (0.03, 0.05, 0.065, 0.09, 0.14, 0.21, 0.33, 0.44)
    return CategoricalShape(name=f"M{number}", cardinality=100_000, shares=shares, tail_exponent=0.8)


class Stream:
    """Everything a block needs, planned once from the options."""

    def __init__(self, options: SynthOptions) -> None:
        options.check()
        self.options = options
        self.shape: Shape = load_shape(options.source)
        generator = _generator(options.seed, _TRUTH, 0, 0)
        self.fields = [
            make_field(shape, options.cardinality(shape.cardinality), options.drift, generator)
            for shape in self.shape.categorical
        ]
        self.number_tables = [number_table(shape) for shape in self.shape.numeric]
        self.curves: list[Curve] = [plant_curve(shape, generator) for shape in self.shape.numeric]
        self.products: list[Product] = plant_products(
            [field.shares for field in self.fields], [field.missing + 1 for field in self.fields], generator
        )
        bag_generator = _generator(options.seed, _TRUTH, 1, 0)
        bags = [bag_shape(number + 1) for number in range(options.multi_hot)]
        self.bag_fields = [
            make_field(shape, options.cardinality(shape.cardinality), options.drift, bag_generator)
            for shape in bags
        ]
        self._groups = _missing_groups(self.shape)
        self._scales = dict.fromkeys(VARIANCE_SHARES, 1.0)
        self._bias = 0.0
        self._fit()

    def blocks(self, split: str) -> int:
        """How many blocks a split has; the last one is cut to its rows."""
        return -(-self.options.rows[split] // BLOCK_ROWS)

    def block(self, split: str, number: int) -> Block:
        """Rows [number * BLOCK_ROWS, ...) of a split."""
        place = SPLITS.index(split)
        before = sum(self.options.rows[name] for name in SPLITS[:place])
        rows = min(BLOCK_ROWS, self.options.rows[split] - number * BLOCK_ROWS)
        times = before + number * BLOCK_ROWS + np.arange(rows, dtype=np.float64)
        times /= self.options.total_rows
        generator = _generator(self.options.seed, _ROWS, place, number)
        block, parts = self._make(generator, times)
        logits = np.full(rows, self._bias, dtype=np.float32)
        for name, part in parts.items():
            logits += part * np.float32(self._scales[name])
        probabilities = (1.0 / (1.0 + np.exp(-logits))).astype(np.float32, copy=False)
        labels = (generator.random(rows, dtype=np.float32) < probabilities).astype(np.float32)
        return replace(block, labels=labels, probabilities=probabilities)

    def _fit(self) -> None:
        """Scales the parts of the logit and solves the bias on rows of their own."""
        parts: dict[str, list[Floats]] = {}
        for number in range(_PILOT_BLOCKS):
            times = np.full(BLOCK_ROWS, (number + 0.5) / _PILOT_BLOCKS)
            _, made = self._make(_generator(self.options.seed, _PILOT, 0, number), times)
            for name, part in made.items():
                parts.setdefault(name, []).append(part)
        every = {name: np.concatenate(part).astype(np.float64) for name, part in parts.items()}
        joined = {name: whole for name, whole in every.items() if whole.std() > 0}
        shares = sum(VARIANCE_SHARES[name] for name in joined)
        logits = np.zeros(BLOCK_ROWS * _PILOT_BLOCKS)
        for name, whole in joined.items():
            deviation = LOGIT_DEVIATION * float(np.sqrt(VARIANCE_SHARES[name] / shares))
            self._scales[name] = deviation / float(whole.std())
            logits += whole * self._scales[name]
        self._bias = solve_bias(logits, self.shape.click_rate)

    def _make(
        self, generator: np.random.Generator, times: NDArray[np.float64]
    ) -> tuple[Block, dict[str, Floats]]:
        """The rows without labels, and the parts of their logits before scaling."""
        rows = len(times)
        time = float(times[0])
        absent = {
            group: generator.integers(0, 1 << 16, rows, dtype=np.uint16) < np.uint16(round(share * STEPS))
            for group, share in self._groups.items()
        }
        from_ids = np.zeros(rows, dtype=np.float32)
        ids, keys = [], []
        for field in self.fields:
            missing = absent.get(_group(field.shape))
            if field.shape.text == "hour":
                hours = (times * field.cardinality).astype(np.int32)
                ids.append(hours + np.int32(FIRST_ID))
                keys.append(np.full(rows, field.rare, dtype=np.int32))
                continue
            field_ids, key = _draw_ids(field, _words(generator, rows), time, missing)
            from_ids += field.effects.at(time)[key]
            ids.append(field_ids)
            keys.append(key)
        products = np.zeros(rows, dtype=np.float32)
        for product in self.products:
            left, right = keys[product.left], keys[product.right]
            for axis in range(product.left_vectors.shape[1]):
                products += product.left_vectors[left, axis] * product.right_vectors[right, axis]
        numbers, logs, gone = [], [], []
        from_numbers = np.zeros(rows, dtype=np.float32)
        for shape, table, curve in zip(self.shape.numeric, self.number_tables, self.curves, strict=True):
            values = table.draw(_words(generator, rows))
            # In float64, as `prepare` does it, so that both give the same bits.
            log = np.copysign(np.log1p(np.abs(values), dtype=np.float64), values).astype(np.float32)
            missing = absent.get(_group(shape))
            if missing is not None:
                log[missing] = 0.0
            from_numbers += curve(log)
            numbers.append(values)
            logs.append(log)
            gone.append(missing)
        bags, from_bags = [], np.zeros(rows, dtype=np.float32)
        for field in self.bag_fields:
            bag, effect = _draw_bags(field, generator, rows, time)
            bags.append(bag)
            from_bags += effect
        block = Block(from_ids[:0], from_ids[:0], numbers, gone, logs, ids, bags)
        return block, {"ids": from_ids, "numbers": from_numbers, "products": products, "bags": from_bags}


def _draw_ids(
    field: Field, words: Words, time: float, missing: NDArray[np.bool_] | None
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


def _draw_bags(field: Field, generator: np.random.Generator, rows: int, time: float) -> tuple[Bags, Floats]:
    """Bags of 0 to MAX_BAG ids, 5 on average, and the sum of their effects."""
    lengths = np.minimum(generator.geometric(1 / 6, rows) - 1, MAX_BAG)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids, key = _draw_ids(field, _words(generator, int(offsets[-1])), time, None)
    running = np.concatenate([[0.0], np.cumsum(field.effects.at(time)[key], dtype=np.float64)])
    return Bags(ids, offsets), (running[offsets[1:]] - running[offsets[:-1]]).astype(np.float32)


def _words(generator: np.random.Generator, count: int) -> Words:
    return generator.integers(0, 1 << 32, count, dtype=np.uint32)


def _generator(seed: int, purpose: int, part: int, number: int) -> np.random.Generator:
    return np.random.Generator(
        np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(purpose, part, number)))
    )


def _group(shape: CategoricalShape | NumericShape) -> str:
    return shape.missing_group or shape.name


def _missing_groups(shape: Shape) -> dict[str, float]:
    """How often each group of fields is missing."""
    fields: list[CategoricalShape | NumericShape] = [*shape.categorical, *shape.numeric]
    return {_group(field): field.missing for field in fields if field.missing > 0}
