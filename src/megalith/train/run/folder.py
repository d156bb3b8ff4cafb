"""A run's folder.

RUN/config.yaml         the recipe, complete with every default
RUN/inputs/             schema and vocabulary of the data, a model of one's own; see megalith.train.run.inputs
RUN/file-index.json     where the rows of raw files begin, if it was trained on such
RUN/taken-files.jsonl   the files of data that grows, in the order in which they were taken
RUN/metrics.jsonl       one line for each report of training or evaluation
RUN/evicted.jsonl       ids of dynamic tables that lost their row, where the recipe asks for them
RUN/imports.jsonl       files of ids that were brought into dynamic tables
RUN/prediction.json     what tiers of tables were predicted to do, if the recipe has `memory`
RUN/plan.json           the sharding plan, if there is more than one rank
RUN/trace.jsonl         spans; those of rank R > 0 are in trace-rank-R.jsonl; see megalith.core.trace
RUN/trace.1.jsonl ...   the most recent spans of a long run
RUN/checkpoints/        see megalith.checkpoint.store
RUN/rows/               rows of tiered tables while a process uses them; checkpoints hold what is kept
RUN/evaluation-S.json   the full evaluation on split S, with its calibration curve
RUN/published.jsonl     one line for each version that was published, or could not be
RUN/publishing/         which stream the run publishes to, and files on their way there
RUN/summary.json        how the run ended
RUN/tensorboard/        the same metrics for TensorBoard
"""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megalith.checkpoint.store import CheckpointStore
from megalith.comm.ranks import Ranks
from megalith.core.config import to_yaml
from megalith.core.errors import ConfigError, storage_errors
from megalith.core.files import read_jsonl, write_atomic
from megalith.core.lock import FolderLock
from megalith.core.trace import trace_parts
from megalith.data.dataset import Dataset
from megalith.data.growing.files import is_marked
from megalith.data.ingest import RawDataset
from megalith.embeddings.stores.settings import TieredMemory
from megalith.models.custom import CustomConfig
from megalith.sharding.plan import ShardingPlan
from megalith.train.loaders import open_dataset
from megalith.train.recipe import Recipe, load_recipe
from megalith.train.run.existing import refuse_existing
from megalith.train.run.inputs import RunInputs
from megalith.train.run.records import read_metrics

END_OF_DATA = "the end of the data"
"""What stopped a run on data that has grown and will grow no more."""
_RANK = re.compile(r"trace-rank-(\d+)\.")


