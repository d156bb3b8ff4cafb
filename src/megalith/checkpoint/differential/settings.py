"""What differential checkpoints are: which bits rows have in them, and when a new baseline is due."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from megalith.core.config import Config
from megalith.core.store_spec import Bytes

Bits = Literal[32, 8, 4]
FEW_RESTORES, SOME_RESTORES = 1, 10
"""Up to so many restores rows of 4 bits, and of 8 bits, were measured to leave the loss as it is."""


class CheckpointConfig(Config):
    """How checkpoints are written; `train` says when, and how many stay."""

    differential: bool = False
    """Whether, after a whole one, a checkpoint has only the rows that changed since the one before. They are
    written while training goes on."""
    bits: Bits | Literal["auto"] = 32
    """Of each weight of a changed row: 32 is exact; 8 and 4 keep a row as integers, so that training goes on
    from rounded rows after a restore. `auto` takes 4, 8 or 32 by how many restores are expected. Optimizer
    state, and whole checkpoints, are always exact."""
    expected_restores: int = Field(default=1, ge=0)
    """How often the run may have to go back to a checkpoint, for `bits: auto`; those that happened count."""
    compact_at: float = Field(default=0.5, gt=0)
    """A new whole checkpoint is due when those after the last one are larger than this share of it."""
    memory: Bytes = Field(default=256 << 20, ge=1 << 20)
    """The most bytes of rows that wait to be written; training waits where there would be more."""

    def bits_after(self, restores: int) -> Bits:
        """The bits of the next checkpoint of changed rows, in a run that was restored so often."""
        if self.bits != "auto":
            return self.bits
        expected = max(self.expected_restores, restores)
        return 4 if expected <= FEW_RESTORES else 8 if expected <= SOME_RESTORES else 32
