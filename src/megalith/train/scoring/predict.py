"""`megalith predict`: the score of every row of some files, or of a split, to a file."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from megalith.comm.ranks import Ranks
from megalith.core.errors import ConfigError, DataError, nearest
from megalith.data.batch import Batch
from megalith.data.dataset import SCHEMA_FILE, Dataset
from megalith.data.loader import Loader
from megalith.data.raw import RawBatches, RowTransform, file_rows
from megalith.export.folder import is_model
from megalith.train.checkpoints import Checkpoint
from megalith.train.evaluation.score_file import SCORE, ScoreFile, check_score_file
from megalith.train.evaluation.score_run import same_features
from megalith.train.loaders import DataConfig, eval_loader
from megalith.train.pipeline import BatchSource
from megalith.train.scoring.model_scorer import ModelScorer
from megalith.train.scoring.scorer import Scorer

Progress = Callable[[int], None]
"""Called with the rows that are done."""


@dataclass(frozen=True, slots=True)
class PredictRequest:
    """What a user asks `megalith predict` for."""

    run: Path
    """The folder of a run, or of an exported model."""
    inputs: tuple[Path, ...]
    """Raw files, or the folder of a prepared data set."""
    out: Path
    split: str | None = None
    checkpoint: Checkpoint = None
    batch: int | None = None
    """Rows that are scored at once; None is what the run's evaluations take, and gives the same bits."""
    keep: tuple[str, ...] = ()
    column: str = SCORE
    threads: int | None = None
    trust_code: bool = False


class AnyScorer(Protocol):
    """What scores batches: a run, or an exported model."""

    @property
    def folder(self) -> Path:
        """Where it is."""
        ...

    @property
    def step(self) -> int:
        """Training steps behind it."""
        ...

    @property
    def batch_size(self) -> int:
        """Rows scored at once, unless told otherwise."""
        ...

    @property
    def backend(self) -> str:
        """What computes the scores."""
        ...

    @property
    def dataset(self) -> Dataset:
        """Schema and vocabulary of what it was trained on."""
        ...

    @property
    def data_config(self) -> DataConfig:
        """How prepared data is read."""
        ...

    @property
    def transform(self) -> RowTransform:
        """What makes batches of raw rows."""
        ...

    def prepare(self) -> None:
        """Loads the model, if that has not been done."""
        ...

    def scores(self, source: BatchSource) -> Iterator[NDArray[np.float32]]:
        """The scores of each batch, in order."""
        ...


class ScoredInput(Protocol):
    """Batches to score, and the columns that go with them."""

    def stream(self) -> Iterator[Batch]:
        """All batches."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        ...

    def close(self) -> None:
        """Ends its threads."""
        ...

    def take_kept(self) -> pa.Table | None:
        """The columns that go with the next batch."""
        ...


def predict_run(
    request: PredictRequest,
    progress: Progress | None = None,
    tell: Callable[[str], None] = warnings.warn,
) -> dict[str, Any]:
    """Writes the file, which appears when it is complete; returns what is in it and how long it took."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("Rows are scored by one process; run without torchrun.")
    check_score_file(request.out)
    for path in request.inputs:
        if path.exists() and request.out.exists() and path.samefile(request.out):
            raise ConfigError(f"--out {request.out} is a file that is read; choose another.")
    if request.column in request.keep:
        raise ConfigError(f"--keep names '{request.column}', the column of scores; name that with --column.")
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    scorer = open_scorer(request, tell)
    source = open_input(scorer, request)
    # The model first, so that rates are those of scoring.
    scorer.prepare()
    begin = time.perf_counter()
    file = write_scores(scorer, source, request.out, request.column, progress)
    seconds = time.perf_counter() - begin
    return {
        "run": str(request.run),
        "step": scorer.step,
        "out": str(request.out),
        "rows": file.rows,
        "mean_score": file.mean,
        "seconds": round(seconds, 4),
        "rows_per_second": round(file.rows / seconds, 1) if seconds else None,
        "batch": request.batch or scorer.batch_size,
        "backend": scorer.backend,
        "bytes": request.out.stat().st_size,
    }


def open_scorer(request: PredictRequest, tell: Callable[[str], None] = warnings.warn) -> AnyScorer:
    """The run or the exported model that a request names."""
    if not is_model(request.run):
        return Scorer(request.run, request.checkpoint, trusted=request.trust_code)
    if request.checkpoint is not None:
        raise ConfigError(
            f"{request.run} is an exported model, which is of one step; leave --checkpoint out."
        )
    return ModelScorer(request.run, tell)


def write_scores(
    scorer: AnyScorer, source: ScoredInput, out: Path, column: str = SCORE, progress: Progress | None = None
) -> ScoreFile:
    """Scores all batches into a file; returns it, closed, with what it has counted."""
    with ScoreFile(out, column) as file:
        for scores in scorer.scores(source):
            file.write(scores, source.take_kept())
            if progress is not None:
                progress(file.rows)
    return file


def open_input(scorer: AnyScorer, request: PredictRequest) -> ScoredInput:
    """The rows to score: a split of a prepared data set, or raw files."""
    size, threads = request.batch or scorer.batch_size, request.threads or torch.get_num_threads()
    folder = request.inputs[0]
    if folder.is_dir() and (folder / SCHEMA_FILE).exists():
        if len(request.inputs) > 1:
            raise ConfigError(f"{folder} is a prepared data set; name it alone, or files only.")
        return PreparedSplit(scorer, Dataset(folder), request.split, size, request.keep)
    if request.split is not None:
        raise ConfigError(
            f"--split {request.split} is of a prepared data set, and {folder} is none; leave it out."
        )
    return RawBatches(
        scorer.transform, file_rows(scorer.transform, request.inputs, request.keep), size, threads
    )


class PreparedSplit:
    """A split of a prepared data set, as evaluations read it."""

    def __init__(
        self, scorer: AnyScorer, dataset: Dataset, split: str | None, size: int, keep: tuple[str, ...]
    ) -> None:
        same_features(dataset, scorer.dataset, scorer.folder)
        if split is None:
            names = ", ".join(dataset.schema.splits)
            raise ConfigError(f"{dataset.folder} has several splits ({names}); name one with --split.")
        if not dataset.split(split).rows:
            raise DataError(f"Split '{split}' of {dataset.folder} has no rows; choose another split.")
        config = scorer.data_config.model_copy(update={"eval_batch_size": size})
        self._loader: Loader = eval_loader(config, dataset, split, Ranks())
        self._size, self._left = size, dataset.split(split).rows
        self._columns = list(keep)
        self._records = _records(dataset.files(split), self._columns) if keep else iter(())
        self._waiting: list[pa.RecordBatch] = []

    def stream(self) -> Iterator[Batch]:
        """All batches."""
        return self._loader.stream()

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is."""
        return self._loader.state_dict()

    def close(self) -> None:
        """Ends the loader's threads."""
        self._loader.close()

    def take_kept(self) -> pa.Table | None:
        """The columns that go with the next batch, read beside it in the order of the file."""
        if not self._columns:
            return None
        rows = min(self._size, self._left)
        self._left -= rows
        while sum(batch.num_rows for batch in self._waiting) < rows:
            self._waiting.append(next(self._records))
        table = pa.Table.from_batches(self._waiting)
        self._waiting = table.slice(rows).to_batches()
        return table.slice(0, rows)


def _records(paths: list[Path], columns: list[str]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for name in columns:
                if name not in names:
                    raise DataError(
                        f"{path} has no column '{name}', which --keep names; {nearest(name, names)}"
                    )
            yield from file.iter_batches(columns=columns, use_threads=False)
