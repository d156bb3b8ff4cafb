"""`HeldVersion`: the version of a stream that a server has, and its files on this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from megalith.export.stream.followed import FollowedModel
from megalith.export.stream.reader import Position
from megalith.serve.follow.settings import FollowSettings


@dataclass(frozen=True, slots=True)
class HeldVersion:
    """A model in a folder, and the folders of deltas over it: all are read again should the process that
    loads ever end."""

    model: FollowedModel
    position: Position
    folders: tuple[Path, ...]
    delta_bytes: int = 0
    """Of the folders of deltas."""

    def with_delta(
        self, model: FollowedModel, position: Position, folder: Path, delta_bytes: int
    ) -> HeldVersion:
        """The next version, which is a delta over this one."""
        return replace(
            self,
            model=model,
            position=position,
            folders=(*self.folders, folder),
            delta_bytes=self.delta_bytes + delta_bytes,
        )

    def wants_rebuild(self, more_bytes: int, settings: FollowSettings) -> bool:
        """Whether the next version is better written whole than as one more delta of so many bytes."""
        tables = max(1, self.model.table_bytes)
        return (
            len(self.folders) > settings.chain
            or self.model.changed_bytes + more_bytes > settings.changed_share * tables
            or self.delta_bytes > tables
        )
