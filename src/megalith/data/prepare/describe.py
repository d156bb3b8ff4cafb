"""What is written about a prepared data set: the columns of its parts, and its `schema.json`."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from megalith.core.schema import FeatureSpec
from megalith.data.dataset import DatasetSchema, Split
from megalith.data.prepare.id_sources import IdSource
from megalith.data.prepare.options import PrepareOptions
from megalith.data.prepare.recipe import PrepareRecipe
from megalith.data.prepare.rows import BadRows
from megalith.data.prepare.vocabulary import FeatureIds
from megalith.data.readers import LogSource


def output_schema(recipe: PrepareRecipe, source: LogSource) -> pa.Schema:
    """The columns of every part."""
    # Columns that say they hold no nulls are written and read without their levels.
    time = recipe.event_time
    scalars = [(recipe.label, pa.float32())]
    scalars += [] if recipe.weight is None else [(recipe.weight, pa.float32())]
    scalars += [] if time is None else [(time.name, pa.int64())]
    scalars += [(name, pa.float32()) for name in source.numeric]
    fields = [pa.field(name, kind, nullable=False) for name, kind in scalars]
    for feature in source.features:
        ids = pa.int64() if feature.name in recipe.raw else pa.int32()
        kind = pa.list_(ids) if feature.multi_hot else ids
        fields.append(pa.field(feature.name, kind, nullable=feature.multi_hot))
    return pa.schema(fields)


def describe_dataset(
    options: PrepareOptions,
    recipe: PrepareRecipe,
    source: LogSource,
    id_sources: Sequence[IdSource],
    ids: Sequence[FeatureIds],
    splits: dict[str, Split],
    bad_rows: BadRows,
) -> DatasetSchema:
    """The content of `schema.json`."""
    counted = any(source.has_vocabulary for source in id_sources) and not options.vocabulary_from
    return DatasetSchema(
        source=options.source,
        label=recipe.label,
        weight=recipe.weight,
        event_time=None if recipe.event_time is None else recipe.event_time.name,
        numeric=source.numeric,
        categorical=_features(recipe, source, ids),
        splits=splits,
        bad_rows=bad_rows.count,
        preparation={
            "recipe": recipe.model_dump(mode="json"),
            "min_count": options.min_count if counted else None,
            "max_vocabulary": options.max_vocabulary,
            "min_count_of": options.min_count_of,
            "max_vocabulary_of": options.max_vocabulary_of,
            "vocabulary_from": str(options.vocabulary_from) if options.vocabulary_from else None,
            "valid_fraction": options.valid_fraction,
            "valid_from": options.valid_from,
            "seed": options.seed,
            "limit_rows": options.limit_rows,
            "files": [str(path) for path in options.files],
            "valid_files": [str(path) for path in options.valid_files],
            "test_files": [str(path) for path in options.test_files],
            "first_bad_rows": [
                {"file": bad.file, "line": bad.line, "problem": bad.problem} for bad in bad_rows.first
            ],
        },
    )


def _features(recipe: PrepareRecipe, source: LogSource, ids: Sequence[FeatureIds]) -> tuple[FeatureSpec, ...]:
    lengths = {} if recipe.columns is None else recipe.columns.max_lengths
    features = []
    for feature, feature_ids in zip(source.features, ids, strict=True):
        # A list of at most one id may be empty, where a length of 1 stands for exactly one.
        most = lengths.get(feature.name, 1)
        features.append(
            FeatureSpec(
                name=feature.name,
                num_ids=feature_ids.num_ids,
                max_length=(most if most > 1 else None) if feature.multi_hot else 1,
                vocabulary=recipe.vocabularies.get(feature.name),
            )
        )
    return tuple(features)
