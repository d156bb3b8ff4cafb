"""The vectors of a table beside the raw values that they stand for, some rows at a time.

    id       int64        the row of the table; of dynamic tables the raw id
    kind     string       `value`; `missing` and `unknown`, the rows of values that are missing or were rare;
                          `bucket` of hashed values; `id` where ids are what the data holds
    value    string       what stands in the raw data; null where it is no UTF-8, longer than 4096 bytes, or
                          longer than 8 and the data was prepared by a version that kept only its hash. The
                          number of a bucket, or of an id
    vector   fixed_size_list<float>[dim]

A table that several features look up has a column of values for each, named after it. Of dynamic tables
there is `value` only where raw values are text, null where they are longer than 8 bytes, and no `kind`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from megalith.core.errors import ConfigError, DataError, nearest
from megalith.core.schema import TableSpec, feature_order
from megalith.data.dataset import FIRST_ID
from megalith.data.prepare.id_sources import IdSource
from megalith.data.prepare.recipe import PrepareRecipe
from megalith.data.prepare.vocabulary import key_texts, vocabulary_path
from megalith.data.raw.transform import prepare_recipe
from megalith.data.readers.raw_ids import integer_keys
from megalith.embeddings.row_block import WEIGHT
from megalith.train.ids.export import open_dynamic_table
from megalith.train.ids.id_file import piece_rows
from megalith.train.learner.learner import Learner
from megalith.train.scoring.scorer import Scorer

_LOOKUP_ROWS = 8192
_SPECIAL = ["missing", "unknown"]


@dataclass(frozen=True, slots=True)
class TableVectors:
    """A table's rows as record batches of one schema."""

    table: str
    dim: int
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def table_vectors(scorer: Scorer, name: str) -> TableVectors:
    """The rows of a table at the scorer's checkpoint."""
    specs = scorer.recipe.embeddings.with_stores(
        scorer.recipe.model.tables(scorer.dataset.schema.categorical)
    )
    spec = next((each for each in specs if each.name == name), None)
    if spec is None:
        readers = [each.name for each in specs if name in each.features]
        known = nearest(name, [each.name for each in specs])
        if readers:
            known = f"feature '{name}' reads table '{readers[0]}', so ask for that."
        raise ConfigError(f"{scorer.run.folder} has no table '{name}'; {known}")
    return _dynamic(scorer, spec) if spec.is_dynamic else _rows(scorer, spec)


def _dynamic(scorer: Scorer, spec: TableSpec) -> TableVectors:
    table = open_dynamic_table(scorer.run, spec.name, scorer.step)
    kinds = [("id", pa.int64()), ("value", pa.string()), ("vector", pa.list_(pa.float32(), spec.dim))]
    schema = pa.schema([kind for kind in kinds if kind[0] != "value" or table.has_texts])

    def batches() -> Iterator[pa.RecordBatch]:
        for ids, parts in table.pieces((WEIGHT,), piece_rows(spec.dim)):
            numbers = ids.numpy()
            texts = [key_texts(integer_keys(numbers))] if table.has_texts else []
            yield pa.record_batch([pa.array(numbers), *texts, _lists(parts[WEIGHT])], schema=schema)

    return TableVectors(spec.name, spec.dim, schema, batches())


def _rows(scorer: Scorer, spec: TableSpec) -> TableVectors:
    """Rows of a table with one for every id, by lookups: whatever holds them."""
    names = ["value"] if len(spec.features) == 1 else list(spec.features)
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("kind", pa.string()),
            *((name, pa.string()) for name in names),
            ("vector", pa.list_(pa.float32(), spec.dim)),
        ]
    )

    def batches() -> Iterator[pa.RecordBatch]:
        values = [_values(scorer, feature, spec.rows) for feature in spec.features]
        for first in range(0, spec.rows, _LOOKUP_ROWS):
            ids = torch.arange(first, min(first + _LOOKUP_ROWS, spec.rows))
            found = [next(each) for each in values]
            columns = [pa.array(ids.numpy()), found[0][0], *(texts for _, texts in found)]
            vectors = _lookup(scorer.learner, spec, ids)
            yield pa.record_batch([*columns, _lists(vectors)], schema=schema)

    return TableVectors(spec.name, spec.dim, schema, batches())


