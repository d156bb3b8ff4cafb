"""`mg.load_model`: an exported model from Python."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from megalith.data.batch import Batch
from megalith.data.dataset import DatasetSchema
from megalith.data.raw import RawBatches, RowTransform, as_table, frame_rows
from megalith.export.backends.base import LoadedPart
from megalith.export.backends.inputs import ScoreRequest
from megalith.export.backends.ready import ReadyModel, ready_model
from megalith.export.folder import FrozenModel
from megalith.export.manifest import ModelManifest

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

    def __init__(
        self, model: FrozenModel, backend: str | None = None, tell: Callable[[str], None] = warnings.warn
    ) -> None:
        """`backend` takes the place of that of the manifest; `tell` hears where another must."""
        self.frozen = model
        self._asked, self._tell = backend, tell

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
    def _ready(self) -> ReadyModel:
        return ready_model(self.frozen, torch.get_num_threads(), self._tell, self._asked)

    @property
    def part(self) -> LoadedPart:
        """Tables and program, ready for requests."""
        return self._ready.part

    @property
    def backend(self) -> str:
        """What runs it: that of the manifest, or what had to take its place."""
        return self._ready.choice

    def scores(self, source: Batches) -> Generator[NDArray[np.float32], None, None]:
        """The scores of each batch, in order."""
        part, task = self.part, self.manifest.program.outputs[0].name
        names = [feature.name for feature in self.manifest.features]
        try:
            for batch in source.stream():
                yield part.run(_request(batch, names, part.inputs.features))[task].numpy()
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


def _request(batch: Batch, names: Sequence[str], read: Sequence[str]) -> ScoreRequest:
    """A batch as backends take it: ids of the features that tables read."""
    values, size = batch.values, len(batch.dense)
    lengths = batch.offsets.diff().to(torch.int32).view(len(names), size)
    if len(read) != len(names):
        kept = [place for place, name in enumerate(names) if name in read]
        bounds = batch.offsets[:: max(size, 1)].tolist()
        own = [values[bounds[place] : bounds[place + 1]] for place in kept]
        values, lengths = torch.cat([values[:0], *own]), lengths[kept]
    return ScoreRequest(dense=batch.dense, values=values, lengths=lengths)


def load_model(path: Path | str, backend: str | None = None) -> LoadedModel:
    """Opens a model that `megalith export` wrote; every file of it is checked.

    It is run by the backend that its manifest names, or by `backend`, such as `native:rows=file` for tables
    that are to stay in their file.

    >>> import megalith as mg
    >>> model = mg.load_model("models/first")
    >>> scores = model.predict(frame)        # pandas, polars, pyarrow, or a dict of columns
    """
    return LoadedModel(FrozenModel(path), backend)
