"""How soon does the loss recover when the popular ids change? Adaptive tables beside dense ones.

    python benchmarks/drift.py --workdir /tmp/drift --out benchmarks/results/drift.json
    python benchmarks/drift.py --workdir /tmp/drift --out benchmarks/results/drift.json --runs 1

A Criteo-like stream; in the middle of a run every id of a table with more than 10 rows becomes the one half a
table further on, so that popular ids are new to the model. Every run has the same samples in the same order;
seeds differ in start values. Controls see the stream without the change. The excess of a step is the loss
with the change less the mean loss of the controls, over all seeds; recovered is the first step from which on
the mean of `--window` steps makes nine tenths of the first step's excess up. The learning rate is constant.

Results are kept as they come: the same command goes on where it stopped, after `--runs` runs or a kill.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from megalith.bench.adaptive.methods import METHODS
from megalith.bench.adaptive.runs import RunPoint, build_learner, bytes_of
from megalith.bench.runner import result, save_result
from megalith.cli.output import print_table, progress_console
from megalith.comm.ranks import Ranks
from megalith.core.files import read_json_object
from megalith.core.schema import TableSpec
from megalith.data.batch import Batch
from megalith.data.dataset import Dataset
from megalith.data.synth.generate import generate
from megalith.data.synth.options import SynthOptions
from megalith.train.loaders import train_loader
from megalith.train.loop import LoopSteps
from megalith.train.pipeline import Pipeline
from megalith.train.recipe import load_recipe

WHOLE_ROWS = 10
"""Tables of at most so many rows keep their ids: adaptive ones would be exempt."""
MADE_UP, BEFORE = 0.9, 100


class Run(NamedTuple):
    """What is trained."""

    method: str
    seed: int
    changes: bool
    """Whether other ids are popular from the middle on."""


class ChangingStream:
    """The batches of a loader; from a step on ids are others."""

    def __init__(self, loader: Any, tables: Sequence[TableSpec], change: int) -> None:
        self._loader, self._change = loader, change
        self._rows = torch.tensor([table.rows for table in tables for _ in table.features])

    def stream(self) -> Iterator[Batch]:
        """Batches in their order."""
        for step, batch in enumerate(self._loader.stream()):
            yield batch if step < self._change else self._changed(batch)

    def _changed(self, batch: Batch) -> Batch:
        edges = batch.offsets[:: batch.batch_size]
        rows = self._rows.repeat_interleave(edges.diff())
        moved = (batch.values + rows // 2) % rows
        return replace(batch, values=torch.where(rows > WHOLE_ROWS, moved, batch.values))

    def state_dict(self) -> dict[str, Any]:
        """The loader's."""
        state: dict[str, Any] = self._loader.state_dict()
        return state

    def close(self) -> None:
        """Ends the loader's threads."""
        self._loader.close()