class RunFolder:
    """The files of one run, by name; the trainer writes them, reports and evaluations read them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.yaml"
        self.inputs = RunInputs(folder / "inputs")
        self.taken_files = folder / "taken-files.jsonl"
        self.file_index = folder / "file-index.json"
        self.metrics = folder / "metrics.jsonl"
        self.evicted = folder / "evicted.jsonl"
        self.imports = folder / "imports.jsonl"
        self.published = folder / "published.jsonl"
        self.publishing = folder / "publishing"
        self.plan = folder / "plan.json"
        self.prediction = folder / "prediction.json"
        self.trace = folder / "trace.jsonl"
        self.checkpoints = folder / "checkpoints"
        self.summary = folder / "summary.json"
        self.tensorboard = folder / "tensorboard"
        self.report = folder / "report.html"
        self._lock = FolderLock(folder, "is being trained")

    def trace_of(self, rank: int) -> Path:
        """The file of a rank's spans."""
        return self.folder / f"trace-rank-{rank}.jsonl" if rank else self.trace

    def rows(self, memory: TieredMemory | None) -> Path:
        """The folder for rows of tiered tables: in the run's, or one of its own on the disk of the recipe."""
        if memory is None or memory.path is None:
            return self.folder / "rows"
        # Runs may share a disk, and have the same name.
        place = self.folder.resolve()
        return memory.path / f"{place.name}-{zlib.crc32(str(place).encode()):08x}"

    def traced_ranks(self) -> list[int]:
        """The ranks that left a trace."""
        names = (_RANK.match(path.name) for path in self.folder.glob("trace-rank-*"))
        numbers = {int(match[1]) for match in names if match}
        return [rank for rank in (0, *sorted(numbers)) if trace_parts(self.trace_of(rank))]

    def traces(self) -> list[Path]:
        """The traces of all ranks that left one, by rank, each in the order in which it was written."""
        return [part for rank in self.traced_ranks() for part in trace_parts(self.trace_of(rank))]

    def evaluation(self, split: str) -> Path:
        """The file of the full evaluation on a split."""
        return self.folder / f"evaluation-{split}.json"

    @contextmanager
    def locked(self, ranks: Ranks) -> Iterator[None]:
        """Nobody else trains this run meanwhile; one who does is named. All ranks call it, the first holds
        the lock."""
        ranks.from_first(self._lock.acquire)
        try:
            yield
        finally:
            if ranks.is_first:
                self._lock.release()

    def finished(self) -> dict[str, Any] | None:
        """The summary of a run that came to its end and has its last checkpoint still; else None. One on data
        that grows is not at its end once the marker of that is gone."""
        try:
            summary = json.loads(self.summary.read_text(encoding="utf-8"))
            ended = summary["finished"] is True and isinstance(summary["step"], int)
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return None
        if ended and summary.get("stopped_by") == END_OF_DATA:
            data = self.recipe().data
            ended = data.growing is not None and is_marked(data.path, data.growing)
        return summary if ended and CheckpointStore(self.checkpoints).latest() == summary["step"] else None

    def create(self, recipe: Recipe, dataset: Dataset, overwrite: bool = False) -> None:
        """Makes the folder of a new run; refuses one that holds a run already, or discards it."""
        if overwrite and self.config.exists():
            self.discard()
        refuse_existing(self.folder)
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self.write_inputs(recipe, dataset)
        self.write_recipe(recipe)

    def write_inputs(self, recipe: Recipe, dataset: Dataset) -> None:
        """Keeps what the trained model needs of its data, and its own code, so that neither need stay."""
        self.inputs.write(dataset, recipe.model.file if isinstance(recipe.model, CustomConfig) else None)
        self.write_file_index(dataset)

    def write_file_index(self, dataset: Dataset) -> None:
        """Keeps where the rows of raw files begin, which takes a look at all of them."""
        if isinstance(dataset, RawDataset):
            dataset.index_file.write(self.file_index)

    def trained_on(self) -> Dataset:
        """The data set of the run without its rows: as the run keeps it, else where it was."""
        return self.inputs.dataset() if self.inputs.exists() else open_dataset(self.recipe().data)

    def discard(self, with_folder: bool = False) -> None:
        """Removes the files of the run; `with_folder` also the folder, if nothing else is in it."""
        own = (
            self.config,
            self.inputs.folder,
            self.file_index,
            self.taken_files,
            self.metrics,
            self.evicted,
            self.imports,
            self.published,
            self.publishing,
            self.plan,
            self.prediction,
            self.checkpoints,
            self.folder / "rows",
            self.summary,
            self.tensorboard,
            self.report,
        )
        evaluations = self.folder.glob("evaluation-*.json")
        with storage_errors(self.folder):
            for path in (*own, *self.folder.glob("trace*.jsonl"), *evaluations):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        if with_folder and not any(path != self._lock.path for path in self.folder.iterdir()):
            shutil.rmtree(self.folder)

    def write_recipe(self, recipe: Recipe) -> None:
        """Writes config.yaml, whole or not at all; code that the run keeps is named as it lies there."""
        model = recipe.model
        if isinstance(model, CustomConfig) and (kept := self.inputs.model_file(model.file.name)).is_file():
            own = model.model_copy(update={"file": kept.relative_to(self.folder)})
            recipe = recipe.model_copy(update={"model": own})
        write_atomic(self.config, to_yaml(recipe))

    def write_plan(self, plan: ShardingPlan | None) -> None:
        """Writes the plan of this start; with one process there is none, and an older one is removed."""
        if plan is not None:
            plan.write(self.plan)
        else:
            self.plan.unlink(missing_ok=True)

    def recipe(self) -> Recipe:
        """What the run was started with."""
        if not self.config.is_file():
            raise ConfigError(
                f"{self.folder} is not a run (config.yaml is missing); make one with `megalith train RECIPE "
                f"--out {self.folder}`."
            )
        return load_recipe(str(self.config))


def drop_entries_after(path: Path, last_step: int) -> None:
    """Drops what was reported after `last_step`; a resumed run reports it again."""
    kept = [entry for entry in read_metrics(path) if entry["step"] <= last_step]
    content = "".join(json.dumps(entry) + "\n" for entry in kept)
    if not path.exists() or path.read_text(encoding="utf-8") != content:
        write_atomic(path, content)


def drop_lines_after(path: Path, last_step: int) -> None:
    """Drops the lines of steps after `last_step`, and half a line; of no effect where there is no file."""
    if path.exists():
        kept = "".join(json.dumps(line) + "\n" for line in read_jsonl(path) if line["step"] <= last_step)
        write_atomic(path, kept)
