"""Models and versions of an engine: loading, checks, the switch to a newer version, unloading."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megalith.core.errors import ServeError, nearest
from megalith.serve.failures import UnknownModelError
from megalith.serve.request import ModelDescription
from megalith.serve.runtime.cards.served_part import VersionParts, column_runs
from megalith.serve.runtime.fleet import Fleet
from megalith.serve.runtime.memory.peak import LoadMemory, load_memory
from megalith.serve.runtime.placement import place_version
from megalith.serve.runtime.recorded import RecentRequests, Replay
from megalith.serve.runtime.scheduling.request_check import RequestCheck
from megalith.serve.runtime.scheduling.scheduler import Scheduler
from megalith.serve.runtime.scheduling.statistics import VersionStatistics
from megalith.serve.runtime.scheduling.work import ServedVersion
from megalith.serve.runtime.version_check import VersionCheck, VersionFindings
from megalith.serve.runtime.version_folder import VersionFolder, open_version
from megalith.serve.settings import EngineSettings

Says = Callable[[str], None]
_LIVE_REQUESTS = 4
"""That are replayed before one of many versions takes over."""
_MOST_COUNTED = 64
"""Versions of a model whose counts are kept."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What came of loading a version."""

    model: str
    version: str
    seconds: float
    bytes: dict[str, int]
    memory: LoadMemory
    checks: dict[str, Any] = field(default_factory=dict)
    """What was compared before the switch."""


