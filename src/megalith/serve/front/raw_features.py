"""Requests of raw columns, as in the training data, to a model's inputs by the transforms of its folder.

Inputs are then named as the columns: strings (BYTES) or numbers of shape [samples] or [samples, 1], and of
[samples, n] for lists or vectors of n. A name that is one of the model's own inputs makes it no raw request.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from megalith.core.errors import DataError
from megalith.data.batch import Batch
from megalith.data.loader.pieces import cut, join
from megalith.data.raw import RowTransform
from megalith.data.raw.column_rows import ColumnRows, column_choice
from megalith.data.raw.id_rows import PlainIdRows
from megalith.data.raw.record_files import table_records
from megalith.data.raw.row_source import RowSource
from megalith.export.folder import is_model
from megalith.export.manifest import INPUTS, ModelManifest
from megalith.serve.failures import BadRequestError
from megalith.serve.protocol.datatypes import BYTES, DATATYPES
from megalith.serve.protocol.message import InferMessage, InputTensor
from megalith.serve.protocol.strings import split_strings
from megalith.serve.request import ModelDescription

MODEL_INPUTS = ("dense", "values", "lengths", "user_values", "user_lengths")
_MOST_TRANSFORMS = 4
_MAX_ROWS = 1 << 20


def is_raw(message: InferMessage, model: ModelDescription) -> bool:
    """Whether a request is of raw columns."""
    own = {tensor.name for tensor in model.inputs} | set(MODEL_INPUTS)
    return bool(message.inputs) and not any(tensor.name in own for tensor in message.inputs)


def same_inputs(first: ModelManifest, second: ModelManifest) -> bool:
    """Whether two versions have the same schema and vocabulary."""
    own, other = (
        {name: record for name, record in manifest.files.items() if name.startswith(f"{INPUTS}/")}
        for manifest in (first, second)
    )
    return own == other


class RawFeatures:
    """The transforms of models, opened when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._transforms: OrderedDict[Path, RowTransform] = OrderedDict()

    def message(self, model: ModelDescription, version: str | None, message: InferMessage) -> InferMessage:
        """The same request, of the model's own inputs."""
        transform = self._transform(version_folder(model, version))
        table = _table(message)
        try:
            batch = _batch(transform, table)
        except pa.ArrowException as error:
            reason = " ".join(str(error).split())
            raise BadRequestError(
                f"The columns of the request cannot be read ({reason}); fix them."
            ) from None
        return InferMessage(
            id=message.id,
            inputs=batch_inputs(batch, len(transform.schema.categorical)),
            outputs=message.outputs,
            binary_output=message.binary_output,
            timeout_seconds=message.timeout_seconds,
            priority=message.priority,
        )

    def _transform(self, folder: Path) -> RowTransform:
        with self._lock:
            transform = self._transforms.pop(folder, None)
            if transform is None:
                transform = open_transform(folder)
            self._transforms[folder] = transform
            while len(self._transforms) > _MOST_TRANSFORMS:
                self._transforms.popitem(last=False)
            return transform


def version_folder(model: ModelDescription, version: str | None) -> Path:
    """The folder of a version of a model."""
    newest = Path(model.folder)
    if version is None or not model.versions or version == model.versions[-1]:
        return newest
    beside = newest.parent / version
    return beside if is_model(beside) else newest


def open_transform(folder: Path) -> RowTransform:
    """What makes inputs of raw columns, if the model carries it."""
    inputs = folder / INPUTS
    if not (inputs / "schema.json").is_file():
        raise BadRequestError("The model carries no transforms of raw columns; send its own inputs.")
    return RowTransform(inputs)


def raw_columns(transform: RowTransform) -> list[str]:
    """The columns that a raw request is to have."""
    if transform.recipe is None:
        return [*transform.schema.numeric, *transform.schema.feature_names]
    choice = column_choice(transform.recipe)
    return [*choice.numbers, *(name for name, _ in choice.features)]


def batch_inputs(batch: Batch, num_features: int) -> list[InputTensor]:
    """A batch of prepared rows as inputs of a request."""
    lengths = np.diff(batch.offsets.numpy()).astype(np.int32)
    values = np.ascontiguousarray(batch.values.numpy())
    dense = np.ascontiguousarray(batch.dense.numpy())
    ids = "INT32" if values.dtype == np.int32 else "INT64"
    made = [
        ("values", ids, values.shape, values),
        ("lengths", "INT32", (num_features, batch.batch_size), lengths),
    ]
    if dense.shape[1]:
        made.insert(0, ("dense", "FP32", dense.shape, dense))
    return [InputTensor(name, kind, shape, _bytes(array)) for name, kind, shape, array in made]


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    return array.data.cast("B") if array.size else memoryview(b"")


def _batch(transform: RowTransform, table: pa.Table) -> Batch:
    read = partial(table_records, table, where="The request")
    rows: RowSource
    if transform.recipe is None:
        rows = PlainIdRows(transform.schema, read)
    else:
        rows = ColumnRows(transform.recipe, read)
    features = transform.schema.categorical
    pieces = []
    for item in rows.items():
        block = rows.parse(item)
        pieces += cut(transform.columns(block.rows), features, [0, block.num_rows])
    if not pieces:
        raise BadRequestError("The request has no rows; send at least one.")
    return join(pieces, len(features))


def _table(message: InferMessage) -> pa.Table:
    columns: dict[str, Any] = {}
    rows: int | None = None
    for tensor in message.inputs:
        if not tensor.shape:
            raise BadRequestError(f"Column '{tensor.name}' has no shape; send [rows].")
        if rows is not None and tensor.shape[0] != rows:
            raise BadRequestError(
                f"Column '{tensor.name}' has {tensor.shape[0]} rows, others {rows}; send as many."
            )
        rows = tensor.shape[0]
        if rows > _MAX_ROWS:
            raise BadRequestError(f"The request has {rows} rows; send at most {_MAX_ROWS}.")
        columns[tensor.name] = _column(tensor)
    return pa.table(columns)


def _column(tensor: InputTensor) -> Any:
    elements = int(np.prod(tensor.shape, dtype=np.int64))
    if tensor.datatype == BYTES:
        try:
            flat = pa.array(
                [text.decode() for text in split_strings(tensor.data, elements, tensor.name)], pa.string()
            )
        except UnicodeDecodeError:
            raise BadRequestError(
                f"Column '{tensor.name}' holds strings that are not UTF-8; encode them so."
            ) from None
    else:
        numbers = np.frombuffer(tensor.data, DATATYPES[tensor.datatype])
        # NaN is what is missing, as in a frame.
        flat = pa.array(numbers, from_pandas=True)
    if len(tensor.shape) == 1 or (len(tensor.shape) == 2 and tensor.shape[1] == 1):
        return flat
    if len(tensor.shape) != 2:
        raise DataError(f"Column '{tensor.name}' is {list(tensor.shape)}; send [rows] or [rows, n].")
    offsets = np.arange(tensor.shape[0] + 1, dtype=np.int32) * tensor.shape[1]
    return pa.ListArray.from_arrays(offsets, flat)
