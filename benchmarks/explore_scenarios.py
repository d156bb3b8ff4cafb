"""The scenario suite with one routing for the search and both baselines, budgets equal; medians first.

    .venv/bin/python benchmarks/explore_scenarios.py --out benchmarks/results/explore-scenarios-routing.json

A run takes half a minute to two. Those that the file already has are not run again; --fresh runs all of them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

from megalith.bench.runner import result, save_result
from megalith.explore.load import load_job, scenario_names
from megalith.explore.scenarios.suite import check_routing, run_scenario

ROUTINGS = ("ecmp", "spray")
MEASURES = ("over_production", "over_crosspipe", "gap")


def main() -> None:
    """Runs what is missing and prints medians and maxima."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--budget", type=int, default=200, help="of the search and of each baseline")
    parser.add_argument("--minutes", type=float, default=600.0, help="no run begins after so many")
    arguments = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    if arguments.out.exists() and not arguments.fresh:
        rows = json.loads(arguments.out.read_text())["results"]["rows"]
    end = time.monotonic() + 60 * arguments.minutes
    for name in scenario_names():
        for routing in ROUTINGS:
            key = f"{name} {routing}"
            if key in rows or time.monotonic() > end:
                continue
            row = run_scenario(load_job(name), budget=arguments.budget, routing=check_routing(routing))
            found = row.to_dict()
            rows[key] = {
                "devices": row.devices,
                **{measure: found[measure] for measure in MEASURES},
                "seconds": round(row.seconds, 1),
                "step_seconds": row.best.prediction.step_seconds,
                "schedule": row.best.job.training.schedule,
            }
            print(key, {measure: found[measure] for measure in MEASURES}, flush=True)
            settings = {"budget": arguments.budget, "scenarios": len(scenario_names())}
            found_so_far = {"summary": summary(rows), "rows": rows}
            content = result("explore-scenarios-routing", settings, found_so_far, Path())
            save_result(arguments.out, content)
    print(json.dumps(summary(rows), indent=1))


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Median and maximum of each measure, by routing, over the rows that have it."""
    found: dict[str, dict[str, Any]] = {}
    for routing in ROUTINGS:
        mine = [row for key, row in rows.items() if key.endswith(f" {routing}")]
        found[routing] = {"runs": len(mine)}
        for measure in MEASURES:
            values = [row[measure] for row in mine if row[measure] is not None]
            if values:
                found[routing][measure] = {"median": median(values), "maximum": max(values)}
    return found


if __name__ == "__main__":
    main()
