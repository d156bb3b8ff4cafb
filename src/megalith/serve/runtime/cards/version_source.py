"""A version of a model in memory: its folder, with rows copied to huge pages, and the parts of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from megalith.checkpoint.tensor_file import is_intact
from megalith.core.errors import ServeError
from megalith.export.backends.base import ModelSource
from megalith.export.backends.kernels.resident import ResidentTable
from megalith.export.delta.folder import FrozenDelta, is_delta
from megalith.export.delta.source import DeltaModel
from megalith.export.folder import FrozenModel
from megalith.export.manifest import ModelManifest
from megalith.serve.runtime.cards.served_part import ServedPart, VersionParts, load_parts


class ResidentModel:
    """A frozen model whose rows are in memory of this process, once for all parts."""

    def __init__(self, model: FrozenModel, between: Callable[[], None]) -> None:
        self._tables: dict[str, ResidentTable] = {}
        for name in [record.name for record in model.manifest.tables]:
            self._tables[name] = ResidentTable(model.table(name), between)
        # Opened anew: pages of the files that were read count as this process's own while they are mapped.
        self._model = FrozenModel(model.folder, verify=False)

    @property
    def manifest(self) -> ModelManifest:
        """What the model says of itself."""
        return self._model.manifest

    def table(self, name: str) -> Mapping[str, Tensor]:
        """In memory."""
        return self._tables[name].tensors

    def weights(self) -> Mapping[str, Tensor]:
        """Tensors of the program."""
        return self._model.weights()

    def checks(self) -> Mapping[str, Tensor]:
        """Samples and their outputs."""
        return self._model.checks()


def load_source(
    folder: Path, base: ModelSource | None, between: Callable[[], None] = lambda: None
) -> ModelSource:
    """The model of a folder, checked and in memory; of a delta, over the version it is for. `between` is
    called between its pieces."""
    if is_delta(folder):
        if base is None:
            raise ServeError(f"{folder} is a delta; serve the version that it is over first.")
        return DeltaModel(base, FrozenDelta(folder, between=between), between)
    model = FrozenModel(folder, verify=False)
    for name, record in model.manifest.files.items():
        if not is_intact(model.folder / name, record, between):
            raise ServeError(f"{model.folder / name} is damaged: its checksum is another; export it again.")
    return ResidentModel(model, between)


def load_version(
    folder: Path, base: ModelSource | None, spec: VersionParts, between: Callable[[], None] = lambda: None
) -> tuple[ModelSource, list[ServedPart], dict[str, int]]:
    """What cards look rows up in, the parts, and their bytes by what they are for."""
    source = load_source(folder, base, between)
    parts = load_parts(source, spec)
    return source, parts, part_bytes(parts)


def part_bytes(parts: list[ServedPart]) -> dict[str, int]:
    """Bytes of all parts together."""
    total: dict[str, int] = {}
    for part in parts:
        for key, count in part.bytes().items():
            total[key] = total.get(key, 0) + count
    return total
