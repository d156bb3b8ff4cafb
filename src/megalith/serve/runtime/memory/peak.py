"""What loading a version takes at its peak, counted before anything is read."""

from __future__ import annotations

from dataclasses import dataclass

from megalith.core.errors import ServeError
from megalith.core.units import format_bytes
from megalith.hardware.free_memory import available_bytes
from megalith.serve.runtime.version_folder import VersionFolder
from megalith.serve.settings import EngineSettings

_CARD_BYTES = 24 << 20
"""Memory of its own that a card takes beside what it shares."""


@dataclass(frozen=True, slots=True)
class LoadMemory:
    """Bytes of a load."""

    resident: int
    """Of all processes of the engine, now."""
    loaded: int
    """Of the versions that are served, in it."""
    added: int
    """What comes beside it until the version before is freed."""
    limit: int
    """What there may be."""

    @property
    def peak(self) -> int:
        """At most, while both versions are there."""
        return self.resident + self.added

    def sentence(self) -> str:
        """For the operator, before it begins."""
        return (
            f"takes {format_bytes(self.added)} beside {format_bytes(self.resident)} that are in use, at the "
            f"peak {format_bytes(self.peak)} of {format_bytes(self.limit)}."
        )

    def refuse_beyond_limit(self, model: str, version: str) -> None:
        """Refuses a load that does not fit."""
        if self.peak > self.limit:
            raise ServeError(
                f"Version {version} of '{model}' would take {format_bytes(self.peak)} of memory, above the "
                f"limit of {format_bytes(self.limit)}; unload a version first, serve a delta, or raise it."
            )


def load_memory(opened: VersionFolder, loaded: int, resident: int, settings: EngineSettings) -> LoadMemory:
    """Of a version that is about to be loaded."""
    added = opened.added_bytes + max(1, settings.cards) * _CARD_BYTES
    limit = settings.memory_limit
    if limit is None:
        free = available_bytes()
        limit = resident + (free if free is not None else added)
    return LoadMemory(resident, loaded, added, limit)
