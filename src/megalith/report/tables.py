"""A run's embedding tables: their size, and how uneven the traffic on them is."""

from __future__ import annotations

from dataclasses import dataclass

from megalith.core.errors import MegalithError
from megalith.data.dataset import Dataset
from megalith.data.stats import STATISTICS_FILE, FeatureStatistics, Statistics, measure, read_statistics
from megalith.train.recipe import Recipe
from megalith.train.run.folder import RunFolder

MEASURED_ROWS = 5_000_000
"""Data up to this size is measured when no statistics are stored beside it: a few seconds."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One table; `traffic` is that of each feature that reads it, empty where it is unknown."""

    name: str
    rows: int
    dim: int
    dtype: str
    weight_bytes: int
    features: tuple[str, ...]
    traffic: tuple[FeatureStatistics, ...]


@dataclass(frozen=True, slots=True)
class TablesFacts:
    """All tables, largest first, and why there are none or no traffic."""

    tables: tuple[TableFacts, ...] = ()
    data_rows: int | None = None
    note: str | None = None


def collect_tables(run: RunFolder, recipe: Recipe) -> TablesFacts:
    """The tables of the run's model; data that moved leaves their traffic unknown, which is a note."""
    try:
        is_there = recipe.data.raw is None and recipe.data.path.is_dir()
        dataset = Dataset(recipe.data.path) if is_there else run.trained_on()
        specs = recipe.embeddings.with_stores(recipe.model.tables(dataset.schema.categorical))
    except MegalithError as error:
        return TablesFacts(note=str(error))
    statistics, note = _statistics(dataset, recipe) if is_there else (None, _gone(recipe))
    known = {feature.name: feature for feature in statistics.features} if statistics else {}
    tables = [
        TableFacts(
            name=spec.name,
            rows=spec.rows,
            dim=spec.dim,
            dtype=spec.dtype,
            weight_bytes=spec.weight_bytes,
            features=spec.features,
            traffic=tuple(known[feature] for feature in spec.features if feature in known),
        )
        for spec in specs
    ]
    tables.sort(key=lambda table: (-table.weight_bytes, table.name))
    return TablesFacts(tuple(tables), statistics.rows if statistics else None, note)


def _gone(recipe: Recipe) -> str:
    if recipe.data.raw is not None:
        return "Traffic on tables is not known of raw files; `megalith data prepare` makes what is counted."
    return f"Traffic on tables is not known: {recipe.data.path} is not there any more."


def _statistics(dataset: Dataset, recipe: Recipe) -> tuple[Statistics | None, str | None]:
    split = recipe.data.train[0]
    command = f"megalith data stats {dataset.folder} --save"
    try:
        rows = dataset.split(split).rows
        if (dataset.folder / STATISTICS_FILE).exists():
            stored = read_statistics(dataset.folder)
            if stored.split == split and stored.rows == rows:
                return stored, None
        if rows <= MEASURED_ROWS:
            return measure(dataset.folder, split), None
    except MegalithError as error:
        return None, str(error)
    return None, f"Traffic on tables is not measured yet; run `{command}` and make the report again."
