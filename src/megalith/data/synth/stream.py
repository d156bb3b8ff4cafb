"""Blocks of generated rows. A block depends only on the options, its split and its number.

So blocks can be made in any order, by any number of threads, and a file is the same however it is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from megalith.data.dataset import FIRST_ID
from megalith.data.synth.calibration import CategoricalShape, DatasetShape, NumericShape, load_shape
from megalith.data.synth.fields import (
    BAG_CARDINALITY,
    BagLengths,
    SynthBags,
    bag_shape,
    draw_bags,
    draw_ids,
    make_field,
    random_words,
)
from megalith.data.synth.options import SPLITS, SynthOptions
from megalith.data.synth.sampler import STEPS, number_table
from megalith.data.synth.tail import TailEffects, plant_tail
from megalith.data.synth.truth import (
    LOGIT_DEVIATION,
    VARIANCE_SHARES,
    Curve,
    FieldProduct,
    Floats,
    plant_curve,
    plant_products,
    solve_bias,
)

BLOCK_ROWS = 16_384
"""Of a block; fewer where rows are wide."""
_PILOT_BLOCKS = 4
_TRUTH, _PILOT, _ROWS = range(3)


@dataclass(frozen=True, slots=True)
class SynthBlock:
    """Generated rows, by column."""

    labels: Floats
    probabilities: Floats
    numbers: list[NDArray[np.int32]]
    """Raw values of the numeric fields; meaningless where missing."""
    numbers_missing: list[NDArray[np.bool_] | None]
    logs: list[Floats]
    """sign(x) log(1 + |x|), missing 0: as prepared data has them."""
    ids: list[NDArray[np.int32]]
    bags: list[SynthBags]


class SynthStream:
    """Makes blocks of rows; everything that blocks share is planned once from the options."""

    def __init__(self, options: SynthOptions) -> None:
        options.check()
        self.options = options
        tables = options.tables
        self.shape: DatasetShape = _dataset_shape(options)
        self.block_rows = BLOCK_ROWS if tables is None else tables.block_rows(BLOCK_ROWS)
        generator = _generator(options.seed, _TRUTH, 0, 0)
        self.fields = [
            make_field(shape, self._cardinality(shape), options.drift, generator)
            for shape in self.shape.categorical
        ]
        self.number_tables = [number_table(shape) for shape in self.shape.numeric]
        self.curves: list[Curve] = [plant_curve(shape, generator) for shape in self.shape.numeric]
        self.products: list[FieldProduct] = plant_products(
            [field.shares for field in self.fields], [field.missing + 1 for field in self.fields], generator
        )
        bag_generator = _generator(options.seed, _TRUTH, 1, 0)
        bags = _bags(options)
        self.bag_lengths = [lengths for _, lengths in bags]
        self.bag_fields = [
            make_field(shape, self._cardinality(shape), options.drift, bag_generator) for shape, _ in bags
        ]
        self.tail: dict[int, TailEffects] = {}
        if options.tail:
            self.tail = plant_tail(self.fields, _generator(options.seed, _TRUTH, 2, 0))
        self._groups = _missing_groups(self.shape)
        self._scales = dict.fromkeys((*VARIANCE_SHARES, "tail"), 1.0)
        self._bias = 0.0
        self._fit()

    def blocks(self, split: str) -> int:
        """How many blocks a split has; the last one is cut to its rows."""
        return -(-self.options.rows[split] // self.block_rows)

    def block(self, split: str, number: int) -> SynthBlock:
        """Rows [number * block_rows, ...) of a split."""
        position = SPLITS.index(split)
        before = sum(self.options.rows[name] for name in SPLITS[:position])
        rows = min(self.block_rows, self.options.rows[split] - number * self.block_rows)
        times = before + number * self.block_rows + np.arange(rows, dtype=np.float64)
        times /= self.options.total_rows
        generator = _generator(self.options.seed, _ROWS, position, number)
        block, parts = self._make(generator, times)
        logits = np.full(rows, self._bias, dtype=np.float32)
        for name, part in parts.items():
            logits += part * np.float32(self._scales[name])
        probabilities = (1.0 / (1.0 + np.exp(-logits))).astype(np.float32, copy=False)
        labels = (generator.random(rows, dtype=np.float32) < probabilities).astype(np.float32)
        return replace(block, labels=labels, probabilities=probabilities)

    def _cardinality(self, shape: CategoricalShape) -> int:
        stated = self.options.tables is not None
        return shape.cardinality if stated else self.options.cardinality(shape.cardinality)

    def _fit(self) -> None:
        """Scales the parts of the logit and solves the bias on rows of their own."""
        parts: dict[str, list[Floats]] = {}
        for number in range(_PILOT_BLOCKS):
            times = np.full(self.block_rows, (number + 0.5) / _PILOT_BLOCKS)
            _, made = self._make(_generator(self.options.seed, _PILOT, 0, number), times)
            for name, part in made.items():
                parts.setdefault(name, []).append(part)
        every = {name: np.concatenate(part).astype(np.float64) for name, part in parts.items()}
        joined = {name: every[name] for name in VARIANCE_SHARES if every[name].std() > 0}
        shares = sum(VARIANCE_SHARES[name] for name in joined)
        # The tail is not scaled: its deviation is that of one id, whatever else there is.
        logits = every.get("tail", np.zeros(self.block_rows * _PILOT_BLOCKS))
        for name, whole in joined.items():
            deviation = LOGIT_DEVIATION * float(np.sqrt(VARIANCE_SHARES[name] / shares))
            self._scales[name] = deviation / float(whole.std())
            logits += whole * self._scales[name]
        self._bias = solve_bias(logits, self.shape.click_rate)

    def _make(
        self, generator: np.random.Generator, times: NDArray[np.float64]
    ) -> tuple[SynthBlock, dict[str, Floats]]:
        """The rows without labels, and the parts of their logits before scaling."""
        rows = len(times)
        time = float(times[0])
        absent = {
            group: generator.integers(0, 1 << 16, rows, dtype=np.uint16) < np.uint16(round(share * STEPS))
            for group, share in self._groups.items()
        }
        from_ids, from_tail = np.zeros(rows, dtype=np.float32), np.zeros(rows, dtype=np.float32)
        ids, keys = [], []
        for position, field in enumerate(self.fields):
            missing = absent.get(_group(field.shape))
            if field.shape.text == "hour":
                hours = (times * field.cardinality).astype(np.int32)
                ids.append(hours + np.int32(FIRST_ID))
                keys.append(np.full(rows, field.rare, dtype=np.int32))
                continue
            field_ids, key = draw_ids(field, random_words(generator, rows), time, missing)
            from_ids += field.effects.at(time)[key]
            if position in self.tail:
                from_tail += self.tail[position].of_rows(field_ids, key)
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
            values = table.draw(random_words(generator, rows))
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
        for field, lengths in zip(self.bag_fields, self.bag_lengths, strict=True):
            bag, effect = draw_bags(field, lengths, generator, rows, time)
            bags.append(bag)
            from_bags += effect
        block = SynthBlock(from_ids[:0], from_ids[:0], numbers, gone, logs, ids, bags)
        parts = {"ids": from_ids, "numbers": from_numbers, "products": products, "bags": from_bags}
        if self.tail:
            parts["tail"] = from_tail
        return block, parts


def _dataset_shape(options: SynthOptions) -> DatasetShape:
    if options.tables is not None:
        return options.tables.dataset_shape(options.source)
    return load_shape(options.source)


def _bags(options: SynthOptions) -> list[tuple[CategoricalShape, BagLengths]]:
    """Features of several ids, and how many."""
    tables = options.tables
    if tables is not None:
        return [(tables.field(place), tables.lengths(place)) for place in tables.bags]
    lengths = BagLengths(5, "geometric")
    return [(bag_shape(f"M{number + 1}", BAG_CARDINALITY), lengths) for number in range(options.multi_hot)]


def _generator(seed: int, purpose: int, part: int, number: int) -> np.random.Generator:
    return np.random.Generator(
        np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(purpose, part, number)))
    )


def _group(shape: CategoricalShape | NumericShape) -> str:
    return shape.missing_group or shape.name


def _missing_groups(shape: DatasetShape) -> dict[str, float]:
    """How often each group of fields is missing."""
    fields: list[CategoricalShape | NumericShape] = [*shape.categorical, *shape.numeric]
    return {_group(field): field.missing for field in fields if field.missing > 0}
