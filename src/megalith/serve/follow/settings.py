"""`FollowSettings`: which streams a server follows, how often it looks, and where it keeps its copies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from megalith.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """What is followed."""

    uris: tuple[str, ...] = ()
    """Directories or places in object stores that trainers publish to."""
    every_seconds: float = 1.0
    """Pause between two looks at a stream."""
    folder: Path | None = None
    """Of copies on this machine; None is one below the system's folder of temporary files."""
    chain: int = 400
    """Most deltas that are held one over the other before they are written into one model."""
    changed_share: float = 0.25
    """Share of the tables' bytes that changed rows may take before they are written into one model."""
    catch_up_bytes: int = 256 << 20
    """Deltas of at most so many bytes are merged at a time by who has been away."""

    def __post_init__(self) -> None:
        if not self.every_seconds > 0:
            raise ConfigError("Streams are looked at every so many seconds, more than 0.")
        if len(set(self.uris)) != len(self.uris):
            raise ConfigError("A stream is named twice; follow each once.")
