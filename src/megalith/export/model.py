"""`mg.load_model`: an exported model from Python."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from megalith.data.batch import Batch
from megalith.data.dataset import DatasetSchema
from megalith.data.raw import RawBatches, RowTransform, as_table, frame_rows
from megalith.export.folder import FrozenModel
from megalith.export.frozen_part import FrozenLogits
from megalith.export.manifest import ModelManifest
from megalith.metrics.scores import scores_of

BATCH = 8192
"""Rows that are scored at once, unless told otherwise."""


class Batches(Protocol):
    """Rows to score."""

    def stream(self) -> Iterator[Batch]:
        """All batches."""
        ...

    def close(self) -> None:
        """Ends its threads."""
        ...


class LoadedModel:
    """An exported model: what it says of itself, and scores of rows. What it takes is loaded when needed."""

    def __init__(self, model: FrozenModel) -> None:
        self.frozen = model

    @property
    def manifest(self) -> ModelManifest:
        """Features, tables, program and what the gate measured."""
        return self.frozen.manifest

    @property
    def schema(self) -> DatasetSchema:
        """The columns that the model was trained on, and how they were made."""
        return self.transform.schema

    @property
    def step(self) -> int:
        """Training steps behind it."""
        return self.manifest.step

    @cached_property
    def transform(self) -> RowTransform:
        """What makes batches of raw rows."""
        return RowTransform(self.frozen.inputs)

    @cached_property
    def logits(self) -> FrozenLogits:
        """Tables and program, ready."""
        manifest = self.manifest
        names = [feature.name for feature in manifest.features]
        return FrozenLogits(self.frozen, manifest.tables, names, manifest.program)

    def scores(self, source: Batches) -> Generator[NDArray[np.float32], None, None]:
        """The scores of each batch, in order."""
        logits = self.logits
        try:
            for batch in source.stream():
                with torch.inference_mode():
                    yield scores_of(logits(batch.dense, batch.values, batch.offsets)[:, 0])
        finally:
            source.close()

    def predict(self, frame: Any, batch: int | None = None) -> NDArray[np.float32]:
        """The score of every row, float32, in the order of rows.

        `frame` is a pandas or polars frame, a pyarrow table or record batch, or a dict of arrays or lists by
        column, with the raw columns that `megalith data prepare` was given; others are not looked at.
        """
        rows = frame_rows(self.transform, as_table(frame))
        source = RawBatches(self.transform, rows, batch or BATCH, threads=torch.get_num_threads())
        return np.concatenate([np.empty(0, np.float32), *self.scores(source)])

    def __repr__(self) -> str:
        return f"LoadedModel({str(self.frozen.folder)!r}, step={self.step})"


def load_model(path: Path | str) -> LoadedModel:
    """Opens a model that `megalith export` wrote; every file of it is checked.

    >>> import megalith as mg
    >>> model = mg.load_model("models/first")
    >>> scores = model.predict(frame)        # pandas, polars, pyarrow, or a dict of columns
    """
    return LoadedModel(FrozenModel(path))
