"""The models that are served in benchmarks: shapes of tables as `megalith data synth` has them, layers as the
recipe of that name has them, random requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from megalith.core.schema import FeatureSpec
from megalith.data.synth.tables import TableShapes, model_shape
from megalith.models.dlrm.config import DLRMConfig
from megalith.train.recipe import load_recipe

ShapeName = Literal["rm1", "rm2", "rm3", "dlrm-v2", "dlrm-v2-half"]
SHAPES: tuple[ShapeName, ...] = get_args(ShapeName)
BATCHES = (1, 16, 64, 270, 700)
"""One sample, small batches, and the mean and largest query of MLPerf's dlrm-v2."""


@dataclass(frozen=True, slots=True)
class ServedShape:
    """A model to serve: one feature a table, all samples with as many ids of it."""

    name: ShapeName
    tables: TableShapes
    model: DLRMConfig

    @property
    def dim(self) -> int:
        """Columns of every table."""
        return self.model.dim

    @property
    def ids_a_sample(self) -> int:
        """Rows that a sample reads, over all tables."""
        return sum(self.tables.lookups)

    @property
    def num_rows(self) -> int:
        """Of all tables."""
        return sum(self.tables.rows)

    @property
    def features(self) -> tuple[FeatureSpec, ...]:
        """One for each table, in their order."""
        return tuple(
            FeatureSpec(name=f"t{place}", num_ids=rows, max_length=lookups)
            for place, (rows, lookups) in enumerate(zip(self.tables.rows, self.tables.lookups, strict=True))
        )


@dataclass(frozen=True, slots=True)
class Request:
    """Samples to score: numbers, and ids feature-major as tables stand."""

    dense: Tensor
    """float32 [batch, numbers]"""
    values: Tensor
    """int32 [ids]"""
    offsets: Tensor
    """int32 [tables * batch + 1]"""
    lengths: Tensor
    """int32 [tables, batch]: the same, as servers are sent them"""

    @property
    def batch(self) -> int:
        """Samples."""
        return len(self.dense)

    def ids_of(self, shape: ServedShape) -> list[np.ndarray]:
        """For each table int32 [batch, ids of a sample], where they lie."""
        found, first = [], 0
        values = self.values.numpy()
        for lookups in shape.tables.lookups:
            found.append(values[first : first + self.batch * lookups].reshape(self.batch, lookups))
            first += self.batch * lookups
        return found


def served_shape(name: ShapeName, rows: int | None = None) -> ServedShape:
    """The shape of that name, with at most `rows` rows a table."""
    model = load_recipe(name).model
    assert isinstance(model, DLRMConfig)
    tables = model_shape("dlrm-v2" if name == "dlrm-v2-half" else name)
    return ServedShape(name, tables if rows is None else tables.cut(rows), model)


def draw_request(shape: ServedShape, batch: int, seed: int) -> Request:
    """A random request; every row is as likely as any other, which is the hardest for caches."""
    generator = np.random.default_rng(seed)
    values = [
        generator.integers(0, rows, batch * lookups, dtype=np.int32)
        for rows, lookups in zip(shape.tables.rows, shape.tables.lookups, strict=True)
    ]
    lengths = np.repeat(np.array(shape.tables.lookups, dtype=np.int32)[:, None], batch, axis=1)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    dense = generator.standard_normal((batch, shape.tables.numbers), dtype=np.float32)
    return Request(*map(torch.from_numpy, (dense, np.concatenate(values), offsets, lengths)))
