"""A run's folder.

RUN/config.yaml         the recipe, complete with every default
RUN/metrics.jsonl       one line for each report of training or evaluation
RUN/plan.json           which tables lie where, if there is more than one rank
RUN/trace.jsonl         spans; those of rank R > 0 are in trace-rank-R.jsonl; see megalith.core.trace
RUN/trace.1.jsonl ...   the most recent spans of a long run
RUN/checkpoints/        see megalith.checkpoint.store
RUN/evaluation-S.json   the full evaluation on split S, with its calibration curve
RUN/summary.json        how the run ended
RUN/tensorboard/        the same metrics for TensorBoard
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from megalith.core.config import to_yaml
from megalith.core.errors import ConfigError, StorageError, storage_errors
from megalith.core.files import write_atomic
from megalith.core.trace import trace_parts
from megalith.sharding.plan import ShardingPlan
from megalith.train.config import Recipe
from megalith.train.recipe import load_recipe
from megalith.train.records import read_metrics

_RANK = re.compile(r"trace-rank-(\d+)\.")


class Run:
    """Names and reads the files of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.yaml"
        self.metrics = folder / "metrics.jsonl"
        self.plan = folder / "plan.json"
        self.trace = folder / "trace.jsonl"
        self.checkpoints = folder / "checkpoints"
        self.summary = folder / "summary.json"
        self.tensorboard = folder / "tensorboard"
        self.report = folder / "report.html"
        self._made_folder = False

    def trace_of(self, rank: int) -> Path:
        return self.folder / f"trace-rank-{rank}.jsonl" if rank else self.trace

    def traces(self) -> list[Path]:
        """The traces of all ranks that left one, by rank, each in the order in which it was written."""
        numbers = {found[1] for path in self.folder.glob("trace-rank-*") if (found := _RANK.match(path.name))}
        return [part for rank in (0, *sorted(map(int, numbers))) for part in trace_parts(self.trace_of(rank))]

    def evaluation(self, split: str) -> Path:
        return self.folder / f"evaluation-{split}.json"

    def create(self, recipe: Recipe) -> None:
        """Makes the folder of a new run; refuses one that holds a run already."""
        self.refuse_existing()
        with storage_errors(self.folder):
            self._made_folder = not self.folder.exists()
            self.folder.mkdir(parents=True, exist_ok=True)
        self.write_recipe(recipe)

    def discard(self) -> None:
        """Takes back what `create` made of a run that learnt nothing, so that it is not in the way of the
        next; a folder that was there before keeps whatever else it holds."""
        if self._made_folder:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for path in (self.config, self.plan, self.metrics, *self.traces()):
            path.unlink(missing_ok=True)

    def write_recipe(self, recipe: Recipe) -> None:
        write_atomic(self.config, to_yaml(recipe))

    def refuse_existing(self) -> None:
        if self.config.exists():
            raise StorageError(
                f"{self.folder} holds a run already; go on with `megalith train {self.folder}`, or pass "
                "--overwrite or another --out."
            )

    def write_plan(self, plan: ShardingPlan | None) -> None:
        """Says where the tables of this start lie; for one process an older plan would be wrong."""
        if plan is not None:
            plan.write(self.plan)
        else:
            self.plan.unlink(missing_ok=True)

    def recipe(self) -> Recipe:
        if not self.config.is_file():
            raise ConfigError(
                f"{self.folder} is not a run (config.yaml is missing); make one with `megalith train RECIPE "
                f"--out {self.folder}`."
            )
        return load_recipe(str(self.config))


def cut_back(path: Path, last_step: int) -> None:
    """Drops what was reported after `last_step`; a resumed run reports it again."""
    kept = [entry for entry in read_metrics(path) if entry["step"] <= last_step]
    write_atomic(path, "".join(json.dumps(entry) + "\n" for entry in kept))
