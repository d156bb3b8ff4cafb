"""`TieredMemory`: how much memory tiered tables may take, where their rows lie on disk, what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from megalith.core.config import Config
from megalith.core.store_spec import Bytes

LEAST_DISK = 64 << 20
"""Files are filled 16 MiB at a time, several of them at once, for each shape of rows."""


class TieredMemory(Config):
    """The memory and the disk of one process's tiered tables. Results do not depend on any of it."""

    dram: Bytes = Field(ge=1 << 12)
    """Bytes of rows and optimizer state that are kept in memory: one budget for all tiered tables."""
    path: Path | None = None
    """A folder on the disk that holds the rows, best a local SSD; None is a folder of the run."""
    policy: Literal["lookahead", "lru", "lfu"] = "lookahead"
    """Which rows leave when room is needed: `lookahead` keeps those that the coming batches use."""
    window: int = Field(default=8, ge=0)
    """Batches that `lookahead` knows in advance; more than 32 are told apart in groups."""
    disk: Bytes | None = Field(default=None, ge=LEAST_DISK)
    """The most bytes that files may take, with those that only checkpoints keep; None is no bound."""
    engine: Literal["auto", "io_uring", "threads"] = "auto"
    """How rows are read and written; `auto` takes io_uring where the system has it."""

    @property
    def ahead(self) -> int:
        """Batches whose ids are to be known in advance."""
        return self.window if self.policy == "lookahead" else 0

    def share(self, dram: int, folder: str | None = None) -> TieredMemory:
        """The same settings for one of several that share memory and disk, in a folder of its own."""
        disk = None if self.disk is None else max(LEAST_DISK, self.disk * dram // self.dram)
        path = self.path if self.path is None or folder is None else self.path / folder
        return self.model_copy(update={"path": path, "dram": dram, "disk": disk})
