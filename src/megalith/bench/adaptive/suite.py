"""The grid of `megalith bench adaptive`: methods, ratios and seeds, run one after the other.

Every run that ends is a line of `runs.jsonl` in the output folder, and is not run again: a grid that was
killed, or whose minutes are over, goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from megalith.bench.adaptive.methods import MOST_TUNING, Method, Settings, choose_methods
from megalith.bench.adaptive.runs import RunPoint, run_point, size_point
from megalith.bench.adaptive.sizing import sized_ratio
from megalith.bench.adaptive.summary import quality, summarise
from megalith.bench.runner import result
from megalith.core.errors import ConfigError
from megalith.core.files import append, read_json_object, read_jsonl, write_atomic
from megalith.data.dataset import Dataset
from megalith.train.recipe import Recipe

Metric = Literal["auc", "log_loss"]
Charge = Literal["all", "weights"]
Say = Callable[[str], None]
_USUAL_RATIO = 16


@dataclass(frozen=True)
class GridSettings:
    """What is run."""

    methods: tuple[str, ...] = ()
    """All where there are none."""
    ratios: tuple[float, ...] = (4, 16, 64, 400)
    seeds: int = 3
    tuning: int = 1
    """Settings that are tried of each method, at one ratio, on `valid`; 1 takes the usual ones."""
    metric: Metric = "log_loss"
    budget_minutes: float | None = None
    charge: Charge = "all"
    """What ratios count: every byte, or weights alone, as published figures do."""

    def __post_init__(self) -> None:
        if not 1 <= self.tuning <= MOST_TUNING:
            raise ConfigError(f"--tuning is {self.tuning}; use 1 to {MOST_TUNING} runs of each method.")
        if not self.ratios or any(not ratio >= 1 for ratio in self.ratios):
            raise ConfigError("--ratios must be numbers from 1 on, such as 4,16,64.")

    @property
    def tuning_ratio(self) -> float:
        """The one where settings are chosen: the nearest to 16."""
        return min(self.ratios, key=lambda ratio: abs(math.log(ratio / _USUAL_RATIO)))


class RunLog:
    """The runs of a grid that have ended, in a file that is only added to."""

    def __init__(self, folder: Path, recipe: Recipe, dataset: Dataset) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "runs.jsonl"
        self._check(folder / "grid.json", recipe, dataset)
        entries = read_jsonl(self.path)
        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
        if self.path.exists() and self.path.read_text() != lines:
            # A kill cut the last line short; the next one must not be written behind it.
            write_atomic(self.path, lines)
        self._records = {_key(entry): entry for entry in entries}

    def find(self, point: RunPoint) -> dict[str, Any] | None:
        """The record of a run that has ended."""
        return self._records.get(_key(point.key))

    def add(self, point: RunPoint, record: dict[str, Any]) -> None:
        """Writes the record of a run."""
        append(self.path, (json.dumps(record) + "\n").encode())
        self._records[_key(point.key)] = record

    def _check(self, path: Path, recipe: Recipe, dataset: Dataset) -> None:
        """Refuses a folder that holds runs of another recipe or of other data."""
        content = recipe.model_dump(mode="json")
        content["data"].pop("path")
        content["train"].pop("seed")
        schema = hashlib.sha256(repr(dataset.schema).encode()).hexdigest()
        own = {"recipe": content, "data": schema}
        if not path.exists():
            write_atomic(path, json.dumps(own, indent=1) + "\n")
        elif read_json_object(path, fix="delete the folder") != json.loads(json.dumps(own)):
            raise ConfigError(
                f"{path.parent} holds runs of another recipe or other data; "
                "choose another --out or delete it."
            )


def _key(entry: dict[str, Any]) -> str:
    names = ("method", "settings", "ratio", "seed")
    own = {name: entry[name] for name in names} | {"ratio": float(entry["ratio"])}
    return json.dumps(own, sort_keys=True)


class _Grid:
    """The runs of one call, of which those that have not ended are run while there is time."""

    def __init__(self, recipe: Recipe, settings: GridSettings, out: Path, say: Say) -> None:
        self.settings, self._recipe, self._say = settings, recipe, say
        self._dataset = Dataset(recipe.data.path)
        self._log = RunLog(out, recipe, self._dataset)
        minutes = settings.budget_minutes
        self._deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self.ran = 0

    def record(self, point: RunPoint) -> dict[str, Any] | None:
        """The record of a run, from before or of now; None where there is no time for it."""
        found = self._log.find(point)
        if found is None and time.monotonic() < self._deadline:
            self._say(_sentence(point))
            found = run_point(self._recipe, self._dataset, point)
            self._log.add(point, found)
            self.ran += 1
        return found

    def sized(self, method: Method, settings: Settings, ratio: float) -> float | None:
        """The ratio of all bytes that gives a ratio as it is charged; None where there is no time."""
        if self.settings.charge == "all" or method.name == "none":
            return ratio

        def size_of(all_bytes: float) -> dict[str, Any] | None:
            point = RunPoint(method, settings, all_bytes, 0)
            if method.shrinks_in_training:
                return self.record(point)
            return size_point(self._recipe, self._dataset, point)

        return sized_ratio(ratio, size_of)

    def tuned(self, method: Method) -> tuple[Settings, dict[str, Any]]:
        """The settings that are best on `valid`, and what tuning tried."""
        ratio = 1.0 if method.name == "none" else self.settings.tuning_ratio
        tried = method.settings[: self.settings.tuning]
        about: dict[str, Any] = {"runs": len(tried), "ratio": ratio, "chosen": tried[0], "found": []}
        if len(tried) == 1:
            return tried[0], about | {"runs": 0}
        if "valid" not in self._dataset.schema.splits:
            raise ConfigError(
                f"{self._dataset.folder} has no `valid` split to tune on; prepare it with one, "
                "or use --tuning 1."
            )
        scores: list[tuple[float, int]] = []
        for number, settings in enumerate(tried):
            sized = self.sized(method, settings, ratio)
            record = None if sized is None else self.record(RunPoint(method, settings, sized, 0))
            if record is not None and "quality" in record:
                value = quality(record, self.settings.metric, "valid")
                about["found"].append({"settings": settings, "valid": value})
                scores.append((value if self.settings.metric == "log_loss" else -value, number))
        chosen = tried[min(scores)[1]] if scores else tried[0]
        return chosen, about | {"chosen": chosen}


def bench_adaptive(
    recipe: Recipe, settings: GridSettings, out: Path, say: Say = lambda _: None
) -> dict[str, Any]:
    """Runs what is missing of a grid, and sums up all of it."""
    methods = choose_methods(settings.methods)
    grid = _Grid(recipe, settings, out, say)
    tuned = {method.name: grid.tuned(method) for method in methods}
    chosen = {name: settings for name, (settings, _) in tuned.items()}
    points = _points(methods, settings)
    records = []
    for method, ratio, seed in points:
        sized = grid.sized(method, chosen[method.name], ratio)
        point = None if sized is None else RunPoint(method, chosen[method.name], sized, seed)
        records.append(None if point is None else grid.record(point))
    asked = [{"method": method.name, "ratio": ratio, "seed": seed} for method, ratio, seed in points]
    results = {
        "metric": settings.metric,
        "charge": settings.charge,
        "rows": summarise(asked, records, settings.metric),
        "tuning": {name: about for name, (_, about) in tuned.items()},
        "ran": grid.ran,
        "left": sum(record is None for record in records),
        "runs": [record for record in records if record is not None],
    }
    about = {
        "recipe": recipe.name,
        "methods": [method.name for method in methods],
        "ratios": list(settings.ratios),
        "seeds": settings.seeds,
        "tuning": settings.tuning,
        "metric": settings.metric,
        "charge": settings.charge,
    }
    return result("adaptive", about, results, out)


def _points(methods: Sequence[Method], settings: GridSettings) -> list[tuple[Method, float, int]]:
    """Methods, ratios and seeds; seed by seed, so that whatever there was time for compares."""
    points = []
    for seed in range(settings.seeds):
        for method in methods:
            ratios = (1.0,) if method.name == "none" else settings.ratios
            points += [(method, ratio, seed) for ratio in ratios]
    return points


def _sentence(point: RunPoint) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in point.settings.items())
    return f"{point.method.name} at {point.ratio:g}x, seed {point.seed}" + (
        f" ({settings})" if settings else ""
    )
