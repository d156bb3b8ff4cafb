"""The folder of a version, opened: a frozen model, or a delta over a version that is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from megalith.export.folder import FrozenModel, read_manifest
from megalith.export.manifest import DENSE_FILE, ModelManifest
from megalith.serve.runtime.scheduling.work import ServedVersion

_INDEX_BYTES = 20
"""Of a listed id in the index, about."""


@dataclass(frozen=True, slots=True)
class VersionFolder:
    """What is known of a version before it is loaded."""

    folder: Path
    manifest: ModelManifest
    weights_file: Path
    added_bytes: int
    """That it takes beside what is loaded."""
    base_number: int | None = None
    """Of a delta, the version it is over."""

    def source(self) -> FrozenModel:
        """The folder as checks read it; its checksums were compared when it was loaded."""
        return FrozenModel(self.folder, verify=False)


def open_version(folder: Path, served: Callable[[str], Mapping[str, ServedVersion]]) -> VersionFolder:
    """Reads a folder; `served` gives the versions of a model that are loaded."""
    del served
    manifest = read_manifest(folder)
    added = sum(_table_bytes(manifest, place) for place in range(len(manifest.tables)))
    weights = manifest.files.get(DENSE_FILE)
    # Read once and packed once.
    added += 2 * weights.bytes if weights else 0
    return VersionFolder(folder, manifest, folder / DENSE_FILE, added)


def _table_bytes(manifest: ModelManifest, place: int) -> int:
    record = manifest.tables[place]
    return record.bytes + (_INDEX_BYTES * record.rows if record.ids == "listed" else 0)