def losses_of(options: argparse.Namespace, folder: Path, run: Run) -> dict[str, Any]:
    """The loss of each step from a little before the change on, and what the tables take at the end."""
    overrides = [
        *(f"data.path={folder}", f"data.batch_size={options.batch}", f"train.seed={run.seed}"),
        *(f"embeddings.optimizer.lr={options.lr}", "schedule={kind: constant, warmup_steps: 100}"),
    ]
    recipe, dataset = load_recipe("criteo-dlrm", overrides), Dataset(folder)
    # The order of samples is that of one seed.
    loader = train_loader(recipe.data, dataset, Ranks(), 0)
    steps = LoopSteps(recipe.train, len(loader)).total
    settings = {"chunk": options.chunk} if run.method == "adaptive" else {}
    ratio = options.ratio if run.method == "adaptive" else 1.0
    point = RunPoint(METHODS[run.method], settings, ratio, run.seed)
    learner, problem = build_learner(recipe, dataset, point, steps)
    tables = recipe.model.tables(dataset.schema.categorical)
    stream = ChangingStream(loader, tables, steps // 2 if run.changes else steps)
    pipeline = Pipeline(stream, learner.stages(trains=True), count=steps, depth=0)
    losses = []
    for step, prepared in enumerate(pipeline):
        factor = min(1.0, (step + 1) / recipe.schedule.warmup_steps)
        losses.append(learner.step(prepared.batch, factor, prepared.resolved)[0].item())
    pipeline.close()
    kept = [round(loss, 5) for loss in losses[steps // 2 - BEFORE :]]
    return {**run._asdict(), "losses": kept, "bytes": bytes_of(learner, problem)["total"]}


def summarise(runs: Sequence[dict[str, Any]], window: int) -> dict[str, Any]:
    """By method: the jump of the loss, steps until it is made up, and what is left of it at times."""
    found = {}
    for method in dict.fromkeys(run["method"] for run in runs):
        own = [run for run in runs if run["method"] == method]
        changed = [run["losses"] for run in own if run["changes"]]
        controls = [run["losses"] for run in own if not run["changes"]]
        if not changed or not controls:
            continue
        usual = [statistics.fmean(step) for step in zip(*controls, strict=True)]
        excesses = [[a - b for a, b in zip(one, usual, strict=True)][BEFORE:] for one in changed]
        mean = [statistics.fmean(step) for step in zip(*excesses, strict=True)]
        found[method] = {
            "jump": mean[0],
            "recovered_after_steps": recovery(mean, window),
            "by_seed": [recovery(one, window) for one in excesses],
            "left_after_steps": {
                step: statistics.fmean(mean[step : step + window]) / mean[0] for step in (5, 10, 20, 40, 80)
            },
            "left_of_second_half": statistics.fmean(mean) / mean[0],
            "loss_before": statistics.fmean(step for one in changed for step in one[:BEFORE]),
            "loss_at_end": statistics.fmean(step for one in changed for step in one[-BEFORE:]),
            "bytes": statistics.fmean(run["bytes"] for run in own),
        }
    return found


def recovery(excess: Sequence[float], window: int) -> int | None:
    """The first step with which `window` steps begin whose mean has nine tenths of the first made up."""
    for step in range(len(excess) - window):
        if statistics.fmean(excess[step : step + window]) <= (1 - MADE_UP) * excess[0]:
            return step
    return None


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What all runs of one file share."""
    names = ("rows", "scale", "batch", "lr", "ratio", "chunk", "data_seed")
    return {name: getattr(options, name) for name in names}


def show(found: dict[str, Any]) -> None:
    """A line for each method."""
    lines = []
    for method, own in found.items():
        left = (f"{share:.0%}" for share in own["left_after_steps"].values())
        steps = own["recovered_after_steps"]
        lines.append([method, f"{own['jump']:.4f}", "never" if steps is None else str(steps), *left])
    print_table(
        "Loss after the popular ids changed",
        ["", "jump", "steps to make 90% up", *(f"left at {step}" for step in (5, 10, 20, 40, 80))],
        lines,
    )


def main() -> None:
    """Trains what is missing and prints recovery in steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, required=True, help="for the generated data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--scale", type=float, default=0.02, help="share of the real number of ids")
    parser.add_argument("--seeds", type=int, default=3, help="runs whose ids change, of each method")
    parser.add_argument("--controls", type=int, default=2, help="runs whose ids stay, of each method")
    parser.add_argument("--ratio", type=float, default=16.0)
    parser.add_argument("--chunk", type=int, default=4)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.12, help="learning rate of the tables")
    parser.add_argument("--window", type=int, default=10, help="steps over which the excess is averaged")
    parser.add_argument("--data-seed", type=int, default=0)
    parser.add_argument("--runs", type=int, help="most runs of this call")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    known: list[dict[str, Any]] = []
    if options.out.exists():
        content = read_json_object(options.out, fix="delete it")
        if content["settings"] != settings_of(options):
            sys.exit(f"{options.out} has runs of other settings; give --out another file.")
        known = content["results"]["runs"]
    folder = options.workdir / f"drift-{options.rows}-{options.scale:g}-{options.data_seed}"
    if not folder.exists():
        # Ids do not drift but for the one change.
        generate(
            SynthOptions("criteo", options.rows, seed=options.data_seed, drift=0.0, scale=options.scale),
            folder,
        )
    wanted = [
        Run(method, seed, changes)
        for changes, count in ((True, options.seeds), (False, options.controls))
        for seed in range(count)
        for method in ("none", "adaptive")
    ]
    done = {Run(run["method"], run["seed"], run["changes"]) for run in known}
    for run in [run for run in wanted if run not in done][: options.runs]:
        progress_console.print(str(run), style="dim", highlight=False)
        known.append(losses_of(options, folder, run))
        results = {"recovery": summarise(known, options.window), "runs": known}
        save_result(options.out, result("drift", settings_of(options), results, options.workdir))
    show(summarise(known, options.window))


if __name__ == "__main__":
    main()
