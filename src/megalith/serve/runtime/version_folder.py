"""The folder of a version, opened: a frozen model, or a delta over a version that is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from megalith.core.errors import ServeError
from megalith.export.backends.base import ModelSource
from megalith.export.delta.folder import FrozenDelta, content_checksum, is_delta, read_delta
from megalith.export.folder import FrozenModel, read_manifest
from megalith.export.manifest import DENSE_FILE, INPUTS, ModelManifest
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
    inputs: Path
    """The folder that has schema and vocabulary."""
    base_number: int | None = None
    """Of a delta, the version it is over."""

    def source(self) -> ModelSource:
        """The version as checks read it; checksums were compared when it was loaded."""
        if self.base_number is None:
            return FrozenModel(self.folder, verify=False)
        return DeltaChecks(FrozenDelta(self.folder, verify=False))


def open_version(folder: Path, served: Callable[[str], Mapping[str, ServedVersion]]) -> VersionFolder:
    """Reads a folder; `served` gives the versions of a model that are loaded."""
    if is_delta(folder):
        return _open_delta(folder, served)
    manifest = read_manifest(folder)
    added = sum(_table_bytes(manifest, place) for place in range(len(manifest.tables)))
    weights = manifest.files.get(DENSE_FILE)
    # Read once and packed once.
    added += 2 * weights.bytes if weights else 0
    return VersionFolder(folder, manifest, folder / DENSE_FILE, added, folder)


def _open_delta(folder: Path, served: Callable[[str], Mapping[str, ServedVersion]]) -> VersionFolder:
    delta = read_delta(folder)
    manifest = delta.manifest
    base = None
    for version in served(manifest.name).values():
        if content_checksum(version.manifest) == delta.base:
            base = version
    if base is None:
        raise ServeError(
            f"{folder} is a delta over a version of '{manifest.name}' that is not served; serve that first."
        )
    places = {record.name: place for place, record in enumerate(manifest.tables)}
    added = 0
    for change in delta.tables:
        record = manifest.tables[places[change.name]]
        whole = change.kind == "whole"
        added += _table_bytes(manifest, places[change.name]) if whole else change.bytes + record.rows // 4
    # Every version packs its weights, and makes its own index of listed ids.
    weights = manifest.files[DENSE_FILE].bytes if DENSE_FILE in manifest.files else 0
    added += (2 if DENSE_FILE in delta.files else 1) * weights
    added += sum(_INDEX_BYTES * record.rows for record in manifest.tables if record.ids == "listed")
    path = folder / DENSE_FILE if DENSE_FILE in delta.files else base.weights_file
    inputs = (
        folder if any(name.startswith(f"{INPUTS}/") for name in delta.files) else Path(base.inputs_folder)
    )
    return VersionFolder(folder, manifest, path, added, inputs, base.number)


class DeltaChecks:
    """What checks read of a delta: no rows."""

    def __init__(self, delta: FrozenDelta) -> None:
        self._delta = delta

    @property
    def manifest(self) -> ModelManifest:
        """Of the new version."""
        return self._delta.manifest

    def table(self, name: str) -> Mapping[str, Tensor]:
        """Rows are elsewhere; they are asked for where no version before says what rounding does."""
        raise ServeError(
            f"How far outputs may be is not known, for the base of this delta was loaded without checks, and "
            f"table '{name}' is not in it; load it without checks, or serve the new version as a whole."
        )

    def weights(self) -> Mapping[str, Tensor]:
        """Where they changed."""
        return self._delta.weights() or {}

    def checks(self) -> Mapping[str, Tensor]:
        """Samples and outputs; none where no weight and no row changed."""
        return self._delta.checks() or {}


def _table_bytes(manifest: ModelManifest, place: int) -> int:
    record = manifest.tables[place]
    return record.bytes + (_INDEX_BYTES * record.rows if record.ids == "listed" else 0)
