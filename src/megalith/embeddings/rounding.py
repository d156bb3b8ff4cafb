"""What half-precision weights and utilities are rounded by, step by step: (seed, step, table, id, column)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.embeddings.initial_values import TableWindow
from megalith.ops.optimizer.stochastic_rounding import RowRounding, table_rounding_seed


class RoundingSeeds:
    """The rounding of some tables, each perhaps a rectangle of a larger one."""

    def __init__(self, windows: Sequence[TableWindow], seed: int, device: torch.device | str = "cpu") -> None:
        self._seed = seed
        # Utilities of chunks are rounded too, whatever their weights are.
        self._is_used = any(
            window.table.dtype != "float32" or window.table.store_spec.chunks is not None
            for window in windows
        )
        self._of_each = torch.tensor(
            [
                RowRounding(table_rounding_seed(window.table.name), window.first_id, window.columns[0])
                for window in windows
            ],
            device=device,
        )

    def at(self, step: int) -> Tensor:
        """int64, a `RowRounding` for each table, in step number `step`."""
        if not self._is_used:
            return self._of_each
        digest = hashlib.sha256(f"{self._seed}:{step}".encode()).digest()
        rounding = self._of_each.clone()
        rounding[:, 0] += int.from_bytes(digest[:8], "little", signed=True)
        return rounding
