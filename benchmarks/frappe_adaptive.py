"""Frappe with fewer weights: adaptive tables beside whole rows, magnitude pruning, hashing and a smaller dim.

    megalith data prepare libfm train.libfm --test test.libfm --min-count 1 --valid-fraction 0.1 --out DIR
    python benchmarks/frappe_adaptive.py --data DIR --out RUNS --result FILE

Ratios count weights alone, as published figures do, and all bytes stand beside them. The best of `--tuning`
settings of each candidate on the validation cut with seed 0, at the ratio nearest to 16, is run with every
seed at every ratio. Seeds are paired: candidates of one seed have the same order of samples. Methods that
shrink in training are run with seed 0 until their weights are within 2% of what is asked. The recipe is
frappe-dlrm with L2 on the rows touched and without batch norm: of three that were tried on the cut the best
for dense tables whose rows do not take every step.

Every run that ends is kept in `--out`. With `--runs N` a call ends after N runs, with exit code 75 where some
are left; the same command goes on.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

from megalith.bench.adaptive.methods import METHODS, Settings
from megalith.bench.adaptive.runs import RunPoint, run_point, size_point
from megalith.bench.adaptive.sizing import sized_ratio
from megalith.bench.adaptive.suite import RunLog
from megalith.bench.adaptive.summary import quality
from megalith.bench.runner import result, save_result
from megalith.cli.output import print_table, progress_console
from megalith.core.units import format_bytes
from megalith.data.dataset import Dataset
from megalith.train.recipe import load_recipe

OVERRIDES = (
    "embeddings.optimizer.rows=touched",
    "embeddings.optimizer.weight_decay=0.001",
    "model.top.norm=none",
)
DENSE, RUNS_LEFT = "dense", 75
OUR_SETTINGS: tuple[Settings, ...] = ({}, {"gamma": 0.998}, {"end": 0.3}, {"position": 2.5})
"""As many as the others have."""


class Candidate(NamedTuple):
    """A method with the settings that tuning tries."""

    method: str
    settings: tuple[Settings, ...]


CANDIDATES = {
    DENSE: Candidate("none", METHODS["none"].settings),
    **{
        f"adaptive, chunks of {chunk}": Candidate(
            "adaptive", tuple({"chunk": chunk, **own} for own in OUR_SETTINGS)
        )
        for chunk in (4, 1)
    },
    **{
        name: Candidate(name, METHODS[name].settings)
        for name in ("rows", "magnitude", "hashing", "small_dim")
    },
}
OURS = [name for name in CANDIDATES if name.startswith("adaptive")]


class NoRunsLeftError(Exception):
    """This call has trained as much as it may."""


class Comparison:
    """The runs of all candidates, of which missing ones are trained when they are asked for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.recipe = load_recipe("frappe-dlrm", [*OVERRIDES, f"data.path={options.data}"])
        self.dataset = Dataset(options.data)
        self.log = RunLog(options.out, self.recipe, self.dataset)
        self.left: float = math.inf if options.runs is None else options.runs
        self.tuning = options.tuning
        self._sized: dict[Any, float] = {}
        self.tuning_ratio = min(options.ratios, key=lambda ratio: abs(math.log(ratio / 16)))

    def record(self, point: RunPoint) -> dict[str, Any]:
        """A run, from before or of now."""
        found = self.log.find(point)
        if found is None:
            if self.left <= 0:
                raise NoRunsLeftError
            self.left -= 1
            progress_console.print(str(point.key), style="dim", highlight=False)
            found = run_point(self.recipe, self.dataset, point)
            self.log.add(point, found)
        return found

    def sized(self, candidate: Candidate, settings: Settings, ratio: float) -> float:
        """The ratio of all bytes with which the weights are as asked."""
        method = METHODS[candidate.method]
        if candidate.method == "none":
            return 1.0

        def size_of(all_bytes: float) -> dict[str, Any]:
            point = RunPoint(method, settings, all_bytes, 0)
            known = method.shrinks_in_training
            return self.record(point) if known else size_point(self.recipe, self.dataset, point)

        key, like = (str(settings), ratio, method.name), (settings.get("chunk"), ratio, method.name)
        if key not in self._sized:
            # Other settings of a method need about the same.
            found = sized_ratio(ratio, size_of, self._sized.get(like))
            assert found is not None
            self._sized[key] = found
            self._sized.setdefault(like, found)
        return self._sized[key]

    def run(self, candidate: Candidate, settings: Settings, ratio: float, seed: int) -> dict[str, Any]:
        """A run whose weights are as asked."""
        at = self.sized(candidate, settings, ratio)
        return self.record(RunPoint(METHODS[candidate.method], settings, at, seed))

    def tuned(self, candidate: Candidate) -> tuple[Settings, list[dict[str, Any]]]:
        """The settings that are best on the validation cut, and all that were tried."""
        tried = []
        for settings in candidate.settings[: self.tuning]:
            record = self.run(candidate, settings, self.tuning_ratio, 0)
            if "quality" in record:
                tried.append({"settings": settings, "valid": quality(record, "auc", "valid")})
        best = max(tried, key=lambda one: one["valid"], default={"settings": candidate.settings[0]})
        return best["settings"], tried


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    """One candidate at one ratio, over its seeds."""
    if any("quality" not in record for record in records):
        return {"infeasible": records[0].get("infeasible")}
    tests = [quality(record, "auc", "test") for record in records]
    valids = [quality(record, "auc", "valid") for record in records]
    return {
        "settings": records[0]["settings"],
        "test_auc": tests,
        "mean_test_auc": statistics.fmean(tests),
        "standard_error": error_of(tests),
        "mean_valid_auc": statistics.fmean(valids),
        "weight_ratio": [record["dense_weight_bytes"] / record["bytes"]["weights"] for record in records],
        "bytes_ratio": [record["dense_bytes"] / record["bytes"]["total"] for record in records],
        "bytes": {
            part: statistics.fmean(record["bytes"][part] for record in records)
            for part in records[0]["bytes"]
        },
    }


