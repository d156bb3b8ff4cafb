"""`Scorer`: a trained model that scores batches, with what it takes to make them from raw rows."""

from __future__ import annotations

from collections.abc import Generator
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from megalith.checkpoint.store import CheckpointStore
from megalith.data.raw import RowTransform
from megalith.metrics.scores import scores_of
from megalith.train.checkpoints import Checkpoint, choose_step, open_learner
from megalith.train.learner.learner import Learner
from megalith.train.loaders import DataConfig
from megalith.train.pipeline import BatchSource, Pipeline
from megalith.train.run.folder import RunFolder
from megalith.train.run.trusted_code import check_code, trust_code

_DEPTH = 1
"""Batches that are made ready while one is computed."""


class Scorer:
    """The model of a run at one checkpoint. Model and vocabulary are read when they are first needed."""

    def __init__(self, folder: Path, checkpoint: Checkpoint = None, *, trusted: bool = False) -> None:
        """`trusted`: code that comes with the run may be run."""
        self.run = RunFolder(folder)
        self.recipe = self.run.recipe()
        if not trusted:
            check_code(self.recipe, folder)
        trust_code(self.recipe)
        self.dataset = self.run.trained_on()
        """Schema and vocabulary of what the run was trained on."""
        self.step = choose_step(self.run, self.recipe, CheckpointStore(self.run.checkpoints), checkpoint)

    @property
    def folder(self) -> Path:
        """That of the run."""
        return self.run.folder

    @property
    def data_config(self) -> DataConfig:
        """How evaluations read prepared data."""
        return self.recipe.data

    def prepare(self) -> None:
        """Loads model and tables, if that has not been done."""
        _ = self.learner

    @property
    def batch_size(self) -> int:
        """Rows that an evaluation scores at once: with as many, scores are the same bits."""
        return self.recipe.data.eval_batch_size

    @property
    def backend(self) -> str:
        """What runs it: the trained model itself."""
        return "torch"

    @cached_property
    def learner(self) -> Learner:
        """Model and tables with the weights of the checkpoint."""
        return open_learner(self.run, self.dataset, self.step)[0]

    @cached_property
    def transform(self) -> RowTransform:
        """What makes batches of raw rows."""
        if self.run.inputs.exists():
            self.run.inputs.check_vocabulary()
        return RowTransform(self.dataset.folder)

    def scores(self, source: BatchSource) -> Generator[NDArray[np.float32], None, None]:
        """The scores of each batch, in order; the next one is made ready meanwhile."""
        learner = self.learner
        depth = max(_DEPTH, self.recipe.train.pipeline if learner.embeddings.prepares_ahead else 0)
        pipeline = Pipeline(source, learner.stages(trains=False), depth=depth)
        ended = False
        try:
            for prepared in pipeline:
                with torch.inference_mode():
                    found = scores_of(learner.predict(prepared.batch, prepared.resolved))
                yield found
            ended = True
        finally:
            if ended:
                pipeline.close()
            else:
                pipeline.abandon()