class Repository:
    """What is served. One load or unload at a time; `find` never waits."""

    def __init__(
        self,
        settings: EngineSettings,
        fleet: Fleet,
        scheduler: Scheduler,
        recorder: RecentRequests,
        replay: Replay,
        says: Says,
    ) -> None:
        self._settings, self._fleet, self._scheduler, self._says = settings, fleet, scheduler, says
        self._recorder = recorder
        self._check = VersionCheck(replay, settings.calibration_bound, settings.cards)
        self._check_live = VersionCheck(replay, settings.live_bound, settings.cards)
        self._changing = threading.Lock()
        self._models: dict[str, dict[str, ServedVersion]] = {}
        """Versions of a model in the order they came; replaced as a whole, never changed."""
        self._past: dict[tuple[str, str], VersionStatistics] = {}
        self._numbers = itertools.count(1)
        self._generation = 0
        """Of the cards that serve."""

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

    def load(
        self,
        folder: Path,
        name: str | None,
        version: str | None,
        *,
        keep: bool = False,
        check: bool = True,
        live: bool = False,
    ) -> LoadReport:
        """Loads a version beside the one before, checks it, and switches to it.

        The memory that this takes at its peak is said first, and refused where it is beyond the limit. With
        `keep` the version before is served on by its number. Where a check fails a QualityError says so and
        everything is as it was; `check=False` leaves checks out. `live` is for versions of which one comes
        every few seconds: nothing is said, few requests are replayed, and `live_bound` is theirs.
        """
        began = time.monotonic()
        with self._changing:
            opened = open_version(folder, lambda model: self._models.get(name or model, {}))
            served, base = self._prepare(opened, name, version)
            memory = load_memory(opened, self._loaded_bytes(), self._fleet.resident(), self._settings)
            if not live:
                self._says(f"Version {served.version} of '{served.model}': {memory.sentence()}")
            memory.refuse_beyond_limit(served.model, served.version)
            before = self._models.get(served.model, {})
            after = {**(before if keep else {}), served.version: served}
            models = {**self._models, served.model: after}
            served.bytes = self._fleet.load(served.number, folder, base, served.spec)
            try:
                findings = self._switch(models, served, opened if check else None, live)
            except BaseException as error:
                self._says(f"Version {served.version} of '{served.model}' does not take over: {error}")
                self._fleet.unload(served.number)
                raise
            for old in before.values():
                if old not in after.values():
                    self._fleet.unload(old.number)
            self._forget(served.model)
        seconds = time.monotonic() - began
        if not live:
            self._says(f"Version {served.version} of '{served.model}' serves after {seconds:.1f} s.")
        return LoadReport(served.model, served.version, seconds, served.bytes, memory, findings.to_dict())

    def unload(self, name: str, version: str | None = None) -> None:
        """Serves a model, or one version, no more."""
        with self._changing:
            chosen = self.find(name, version)
            gone = [chosen] if version else list(self._models[name].values())
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
                folder=newest.inputs_folder,
                features=newest.check.features,
                user_features=newest.check.user_features,
                bytes=newest.bytes,
            )
        return found

    def ready(self) -> bool:
        """Whether something is served and some card is there."""
        return bool(self._models) and bool(self._scheduler.cards)

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

    def _loaded_bytes(self) -> int:
        served = (one for versions in self._models.values() for one in versions.values())
        return sum(sum(one.bytes.values()) for one in served)

    def _prepare(
        self, opened: VersionFolder, name: str | None, version: str | None
    ) -> tuple[ServedVersion, int | None]:
        manifest = opened.manifest
        model = name or manifest.name
        known = self._models.get(model, {})
        version = version or str(max((int(each) for each in known if each.isdigit()), default=0) + 1)
        if version in known:
            raise ServeError(f"Version {version} of '{model}' is served already; name another.")
        spec = place_version(manifest, opened.weights_file, self._settings)
        served = ServedVersion(
            next(self._numbers),
            model,
            version,
            str(opened.folder),
            opened.weights_file,
            manifest,
            RequestCheck(manifest),
            spec,
            self._past.setdefault((model, version), VersionStatistics()),
            inputs_folder=str(opened.inputs),
        )
        item = 2 if spec.pooled == "float16" else 4
        widths = [sum(run.width for run in column_runs(manifest, tables)) for tables in spec.partitions]
        served.widths = tuple(item * width for width in widths)
        if opened.base_number is not None:
            # What rounding does to outputs takes all rows to find out, which are not in the delta.
            served.limits = next(one.limits for one in known.values() if one.number == opened.base_number)
        return served, opened.base_number

    def _switch(
        self,
        models: dict[str, dict[str, ServedVersion]],
        new: ServedVersion | None = None,
        opened: VersionFolder | None = None,
        live: bool = False,
    ) -> VersionFindings:
        """Serves these from now on: on new cards, while those before finish what they have."""
        kept = [one for versions in models.values() for one in versions.values()]
        gone = [one for versions in self._models.values() for one in versions.values() if one not in kept]
        specs: dict[int, VersionParts] = {one.number: one.spec for one in kept}
        before = self._generation
        findings = VersionFindings()
        generation = self._fleet.start_generation(specs, None if new is None else new.number)
        try:
            if new is not None and opened is not None:
                findings = self._findings(opened, new, live)
        except BaseException:
            self._scheduler.wait_idle(generation, [new] if new else [])
            self._fleet.end(generation)
            raise
        self._fleet.open(generation)
        self._models, self._generation = models, generation
        # Requests that have found an old version and are not yet queued find another then.
        self._scheduler.wait_idle(before, gone)
        self._fleet.end(before)
        return findings

    def _findings(self, opened: VersionFolder, new: ServedVersion, live: bool) -> VersionFindings:
        versions = self._models.get(new.model)
        old = next(reversed(versions.values())) if versions else None
        kept = self._recorder.kept(new.model)
        if live:
            return self._check_live(opened.source(), new, old, kept[-_LIVE_REQUESTS:], alone=not self._models)
        return self._check(opened.source(), new, old, kept, alone=not self._models)

    def _forget(self, model: str) -> None:
        """Counts of versions that went long ago."""
        known = [key for key in self._past if key[0] == model]
        served = self._models[model]
        with self._scheduler.lock:
            for key in known[: max(0, len(known) - _MOST_COUNTED)]:
                if key[1] not in served:
                    del self._past[key]