def _lookup(learner: Learner, spec: TableSpec, ids: Tensor) -> Tensor:
    """The vectors of some ids, of which every sample has one; all other features have none."""
    tables = learner.tables
    features, feature = feature_order(tables), spec.features[0]
    lengths = torch.zeros(len(features), len(ids), dtype=torch.int64)
    lengths[features.index(feature)] = 1
    offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int64)
    torch.cumsum(lengths.view(-1), 0, out=offsets[1:])
    embeddings = learner.embeddings
    with torch.inference_mode():
        resolved = embeddings.resolve(embeddings.exchange(ids, offsets), trains=False)
        found = embeddings.finish_lookup(embeddings.start_lookup(resolved))
    if spec.pooling == "none":
        return found.sequences[spec.name, feature]
    before = sum(table.output_dim for table in tables[: [each.name for each in tables].index(spec.name)])
    return found.pooled[:, before : before + spec.dim]


def _values(scorer: Scorer, feature: str, rows: int) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Kind and raw value of the ids of a feature, `_LOOKUP_ROWS` at a time."""
    recipe = prepare_recipe(scorer.dataset.schema, scorer.dataset.folder)
    source = None if recipe is None else _id_source(recipe, feature)
    if source is None or source.hash_buckets:
        for first in range(0, rows, _LOOKUP_ROWS):
            ids = np.arange(first, min(first + _LOOKUP_ROWS, rows))
            kind = "id" if source is None else "bucket"
            special = [] if source is None else _SPECIAL[first:]
            numbers = ids if source is None else ids - FIRST_ID
            texts = pa.array(numbers).cast(pa.string()).to_pylist()
            yield (
                pa.array([*special, *[kind] * (len(ids) - len(special))]),
                pa.array([*[None] * len(special), *texts[len(special) :]], pa.string()),
            )
        return
    if scorer.run.inputs.exists():
        scorer.run.inputs.check_vocabulary()
    kinds, texts = _SPECIAL, pa.array([None, None], pa.string())
    done, size = 0, min(_LOOKUP_ROWS, rows)
    path = vocabulary_path(scorer.dataset.folder, source.name)
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_LOOKUP_ROWS, columns=["text"], use_threads=False):
                kinds = [*kinds, *["value"] * batch.num_rows]
                texts = pa.concat_arrays([texts, batch.column(0).cast(pa.string())])
                while len(texts) >= size > 0:
                    yield pa.array(kinds[:size]), texts.slice(0, size)
                    kinds, texts, done = kinds[size:], texts.slice(size), done + size
                    size = min(_LOOKUP_ROWS, rows - done)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is damaged or missing ({error}); copy it from the data set.") from error
    while size > 0:
        # A table may have more rows than its feature has ids.
        lacking = [None] * (size - len(texts))
        yield (
            pa.array([*kinds, *lacking], pa.string()),
            pa.concat_arrays([texts, pa.array(lacking, pa.string())]),
        )
        kinds, texts, done = [], pa.array([], pa.string()), done + size
        size = min(_LOOKUP_ROWS, rows - done)


def _id_source(recipe: PrepareRecipe, feature: str) -> IdSource:
    """Where a feature has its ids from, perhaps with others."""
    features = recipe.open((), 1).features
    place = [each.name for each in features].index(feature)
    return next(source for source in recipe.id_sources(features) if place in source.members)


def _lists(part: Tensor) -> pa.Array:
    flat = pa.array(part.float().contiguous().view(-1).numpy())
    return pa.FixedSizeListArray.from_arrays(flat, part.shape[1])
