"""Where models come from: folders of frozen models, and repositories of them.

models/first/manifest.json              one model, given as `models/first`
models/first/3/manifest.json            model `first`, version 3, of the repository `models`
models/first/4/delta.json               version 4, as what changed since version 3
models/second/manifest.json             model `second` of the repository `models`, without versions
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from megalith.core.errors import ServeError, nearest
from megalith.export.delta.folder import content_checksum, is_delta, read_delta
from megalith.export.folder import is_model, read_manifest
from megalith.serve.failures import UnknownModelError

if TYPE_CHECKING:
    from megalith.serve.engine import Engine


class ModelFolder(NamedTuple):
    """One version of a model."""

    name: str
    version: str | None
    """None where the folder does not say."""
    folder: Path
    below: tuple[ModelFolder, ...] = ()
    """Of a delta, the versions that it rests on, from a whole one up."""


class ModelFolders:
    """The folders that a server was started with; they are read anew whenever one asks."""

    def __init__(self, folders: Sequence[Path], versions: int = 1) -> None:
        """`versions` is how many of the newest of a model are served."""
        self._folders, self._versions = tuple(folders), versions

    def load_all(self, engine: Engine) -> None:
        """Loads all that there is."""
        for model in self.listed():
            load_folder(engine, model, self._versions)

    def listed(self) -> list[ModelFolder]:
        """What is to be served, versions of a model in their order."""
        found: list[ModelFolder] = []
        for folder in self._folders:
            models = self._of(folder)
            if is_delta(folder):
                raise ServeError(
                    f"{folder} is a delta; put it beside the version that it is over, as MODEL/VERSION."
                )
            if not models:
                raise ServeError(
                    f"{folder} is no exported model and holds none; make one with `megalith export RUN --out "
                    f"{folder}`."
                )
            found += models
        names = {(model.name, model.version) for model in found}
        if len(names) != len(found):
            twice = next(each for each in found if sum(each[:2] == other[:2] for other in found) > 1)
            raise ServeError(f"Two folders hold a model '{twice.name}'; rename one, or make them versions.")
        return found

    def load(self, engine: Engine, name: str) -> None:
        """Loads what there is of a model and is not served yet."""
        listed = self.listed()
        wanted = [each for each in listed if each.name == name]
        if not wanted:
            names = sorted({each.name for each in listed})
            tail = nearest(name, names) if names else "there are none."
            raise UnknownModelError(f"No folder of this server holds a model '{name[:80]}'; {tail}")
        served = engine.models().get(name)
        for each in wanted:
            if served is None:
                known = False
            elif each.version is None:
                known = read_manifest(each.folder) == engine.manifest(name).manifest
            else:
                known = each.version in served.versions
            if not known:
                load_folder(engine, each, self._versions)

    def _of(self, folder: Path) -> list[ModelFolder]:
        if is_model(folder):
            return [ModelFolder(read_manifest(folder).name, None, folder)]
        found: list[ModelFolder] = []
        for inner in sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else ():
            if is_model(inner):
                found.append(ModelFolder(inner.name, None, inner))
                continue
            found += _versions(inner)[-self._versions :]
        return found


def _versions(folder: Path) -> list[ModelFolder]:
    """All versions of a model, the oldest first."""
    paths = [path for path in folder.iterdir() if path.name.isdigit()]
    found: list[ModelFolder] = []
    for path in sorted(paths, key=lambda path: int(path.name)):
        if is_delta(path):
            found.append(ModelFolder(folder.name, path.name, path, _below(path, found)))
        elif is_model(path):
            found.append(ModelFolder(folder.name, path.name, path))
    return found


def _below(delta: Path, earlier: Sequence[ModelFolder]) -> tuple[ModelFolder, ...]:
    """What a delta rests on; nothing where that is not here."""
    base = read_delta(delta).base
    for each in reversed(earlier):
        if _checksum(each.folder) == base:
            return (*each.below, each)
    return ()


def _checksum(folder: Path) -> int:
    return read_delta(folder).result if is_delta(folder) else content_checksum(read_manifest(folder))


def load_folder(engine: Engine, model: ModelFolder, versions: int = 1) -> None:
    """Has an engine serve a version, and of those before it the newest, `versions` in all. A delta brings
    what it rests on with it, where that is not served."""
    served = _served(engine, model.name)
    known = [place for place, each in enumerate(model.below) if each.version in served]
    for each in [*model.below[known[-1] + 1 if known else 0 :], model]:
        engine.load(each.folder, each.name, each.version, keep=versions > 1)
    served = _served(engine, model.name)
    for old in served[:-versions]:
        engine.unload(model.name, old)


def _served(engine: Engine, name: str) -> tuple[str, ...]:
    described = engine.models().get(name)
    return () if described is None else described.versions
