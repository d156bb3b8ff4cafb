"""`RowTransform`: what a folder's schema and vocabulary make of raw rows."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from megalith.core.config import parse_config
from megalith.core.errors import DataError
from megalith.data.dataset import SCHEMA_FILE, DatasetSchema, read_schema
from megalith.data.loader.columns import BagColumn, WindowColumns
from megalith.data.prepare.recipe import PrepareRecipe
from megalith.data.prepare.vocabulary import FeatureIds, ids_by_feature, read_ids
from megalith.data.readers import Bag, LogBlock

MEMORY_BYTES = 2 << 30
"""Vocabularies up to here are looked up in memory, what is more in files that the system may evict."""


class RowTransform:
    """Blocks of raw rows to columns of numbers and ids; threads may share it."""

    def __init__(self, folder: Path, memory_bytes: int = MEMORY_BYTES) -> None:
        self.folder = folder
        self.schema = read_schema(folder)
        self.recipe = prepare_recipe(self.schema, folder)
        """How raw files become columns; None where ids are what files hold, as of generated data."""
        raw = [feature.is_raw for feature in self.schema.categorical]
        self._id_type = np.int64 if any(raw) else np.int32
        self._ids = [] if self.recipe is None else self._feature_ids(self.recipe, memory_bytes)

    def columns(self, block: LogBlock | WindowColumns) -> WindowColumns:
        """The rows of a block as batches are cut from them."""
        if isinstance(block, WindowColumns):
            return block
        rows = block.num_rows
        dense = np.empty((len(block.numbers), rows), np.float32)
        for position, column in enumerate(block.numbers):
            dense[position] = column
        one_hot = sum(not feature.multi_hot for feature in self.schema.categorical)
        ids, bags = np.empty((one_hot, rows), self._id_type), []
        position = 0
        for keys, (to_ids, _) in zip(block.keys, self._ids, strict=True):
            if isinstance(keys, Bag):
                bags.append(BagColumn(to_ids(keys.keys), np.diff(keys.row_ends, prepend=0)))
            else:
                ids[position] = to_ids(keys)
                position += 1
        return WindowColumns(dense, block.labels, block.weights, ids, tuple(bags), block.times)

    def _feature_ids(self, recipe: PrepareRecipe, memory_bytes: int) -> list[FeatureIds]:
        source = recipe.open((), 1)
        categorical = self.schema.categorical
        same = [feature.name for feature in source.features] == [feature.name for feature in categorical]
        if not same or source.numeric != self.schema.numeric:
            raise DataError(
                f"{self.folder / SCHEMA_FILE} lists other columns than its preparation makes; prepare the "
                "data again."
            )
        sources = recipe.id_sources(source.features)
        names = [each.name for each in sources if each.has_vocabulary]
        with tempfile.TemporaryDirectory(prefix="megalith-ids-") as work_folder:
            counted = read_ids(self.folder, names, Path(work_folder), memory_bytes)
        ids = ids_by_feature(sources, counted)
        for feature, (_, num_ids) in zip(categorical, ids, strict=True):
            if num_ids != feature.num_ids:
                raise DataError(
                    f"{self.folder}: the vocabulary of feature '{feature.name}' has {num_ids} ids and "
                    f"{SCHEMA_FILE} says {feature.num_ids}; prepare the data again."
                )
        return ids


def prepare_recipe(schema: DatasetSchema, folder: Path) -> PrepareRecipe | None:
    """How the data set of a schema was made from raw files; None where it was not."""
    content = schema.preparation.get("recipe")
    if not isinstance(content, dict):
        return None
    fix = "prepare the data again"
    return parse_config(PrepareRecipe, content, f"{folder / SCHEMA_FILE}, preparation", fix, DataError)