def error_of(values: list[float]) -> float | None:
    """The standard error of a mean."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def compared(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """By how much each of ours is better than each other candidate, seed by seed."""
    gains: dict[str, Any] = {}
    for ours in OURS:
        for name, other in found.items():
            if name in OURS or "test_auc" not in other or "test_auc" not in found.get(ours, {}):
                continue
            each = [a - b for a, b in zip(found[ours]["test_auc"], other["test_auc"], strict=True)]
            gains.setdefault(ours, {})[name] = {"mean": statistics.fmean(each), "error": error_of(each)}
    return gains


def show(ratio: float, found: dict[str, dict[str, Any]], gains: dict[str, Any]) -> None:
    """A table of one ratio."""
    lines = []
    for name, own in found.items():
        if "test_auc" not in own:
            lines.append([name, "infeasible", *[""] * (5 + len(OURS))])
            continue
        better = [gains.get(ours, {}).get(name) for ours in OURS]
        lines.append(
            [
                name,
                f"{own['mean_test_auc']:.4f}"
                + (f" ± {own['standard_error']:.4f}" if own["standard_error"] else ""),
                f"{own['mean_valid_auc']:.4f}",
                f"{statistics.fmean(own['weight_ratio']):.1f}x",
                format_bytes(round(own["bytes"]["weights"])),
                f"{statistics.fmean(own['bytes_ratio']):.1f}x",
                format_bytes(round(own["bytes"]["total"])),
                *(
                    ""
                    if one is None
                    else f"{one['mean']:+.4f}" + (f" ± {one['error']:.4f}" if one["error"] else "")
                    for one in better
                ),
            ]
        )
    columns = [
        "",
        "test AUC",
        "valid AUC",
        "weights",
        "",
        "all bytes",
        "",
        *(f"{ours} better by" for ours in OURS),
    ]
    print_table(f"Frappe, weights {ratio:g} times fewer", columns, lines)


def compare(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """All there is so far, and whether that is all of it."""
    comparison, is_complete = Comparison(options), True
    results: dict[str, Any] = {"tuning": {}, "ratios": {}}
    for name, candidate in CANDIDATES.items():
        if options.only and name not in options.only:
            continue
        try:
            settings, tried = comparison.tuned(candidate)
            results["tuning"][name] = {"chosen": settings, "tried": tried}
            for ratio in options.ratios:
                records = [comparison.run(candidate, settings, ratio, seed) for seed in range(options.seeds)]
                results["ratios"].setdefault(f"{ratio:g}", {})[name] = summary(records)
        except NoRunsLeftError:
            is_complete = False
    results["better_by"] = {ratio: compared(found) for ratio, found in results["ratios"].items()}
    return results, is_complete


def main() -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="prepared with a validation cut")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--result", type=Path, help="also write all of it to this file")
    parser.add_argument("--ratios", type=float, nargs="+", default=[16.0, 4.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tuning", type=int, default=4, help="settings tried of each candidate, 1 to 4")
    parser.add_argument("--only", nargs="+", choices=CANDIDATES, help="train and show only these")
    parser.add_argument("--runs", type=int, help="most runs of this call")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results, is_complete = compare(options)
    for ratio, found in results["ratios"].items():
        show(float(ratio), found, results["better_by"][ratio])
    if options.result and is_complete and not options.only:
        about = {
            "recipe": ["frappe-dlrm", *OVERRIDES],
            **{name: getattr(options, name) for name in ("ratios", "seeds", "tuning")},
        }
        save_result(options.result, result("frappe-adaptive", about, results, options.out))
    return 0 if is_complete else RUNS_LEFT


if __name__ == "__main__":
    sys.exit(main())
