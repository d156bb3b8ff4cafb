"""`megalith ids stats`: what the dynamic tables of a run did, as its reports add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megalith.core.errors import ConfigError
from megalith.train.run.folder import RunFolder
from megalith.train.run.records import read_metrics

ALL = "all"
_SUMMED = (
    *("lookups", "hits", "admitted", "refused", "full", "evicted", "shrunk"),
    *("expired_by_batches", "expired_by_seconds", "expired_by_score"),
)


def id_statistics(folder: Path) -> dict[str, Any]:
    """By table, and of `all` together: ids and bound at the last report, counts of all reports, shares."""
    run = RunFolder(folder)
    run.recipe()
    entries = [entry for entry in read_metrics(run.metrics) if entry.get("dynamic")]
    if not entries:
        raise ConfigError(f"{folder} has reported no dynamic table; train one with a dynamic store first.")
    found = [{ALL: entry["dynamic"], **entry["dynamic"].get("tables", {})} for entry in entries]
    names = [*(name for name in found[-1] if name != ALL), ALL]
    return {
        "run": str(folder),
        "step": entries[-1]["step"],
        "tables": {name: _added([entry[name] for entry in found if name in entry]) for name in names},
    }


def _added(entries: list[dict[str, Any]]) -> dict[str, Any]:
    total = {key: sum(entry.get(key, 0) for entry in entries) for key in _SUMMED}
    lookups = total["lookups"]
    return {
        "ids": entries[-1]["ids"],
        "bound": entries[-1]["bound"],
        **total,
        "hit_rate": total["hits"] / lookups if lookups else None,
        "unknown_share": (total["refused"] + total["full"]) / lookups if lookups else None,
    }
