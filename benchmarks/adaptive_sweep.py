"""How the settings of adaptive tables were chosen: one at a time around the usual ones, on every split.

    python benchmarks/adaptive_sweep.py --data DIR --ratio 16 --out sweep embeddings.optimizer.lr=0.12

Every run that ends is kept in `--out`; the same command goes on where it stopped. Choose by `valid` alone.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch

from megalith.bench.adaptive.methods import METHODS
from megalith.bench.adaptive.runs import RunPoint, run_point
from megalith.bench.adaptive.suite import RunLog
from megalith.bench.adaptive.summary import quality
from megalith.bench.runner import result, save_result
from megalith.cli.output import print_json, print_table, progress_console
from megalith.data.dataset import Dataset
from megalith.train.recipe import load_recipe

TRIED: dict[str, tuple[Any, ...]] = {
    "chunk": (1, 2, 4, 8, 16),
    "rate": (0.0, 0.25, 0.5, 0.75, 1.0),
    "gamma": (0.98, 0.99, 0.995, 0.998, 0.999, 0.9995),
    "interval": (10, 25, 50, 100),
    "end": (0.3, 0.5, 0.7, 0.9),
    "warm_up": (0, 50, 200),
    "begin_ratio": (1.0, 4.0),
    "first_chunks": (1, 2),
    "position": (0.0, 0.75, 1.5, 2.5),
    "floor": (0.1, 0.5, 2.0, 100.0),
    "hysteresis": (1.0, 1.2, 1.5, 2.0),
    "least_change": (0.0, 0.05),
    "sketch": (0.02, 0.0625, 0.125),
}


def main() -> None:
    """Runs what is missing and prints all of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recipe", default="criteo-dlrm")
    parser.add_argument("--ratio", type=float, default=16.0)
    parser.add_argument("--chunk", type=int, default=4, help="the usual chunk, around which others are tried")
    parser.add_argument("--only", default="", help="settings to vary, as a,b")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--metric", choices=("log_loss", "auc"), default="log_loss")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    recipe = load_recipe(given.recipe, [*given.overrides, f"data.path={given.data}"])
    dataset = Dataset(given.data)
    log = RunLog(given.out, recipe, dataset)
    usual: dict[str, Any] = {"chunk": given.chunk}
    chosen = [name.strip() for name in given.only.split(",") if name.strip()] or list(TRIED)
    variants = [usual, *(usual | {name: value} for name in chosen for value in TRIED[name])]

    def record(settings: dict[str, Any], seed: int) -> dict[str, Any]:
        point = RunPoint(METHODS["adaptive"], settings, given.ratio, seed)
        found = log.find(point)
        if found is None:
            progress_console.print(f"{settings}, seed {seed}", style="dim", highlight=False)
            found = run_point(recipe, dataset, point)
            log.add(point, found)
        return found

    rows: list[dict[str, Any]] = []
    lines = []
    for settings in variants:
        records = [record(settings, seed) for seed in range(given.seeds)]
        values = {
            split: statistics.fmean(quality(own, given.metric, split) for own in records)
            for split in records[0]["quality"]
        }
        total = statistics.fmean(own["bytes"]["total"] for own in records)
        rows.append({"settings": settings, "quality": values, "bytes": total})
        named = ", ".join(f"{name} {value:g}" for name, value in settings.items())
        ratio = records[0]["dense_bytes"] / total
        lines.append([named, *(f"{value:.5f}" for value in values.values()), f"{ratio:.1f}x"])
    print_table(f"Adaptive tables at {given.ratio:g}x", ["", *rows[0]["quality"], "is"], lines)
    about = {"recipe": recipe.name, "ratio": given.ratio, "seeds": given.seeds, "metric": given.metric}
    content = result("adaptive-sweep", about, {"rows": rows}, given.out)
    save_result(given.out / "sweep.json", content)
    print_json(content)


if __name__ == "__main__":
    main()
