"""Files of scores: Parquet, CSV or Arrow by their ending, which appear when they are complete.

Rows are written as they come, so that memory holds some batches of them.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch import Tensor

from megalith.core.errors import ConfigError, DataError
from megalith.core.files import check_target, new_file, remove_partials
from megalith.data.table_file import check_ending, open_table_writer
from megalith.metrics.scores import scores_of

SCORE, LABEL = "score", "label"


def check_score_file(path: Path) -> None:
    """Refuses a file that cannot be written, before the work."""
    check_ending(path)
    check_target(path)


class ScoreFile:
    """Writes scores with other columns; without a path it only counts. Use it in a `with` block.

    An error in the block leaves no file, and one that was there as it was.
    """

    def __init__(self, path: Path | None, column: str = SCORE) -> None:
        self.path, self.column = path, column
        self.rows = 0
        self._sum = 0.0
        self._open = ExitStack()
        self._writer: Any = None
        self._partial: Path | None = None

    @property
    def mean(self) -> float | None:
        """The mean of all scores; None where there are none."""
        return self._sum / self.rows if self.rows else None

    def __enter__(self) -> ScoreFile:
        if self.path is not None:
            remove_partials(self.path.parent, self.path.name)
            self._partial = self._open.enter_context(new_file(self.path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is None and self._partial is not None and error is None:
            # No row came: a file with its columns all the same.
            self.write(np.empty(0, np.float32))
        self._open.__exit__(kind, error, trace)

    def write_samples(self, samples: Tensor) -> None:
        """Takes logits, labels and weights as an evaluation computes them."""
        logits, labels, _ = samples
        self.write(scores_of(logits), pa.table({LABEL: labels.numpy()}))

    def write(self, scores: NDArray[np.float32], kept: pa.Table | None = None) -> None:
        """Takes the scores of some rows, and the columns that go before them."""
        self.rows += len(scores)
        self._sum += float(scores.sum(dtype=np.float64))
        if self._partial is None or self.path is None:
            return
        names = [] if kept is None else kept.column_names
        if self.column in names:
            raise ConfigError(
                f"Column '{self.column}' is kept and the scores' too; name the scores' with --column."
            )
        table = pa.table(
            [*([] if kept is None else kept.columns), pa.array(scores)], names=[*names, self.column]
        )
        if self._writer is None:
            # Closed before the file gets its name.
            self._writer = self._open.enter_context(open_table_writer(self._partial, self.path, table.schema))
        try:
            table = table.cast(self._writer.schema)
        except (pa.ArrowException, ValueError) as error:
            raise DataError(
                f"A kept column changes its type between files ({error}); convert it, or leave it out."
            ) from error
        self._writer.write(table)
