"""Backends by name: whatever packages name under the entry point group `megalith.backends`.

A package that cannot be imported, or whose class is not a backend, gets one sentence in the list and does
not keep the others from being found.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from megalith.core.errors import ConfigError, nearest, without_controls
from megalith.export.backends.base import Backend

GROUP = "megalith.backends"


@dataclass(frozen=True, slots=True)
class ListedBackend:
    """What an entry point led to."""

    name: str
    backend: Backend | None
    """None where it cannot be used."""
    problem: str = ""
    """One sentence: why it cannot be used here, and the fix."""


def listed_backends() -> dict[str, ListedBackend]:
    """Every backend that an installed package names, by name; those that cannot be used with the reason."""
    found: dict[str, ListedBackend] = {}
    for point in sorted(_points(), key=lambda point: (point.name, point.value)):
        listed = _open(point)
        before = found.get(point.name)
        if before is None:
            found[point.name] = listed
        elif (
            before.backend is None
            or listed.backend is None
            or type(before.backend) is not type(listed.backend)
        ):
            sentence = f"Several packages name a backend '{point.name}'; uninstall all but one of them."
            found[point.name] = ListedBackend(point.name, None, sentence)
    return found


def find_backend(name: str) -> Backend:
    """The backend of that name, or the sentence that says why there is none that can be used here."""
    found = listed_backends()
    if name not in found:
        raise ConfigError(f"There is no backend '{name}'; {nearest(name, sorted(found))}")
    backend = found[name].backend
    if backend is None or found[name].problem:
        raise ConfigError(found[name].problem)
    return backend


def usable_backends() -> list[Backend]:
    """Those that can run here."""
    return [listed.backend for listed in listed_backends().values() if listed.backend and not listed.problem]


def _points() -> Iterable[EntryPoint]:
    return entry_points(group=GROUP)


def _open(point: EntryPoint) -> ListedBackend:
    package = point.dist.name if point.dist else point.value
    try:
        cls = point.load()
        if not (isinstance(cls, type) and issubclass(cls, Backend)) or inspect.isabstract(cls):
            sentence = (
                f"Backend '{point.name}' of package '{package}' names {point.value}, which is not a subclass "
                "of megalith.export.backends.base.Backend with a `load`; fix or uninstall it."
            )
            return ListedBackend(point.name, None, sentence)
        backend = cls()
        if backend.name != point.name:
            sentence = (
                f"Backend '{point.name}' of package '{package}' calls itself '{backend.name}'; make its "
                "entry point and its `name` the same."
            )
            return ListedBackend(point.name, None, sentence)
        return ListedBackend(point.name, backend, backend.unavailable() or "")
    except Exception as error:  # Whatever a foreign package does, the others must work.
        sentence = (
            f"Backend '{point.name}' of package '{package}' does not load ({type(error).__name__}: {error}); "
            "fix or uninstall it."
        )
        return ListedBackend(point.name, None, without_controls(sentence))
