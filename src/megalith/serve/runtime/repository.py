"""Models and versions of an engine: loading, the switch to a newer version, unloading."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megalith.core.errors import nearest
from megalith.export.folder import read_manifest
from megalith.serve.failures import UnknownModelError
from megalith.serve.request import ModelDescription
from megalith.serve.runtime.cards.served_part import column_runs
from megalith.serve.runtime.fleet import Fleet
from megalith.serve.runtime.placement import place_version
from megalith.serve.runtime.scheduling.request_check import RequestCheck
from megalith.serve.runtime.scheduling.scheduler import Scheduler
from megalith.serve.runtime.scheduling.statistics import VersionStatistics
from megalith.serve.runtime.scheduling.work import Pending, ServedVersion
from megalith.serve.settings import EngineSettings

Says = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What came of loading a version."""

    model: str
    version: str
    seconds: float
    bytes: dict[str, int]
    checks: dict[str, Any] = field(default_factory=dict)
    """What was compared before the switch."""


class Repository:
    """What is served. One load or unload at a time; `find` never waits."""

    def __init__(self, settings: EngineSettings, fleet: Fleet, scheduler: Scheduler, says: Says) -> None:
        self._settings, self._fleet, self._scheduler, self._says = settings, fleet, scheduler, says
        self._changing = threading.Lock()
        self._models: dict[str, dict[str, ServedVersion]] = {}
        """Versions of a model in the order they came; replaced as a whole, never changed."""
        self._past: dict[tuple[str, str], VersionStatistics] = {}
        self._numbers = itertools.count(1)

    def find(self, model: str, version: str | None = None) -> ServedVersion:
        """A version that is served; the newest where none is named."""
        versions = self._models.get(model)
        if versions is None:
            names = sorted(self._models)
            tail = nearest(model, names) if names else "none is loaded."
            raise UnknownModelError(f"There is no model '{model}'; {tail}")
        if version is None:
            return next(reversed(versions.values()))
        found = versions.get(version)
        if found is None:
            listed = ", ".join(versions)
            raise UnknownModelError(f"Model '{model}' has no version '{version}'; it has {listed}.")
        return found

    def record(self, pending: Pending) -> None:
        """Keeps a request now and then, for the check of the next version."""

    def load(self, folder: Path, name: str | None, version: str | None, *, keep: bool = False) -> LoadReport:
        """Loads a version and switches to it; with `keep` the one before is served on by its number."""
        import time

        began = time.monotonic()
        with self._changing:
            served = self._prepare(folder, name, version)
            served.bytes = self._fleet.load(served.number, folder, None, served.spec)
            before = dict(self._models.get(served.model, {}))
            after = {**(before if keep else {}), served.version: served}
            self._switch({**self._models, served.model: after})
            for old in [] if keep else before.values():
                self._fleet.unload(old.number)
        return LoadReport(served.model, served.version, time.monotonic() - began, served.bytes)

    def unload(self, name: str, version: str | None = None) -> None:
        """Serves a model, or one version, no more."""
        with self._changing:
            gone = (
                [self.find(name, version)] if version else list(self._models[self.find(name).model].values())
            )
            left = {key: one for key, one in self._models[name].items() if one not in gone}
            models = {**self._models, name: left}
            if not left:
                del models[name]
            self._switch(models)
            for one in gone:
                self._fleet.unload(one.number)

    def models(self) -> dict[str, ModelDescription]:
        """As the protocol describes them."""
        found = {}
        for name, versions in self._models.items():
            newest = next(reversed(versions.values()))
            found[name] = ModelDescription(
                name=name,
                versions=tuple(versions),
                inputs=newest.check.inputs(),
                outputs=newest.check.outputs(),
                ready=True,
                backend=newest.spec.backend,
                folder=newest.folder,
                features=newest.check.features,
                user_features=newest.check.user_features,
                bytes=newest.bytes,
            )
        return found

    def ready(self) -> bool:
        """Whether cards are there."""
        return bool(self._scheduler.cards)

    def statistics(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Counts by model and version, those that were unloaded among them."""
        with self._scheduler.lock:
            return {key: statistics.to_dict() for key, statistics in self._past.items()}

    def status(self) -> list[dict[str, Any]]:
        """How each version lies on cards."""
        return [
            {
                "model": served.model,
                "version": served.version,
                "folder": served.folder,
                "mode": "partitions" if served.spec.partitions else "replicas",
                "partitions": [list(tables) for tables in served.spec.partitions],
                "host_tables": list(served.spec.host),
                "backend": served.spec.backend,
                "bytes": served.bytes,
                "waiting": served.waiting,
            }
            for versions in self._models.values()
            for served in versions.values()
        ]

    def close(self) -> None:
        """Serves nothing more."""
        self._models = {}

    def _prepare(self, folder: Path, name: str | None, version: str | None) -> ServedVersion:
        manifest = read_manifest(folder)
        model = name or manifest.name
        number = next(self._numbers)
        known = self._models.get(model, {})
        version = version or str(max((int(each) for each in known if each.isdigit()), default=0) + 1)
        spec = place_version(manifest, folder, self._settings)
        statistics = self._past.setdefault((model, version), VersionStatistics())
        check = RequestCheck(manifest)
        served = ServedVersion(number, model, version, str(folder), manifest, check, spec, statistics)
        item = 2 if spec.pooled == "float16" else 4
        widths = [sum(run.width for run in column_runs(manifest, tables)) for tables in spec.partitions]
        served.widths = tuple(item * width for width in widths)
        return served

    def _switch(self, models: dict[str, dict[str, ServedVersion]]) -> None:
        """Serves these from now on: on new cards, while those before finish what they have."""
        kept = [one for versions in models.values() for one in versions.values()]
        gone = [one for versions in self._models.values() for one in versions.values() if one not in kept]
        specs = {one.number: one.spec for one in kept}
        before = self._fleet.generation
        self._fleet.join(self._fleet.start_generation(specs))
        self._models = models
        # Requests that have found an old version and are not yet queued find another then.
        self._scheduler.wait_idle(before, gone)
        self._fleet.end(before)
