"""A frozen model as a partition sees it, from its manifest and the headers of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from megalith.core.errors import ServeError
from megalith.export.partition.served.dense_work import work_of_program
from megalith.export.partition.served.model import ServedModel, ServedTable

if TYPE_CHECKING:
    from megalith.export.manifest import FrozenTableRecord, ModelManifest

_MAX_HEADER = 100_000_000


def served_manifest(manifest: ModelManifest, weights: Path) -> ServedModel:
    """The model of a manifest; `weights` is its file of dense weights, of which only the header is read."""
    dense = work_of_program(manifest.program, tensor_shapes(weights), manifest.num_dense)
    lengths = {
        feature.name: (feature.average_length if feature.average_length is not None else 1.0)
        for feature in manifest.features
    }
    user = {feature.name for feature in manifest.features if feature.user_side}
    precisions = {table.precision for table in manifest.tables}
    return ServedModel(
        manifest.name,
        tuple(_table(record, lengths, user) for record in manifest.tables),
        dense,
        precisions.pop() if len(precisions) == 1 else "mixed",
    )


def _table(record: FrozenTableRecord, lengths: dict[str, float], user: set[str]) -> ServedTable:
    """Vectors of a table without pooling are as many as its ids."""
    item = [lengths.get(name, 1.0) for name in record.features if name not in user]
    once = [lengths.get(name, 1.0) for name in record.features if name in user]
    pooled = record.pooling != "none"
    return ServedTable(
        record.name,
        record.rows,
        record.dim,
        float(record.row_bytes) if record.row_bytes is not None else record.bytes / max(record.rows, 1),
        record.bytes,
        record.features,
        item_lookups=sum(item),
        item_vectors=float(len(item)) if pooled else sum(item),
        user_lookups=sum(once),
        user_vectors=float(len(once)) if pooled else sum(once),
    )


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a safetensors file, from its header alone."""
    fix = "export the model again"
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > min(_MAX_HEADER, path.stat().st_size):
                raise ServeError(f"{path} is no safetensors file; {fix}.")
            header = json.loads(file.read(size))
        return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    except OSError as error:
        raise ServeError(f"{path} cannot be read ({error.strerror}); {fix}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ServeError(f"{path} is no safetensors file; {fix}.") from error
