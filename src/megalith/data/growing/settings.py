"""What a recipe says of a directory that grows."""

from __future__ import annotations

from pydantic import Field

from megalith.core.config import Config


class GrowingConfig(Config):
    """`data.path` is a folder, or a pattern in one, to which files are added while the run trains on them.

    Files are taken in the order in which they come, of those that have come the first by name; each row once.
    A run ends after `train.steps`, or at the marker.
    """

    look_seconds: float = Field(default=1.0, gt=0)
    """Pause between two looks for new files, when all rows have been read."""
    end: str = Field(default="_END", pattern=r"^[^/\x00]+$")
    """A file of this name in the folder says that no more will come: the rest is read, and the run ends."""
