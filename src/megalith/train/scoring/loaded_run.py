"""`mg.load_run`: a trained run from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from megalith.data.dataset import DatasetSchema
from megalith.data.raw import RawBatches, as_table, frame_rows
from megalith.train.checkpoints import parse_checkpoint
from megalith.train.recipe import Recipe
from megalith.train.scoring.scorer import Scorer
from megalith.train.scoring.vectors import table_vectors


class LoadedRun:
    """A trained run: its recipe, the schema of its data, scores of rows and vectors of tables.

    Model and vocabulary are loaded when they are first used.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    @property
    def recipe(self) -> Recipe:
        """What the run was trained with."""
        return self._scorer.recipe

    @property
    def schema(self) -> DatasetSchema:
        """The columns that the model was trained on, and how they were made."""
        return self._scorer.dataset.schema

    @property
    def step(self) -> int:
        """The step of the checkpoint."""
        return self._scorer.step

    def predict(self, frame: Any, batch: int | None = None) -> NDArray[np.float32]:
        """The score of every row, float32, in the order of rows.

        `frame` is a pandas or polars frame, a pyarrow table or record batch, or a dict of arrays or lists by
        column, with the raw columns that `megalith data prepare` was given; others, the label among them, are
        not looked at. `batch` rows are scored at once, by default as many as in an evaluation.
        """
        scorer = self._scorer
        rows = frame_rows(scorer.transform, as_table(frame))
        source = RawBatches(
            scorer.transform, rows, batch or scorer.batch_size, threads=torch.get_num_threads()
        )
        return np.concatenate([np.empty(0, np.float32), *scorer.scores(source)])

    def embeddings(self, table: str) -> pa.Table:
        """The vectors of a table, beside the raw values that they stand for; see `megalith embeddings`."""
        found = table_vectors(self._scorer, table)
        return pa.Table.from_batches(found.batches, found.schema)

    def __repr__(self) -> str:
        return f"LoadedRun({str(self._scorer.run.folder)!r}, step={self.step})"


def load_run(path: Path | str, checkpoint: str | int | None = None, *, trust_code: bool = False) -> LoadedRun:
    """Opens a trained run, from any folder and without the data that it was trained on.

        >>> import megalith as mg
        >>> run = mg.load_run("runs/first")
        >>> scores = run.predict(frame)          # pandas, polars, pyarrow, or a dict of columns
        >>> vectors = run.embeddings("C1")       # a pyarrow table

    `checkpoint` is `best`, `last` or a step; by default the best where the run stopped early, else the last.
    `trust_code` lets code of a model of one's own run that comes with the run and was not trained with here.
    """
    return LoadedRun(Scorer(Path(path), parse_checkpoint(checkpoint), trusted=trust_code))
