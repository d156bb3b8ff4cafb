"""`FollowStatus`: how far a server is in a stream, for its status page and its metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from megalith.export.stream.reader import Position

Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True, slots=True)
class FollowStatus:
    """Of one stream, as of its last look."""

    uri: str
    model: str = ""
    """Empty before the first version."""
    version: int = 0
    """That is served; 0 before the first one."""
    newest: int = 0
    """Of the versions that there are."""
    step: int = 0
    """Training steps behind the version that is served."""
    time: float = 0.0
    """When its rows were read from the trainer, in seconds since 1970."""
    lag_seconds: float = 0.0
    """From then until it served."""
    snapshots: int = 0
    """Versions that were taken whole, since the server started."""
    deltas: int = 0
    """Versions that were taken as what changed."""
    rows: int = 0
    """In these."""
    rebuilt: int = 0
    """Times that changes were written into one model on this machine."""
    refused: int = 0
    """Files and versions that were not taken."""
    problem: str = ""
    """Why a newer version is not served."""

    def serving(self, model: str, position: Position) -> FollowStatus:
        """A version has just begun to serve."""
        now = time.time()
        return replace(
            self,
            model=model,
            version=position.number,
            step=position.step,
            time=position.time,
            lag_seconds=max(0.0, now - position.time),
        )

    def to_dict(self) -> dict[str, Any]:
        """As the status has it."""
        return asdict(self)


def follow_families(statuses: Sequence[FollowStatus]) -> list[tuple[str, str, str, Iterable[Sample]]]:
    """Name, kind, what it is, and values by labels, of every metric of what is followed."""
    if not statuses:
        return []
    now = time.time()
    found: list[tuple[str, str, str, Callable[[FollowStatus], float]]] = [
        ("version", "gauge", "Version of the stream that is served", lambda one: one.version),
        ("newest_version", "gauge", "Newest version of the stream", lambda one: one.newest),
        ("step", "gauge", "Training steps behind the version that is served", lambda one: one.step),
        ("lag_seconds", "gauge", "Seconds from publishing to serving", lambda one: one.lag_seconds),
        (
            "age_seconds",
            "gauge",
            "Seconds since the rows that are served were read from the trainer",
            lambda one: now - one.time if one.version else 0.0,
        ),
        ("snapshots", "counter", "Versions that were taken whole", lambda one: one.snapshots),
        ("deltas", "counter", "Versions that were taken as what changed", lambda one: one.deltas),
        ("rows", "counter", "Rows in these", lambda one: one.rows),
        ("refused_versions", "counter", "Versions and files that were not taken", lambda one: one.refused),
        ("ok", "gauge", "Whether the newest version is served", lambda one: float(not one.problem)),
    ]
    return [
        (f"megalith_follow_{name}", kind, about, [(_labels(one), value(one)) for one in statuses])
        for name, kind, about, value in found
    ]


def _labels(status: FollowStatus) -> Mapping[str, str]:
    return {"model": status.model, "uri": status.uri}
