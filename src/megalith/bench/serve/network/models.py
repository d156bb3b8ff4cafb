"""Served shapes as folders of frozen models, and requests for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.bench.serve.ours import DensePrecision, freeze
from megalith.bench.serve.shapes import ServedShape, draw_request
from megalith.bench.serve.weights import ServedWeights
from megalith.export.folder import list_files, new_model, table_file, write_manifest
from megalith.export.manifest import DENSE_FILE
from megalith.export.tensor_file import write_tensors

Arrays = Mapping[str, NDArray[Any]]


def user_tables(shape: ServedShape, share: float) -> int:
    """How many of the first tables are the user's, so that these have about that share of the lookups."""
    total, count, seen = shape.ids_a_sample, 0, 0
    while count < len(shape.tables.rows) - 1 and seen + shape.tables.lookups[count] <= share * total + 1e-9:
        seen += shape.tables.lookups[count]
        count += 1
    return count


def write_shape(
    folder: Path,
    weights: ServedWeights,
    precision: DensePrecision,
    user_side: int = 0,
    name: str | None = None,
) -> Path:
    """The folder of a frozen model of this shape, whose first `user_side` features are the user's."""
    frozen = freeze(weights, precision)
    features = tuple(
        feature.model_copy(
            update={
                "user_side": place < user_side,
                "average_length": float(weights.shape.tables.lookups[place]),
            }
        )
        for place, feature in enumerate(frozen.manifest.features)
    )
    with new_model(folder) as target:
        rows = {f"{table}/rows": held for table, held in frozen.rows.items()}
        write_tensors(target / table_file(0), rows)
        write_tensors(target / DENSE_FILE, dict(frozen.weights()))
        manifest = frozen.manifest.model_copy(
            update={"features": features, "files": list_files(target), "name": name or frozen.manifest.name}
        )
        write_manifest(target, manifest)
    return folder


def tiled_request(shape: ServedShape, batch: int, seed: int) -> Arrays:
    """A request with every feature for every sample; ids of 32 bits."""
    drawn = draw_request(shape, batch, seed)
    return {"dense": drawn.dense.numpy(), "values": drawn.values.numpy(), "lengths": drawn.lengths.numpy()}


def user_request(shape: ServedShape, batch: int, user_side: int, seed: int) -> tuple[Arrays, Arrays]:
    """The same request twice: with the user's ids in every sample, and with these once."""
    draw = np.random.default_rng(seed)
    dense = draw.standard_normal((batch, shape.tables.numbers), dtype=np.float32)
    sizes = list(zip(shape.tables.rows, shape.tables.lookups, strict=True))
    user = [draw.integers(0, rows, lookups, dtype=np.int32) for rows, lookups in sizes[:user_side]]
    items = [draw.integers(0, rows, batch * lookups, dtype=np.int32) for rows, lookups in sizes[user_side:]]
    lookups = np.array(shape.tables.lookups, np.int32)[:, None]
    tiled = {
        "dense": dense,
        "values": np.concatenate([*(np.tile(ids, batch) for ids in user), *items]),
        "lengths": np.repeat(lookups, batch, axis=1),
    }
    once = {
        "dense": dense,
        "values": np.concatenate(items),
        "lengths": np.repeat(lookups[user_side:], batch, axis=1),
        "user_values": np.concatenate(user) if user else np.empty(0, np.int32),
        "user_lengths": lookups[:user_side],
    }
    return tiled, once
