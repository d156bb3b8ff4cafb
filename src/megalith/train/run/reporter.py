"""Writes a run's metrics to metrics.jsonl, to TensorBoard and to the progress bar."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from megalith.core.files import append
from megalith.core.units import format_bytes, format_count
from megalith.train.run.folder import RunFolder

if TYPE_CHECKING:
    from megalith.train.run.tensorboard import EventFile

# What a run's result must not depend on: everything else in metrics.jsonl is the same from run to run.
CLOCK_KEYS = (
    *("seconds", "samples_per_second", "wait_seconds", "wait_share"),
    *("tiers", "adaptive", "dynamic", "ranks"),
)

SHOWN_WAIT = 0.05
"""Progress names waiting for data from this share of the time on."""


class Reporter:
    """Writes each entry to all of them; use as a context. Ranks other than the first have a silent one."""

    def __init__(
        self,
        run: RunFolder,
        total_steps: int,
        tensorboard: bool,
        console: Console | None,
        silent: bool = False,
    ) -> None:
        self._run, self._total_steps, self._silent = run, total_steps, silent
        self._use_tensorboard, self._console = tensorboard, console
        self._events: EventFile | None = None
        self._progress: Progress | None = None
        self.on_entry: Callable[[dict[str, Any]], None] = _nobody
        """Is told every entry after it was written."""

    def __enter__(self) -> Reporter:
        if self._silent:
            return self
        append(self._run.metrics, b"")
        if self._use_tensorboard:
            from megalith.train.run.tensorboard import EventFile

            self._events = EventFile(self._run.tensorboard)
        if self._console is not None:
            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("steps, {task.fields[rate]} samples/s, left", markup=False),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[shown]}", markup=False),
                console=self._console,
                transient=True,
                disable=not self._console.is_terminal,
            )
            self._progress.start()
            self._progress.add_task("training", total=self._total_steps, rate="?", shown="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, step: int) -> None:
        """Moves the progress bar on to `step`."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=step)

    def write(self, entry: dict[str, Any]) -> None:
        """One entry: `kind` is train, eval or anomaly, numbers may be nested one level deep."""
        if self._silent:
            return
        append(self._run.metrics, json.dumps(entry).encode() + b"\n")
        self.on_entry(entry)
        if self._events is not None:
            numbers = ((f"{entry['kind']}/{name}", value) for name, value in _numbers(entry))
            self._events.add_scalars(numbers, entry["step"])
        if self._console is not None and self._progress is not None:
            self._show(entry)

    def tell(self, sentence: str) -> None:
        """A line for the console."""
        if self._console is not None and not self._silent:
            self._console.print(Text(sentence), highlight=False, soft_wrap=True)

    def _show(self, entry: dict[str, Any]) -> None:
        assert self._console is not None
        assert self._progress is not None
        if entry["kind"] == "train":
            task = self._progress.task_ids[0]
            window = entry["window"]
            rate = format_count(entry["samples_per_second"])
            shown = f"loss {entry['loss']:.4f}, NE {_shown(window['ne'])}"
            if entry["wait_share"] >= SHOWN_WAIT:
                shown += f", {entry['wait_share']:.0%} of the time waiting for data"
            if "tiers" in entry:
                tiers = entry["tiers"]
                hits, reads = tiers["hit_rate"] or 0.0, tiers["reads_per_sample"] or 0.0
                shown += f", {hits:.1%} hits, {reads:.2f} reads a sample"
            if "adaptive" in entry:
                taken, dense = entry["adaptive"]["total_bytes"], entry["adaptive"]["dense_bytes"]
                shown += f", {format_bytes(taken)} of chunks ({dense / taken:.1f}x smaller)"
            self._progress.update(task, rate=rate, shown=shown)
        elif entry["kind"] == "anomaly":
            line = Text(f"step {entry['step']:>7,}  {entry['anomaly']}: {entry['message']}", "yellow")
            self._console.print(line, highlight=False, soft_wrap=True)
        else:
            numbers = ", ".join(f"{name} {_shown(entry[key])}" for name, key in _EVAL_COLUMNS)
            line = Text(f"step {entry['step']:>7,}  {entry['split']}: {numbers}")
            self._console.print(line, highlight=False, soft_wrap=True)


_EVAL_COLUMNS = (("NE", "ne"), ("log loss", "log_loss"), ("AUC", "auc"), ("calibration", "calibration"))


def _nobody(entry: dict[str, Any]) -> None:
    """Hears of entries where nobody does."""


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _numbers(entry: dict[str, Any]) -> list[tuple[str, float]]:
    numbers = []
    for key, value in entry.items():
        if isinstance(value, dict):
            nested = value.items()
            numbers += [(f"{key}/{name}", item) for name, item in nested if isinstance(item, (int, float))]
        elif isinstance(value, (int, float)) and key != "step":
            numbers.append((key, value))
    return numbers
