"""Several runs side by side: a line for each, which is best in each column, where their recipes differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megalith.core.errors import ConfigError
from megalith.core.units import format_bytes, format_count
from megalith.report.charts.speed import format_time
from megalith.report.collect import METRICS, RunFacts, Values, collect
from megalith.report.html_tables import NONE

METRIC_NAMES = {"ne": "NE", "log_loss": "log loss", "auc": "AUC", "calibration": "calibration"}


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of the comparison."""

    key: str
    title: str
    write: Callable[[Any], str]
    badness: Callable[[float], float] | None = None
    """What is least in the best run; None where no value is better than another."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Everything the page shows."""

    names: tuple[str, ...]
    """Of the runs: as much of each path as tells them apart."""
    runs: tuple[RunFacts, ...]
    columns: tuple[ResultColumn, ...]
    rows: tuple[Values, ...]
    """Of each run the value of each column by its key, None where it has none."""
    differences: dict[str, list[Any]]
    """By key of the recipe, such as `model.dim`, the value of each run; None where a run has no such key."""

    def best(self, column: ResultColumn) -> list[int]:
        """The runs that are best in a column; none where all are equal or only one has a value."""
        values = [(number, row[column.key]) for number, row in enumerate(self.rows)]
        known = [(number, value) for number, value in values if value is not None]
        if column.badness is None or len(known) < 2:
            return []
        badness = {number: column.badness(value) for number, value in known}
        least = min(badness.values())
        found = [number for number, value in badness.items() if value == least]
        return found if len(found) < len(known) else []

    def notes(self) -> list[str]:
        """Why some numbers must not be held against each other."""
        notes = []
        if "data.path" in self.differences:
            notes.append("The runs read different data: their metrics are not of the same samples.")
        unfinished = [
            name for name, run in zip(self.names, self.runs, strict=True) if run.status == "not finished"
        ]
        if unfinished:
            notes.append(f"Not finished: {', '.join(unfinished)}.")
        for split in _splits(self.runs):
            rows = {row[f"{split}.samples"] for row in self.rows} - {None}
            if len(rows) > 1:
                counts = " and ".join(f"{count:,}" for count in sorted(rows))
                notes.append(f"The runs were evaluated on {counts} samples of {split}.")
        return notes

    def to_dict(self) -> Values:
        """As `--json` prints it."""
        runs = [
            {"name": name, "run": str(facts.folder), **row}
            for name, facts, row in zip(self.names, self.runs, self.rows, strict=True)
        ]
        best = {column.key: [self.names[number] for number in self.best(column)] for column in self.columns}
        differences = {
            key: dict(zip(self.names, values, strict=True)) for key, values in self.differences.items()
        }
        return {
            "runs": runs,
            "best": {key: names for key, names in best.items() if names},
            "differences": differences,
            "notes": self.notes(),
        }


def compare(folders: Sequence[Path]) -> RunComparison:
    """The comparison of some runs, or one sentence that says which is not one."""
    whole = [folder.absolute().resolve() for folder in folders]
    for number, folder in enumerate(whole):
        if folder in whole[:number]:
            raise ConfigError(f"{folders[number]} is named twice; name each run once.")
    runs = tuple(collect(folder) for folder in folders)
    splits = _splits(runs)
    return RunComparison(
        names=tuple(distinct_names(whole)),
        runs=runs,
        columns=tuple(_columns(splits)),
        rows=tuple(_row(run, splits) for run in runs),
        differences=differences([run.recipe.model_dump(mode="json") for run in runs]),
    )


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of paths that tell them apart.

    >>> distinct_names([Path("/runs/a/1"), Path("/runs/b/1")])
    ['a/1', 'b/1']
    """
    most = max(len(folder.parts) for folder in folders)
    names: list[str] = []
    for count in range(1, most + 1):
        names = ["/".join(folder.parts[-count:]).replace("//", "/") for folder in folders]
        if len(set(names)) == len(names):
            break
    return names


def differences(configs: Sequence[Values]) -> dict[str, list[Any]]:
    """The keys of which not all configs have the same value, with the value of each.

    >>> differences([{"model": {"dim": 8, "kind": "dlrm"}}, {"model": {"dim": 16, "kind": "dlrm"}}])
    {'model.dim': [8, 16]}
    """
    flat = [_flat(config) for config in configs]
    keys = dict.fromkeys(key for config in flat for key in config)
    # A group that a run lacks is `null` there, beside the keys that it has elsewhere.
    leaves = [key for key in keys if not any(other.startswith(f"{key}.") for other in keys)]
    values = {key: [config.get(key) for config in flat] for key in leaves}
    return {key: found for key, found in values.items() if any(value != found[0] for value in found[1:])}


def _flat(config: Values, before: str = "") -> Values:
    found: Values = {}
    for key, value in config.items():
        name = f"{before}{key}"
        found |= _flat(value, f"{name}.") if isinstance(value, dict) and value else {name: value}
    return found


def _splits(runs: Sequence[RunFacts]) -> list[str]:
    return list(dict.fromkeys(final["split"] for run in runs for final in run.finals))


def _row(run: RunFacts, splits: Sequence[str]) -> Values:
    tables = run.tables.tables
    table_bytes = sum(table.weight_bytes for table in tables) if tables else None
    row: Values = {
        "recipe": run.recipe.name,
        "status": run.status,
        "steps": run.step,
        "best_step": run.best_step,
        "samples_per_second": run.samples_per_second,
        "table_bytes": run.summary.get("table_bytes", table_bytes),
        "dense_weights": run.summary.get("dense_parameters"),
        "seconds": run.seconds,
    }
    finals = {final["split"]: final for final in run.finals}
    for split in splits:
        for key in (*METRICS, "samples"):
            row[f"{split}.{key}"] = finals.get(split, {}).get(key)
    return row


def _columns(splits: Sequence[str]) -> list[ResultColumn]:
    columns = [
        ResultColumn("recipe", "recipe", str),
        ResultColumn("status", "status", str),
        ResultColumn("steps", "steps", lambda steps: f"{steps:,}"),
        ResultColumn("best_step", "best step", lambda step: f"{step:,}"),
    ]
    badness: dict[str, Callable[[float], float]] = {
        "auc": lambda value: -value,
        "calibration": lambda value: abs(value - 1.0),
    }
    for split in splits:
        for key in METRICS:
            digits = 3 if key == "calibration" else 4
            columns.append(
                ResultColumn(
                    f"{split}.{key}",
                    f"{METRIC_NAMES[key]}, {split}",
                    f"{{:.{digits}f}}".format,
                    badness.get(key, float),
                )
            )
    return [
        *columns,
        ResultColumn("samples_per_second", "samples/s", format_count, lambda rate: -rate),
        ResultColumn("table_bytes", "tables", format_bytes, float),
        ResultColumn("dense_weights", "dense weights", format_count, float),
        ResultColumn("seconds", "time", format_time, float),
    ]


def cell(column: ResultColumn, row: Values) -> str:
    """The text of a cell."""
    value = row[column.key]
    return NONE if value is None else column.write(value)
