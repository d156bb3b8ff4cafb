"""`ModelScorer`: an exported model where commands that score rows expect a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from megalith.data.dataset import Dataset
from megalith.export.folder import FrozenModel
from megalith.export.model import BATCH, LoadedModel
from megalith.train.loaders import DataConfig


class ModelScorer(LoadedModel):
    """An exported model, with what it takes to read prepared data."""

    def __init__(self, folder: Path, tell: Callable[[str], None] = warnings.warn) -> None:
        super().__init__(FrozenModel(folder), tell=tell)
        self.dataset = Dataset(self.frozen.inputs)
        """Schema and vocabulary of what it was trained on."""

    @property
    def folder(self) -> Path:
        """That of the model."""
        return self.frozen.folder

    @property
    def batch_size(self) -> int:
        """Rows scored at once, unless told otherwise."""
        return BATCH

    @property
    def data_config(self) -> DataConfig:
        """How prepared data is read."""
        return DataConfig(path=self.frozen.inputs)

    def prepare(self) -> None:
        """Opens tables and program, if that has not been done."""
        _ = self.part
