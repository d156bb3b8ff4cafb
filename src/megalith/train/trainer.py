"""The loop: read a batch, take a step, report, evaluate, save; from the first step or from any saved one.

Everything a later step depends on is in `state_dict`, so a run that is killed and resumed goes on bit by bit
as if it had never stopped. Under torchrun every rank runs the loop: each step is that of one process with the
whole batch, the first rank reports and writes, and all stop at the same step.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from torch import Tensor

from megalith.checkpoint.store import CheckpointStore
from megalith.comm.ranks import Ranks
from megalith.core.errors import CheckpointError, MegalithError
from megalith.core.files import write_atomic
from megalith.core.trace import Tracer
from megalith.data.batch import Batch
from megalith.data.dataset import Dataset
from megalith.data.loader import Loader
from megalith.hardware.machine import this_machine
from megalith.metrics import RunMetrics, WindowMetrics
from megalith.train.config import Recipe
from megalith.train.evaluation.evaluate import choose_split, evaluate
from megalith.train.evaluation.gather_scores import agree_on_signal, scored_by_all
from megalith.train.learner.learner import Learner
from megalith.train.pipeline import Pipeline
from megalith.train.run.folder import Run, cut_back
from megalith.train.run.records import read_evaluation, read_summary
from megalith.train.run.reporter import Reporter
from megalith.train.schedule import lr_factor
from megalith.train.sharding_plan import place_again, place_tables
from megalith.train.stopping import BestSoFar, StopSignal


@dataclass
class _Interval:
    """What has been added up since the last report."""

    loss: float = 0.0
    steps: int = 0


class Trainer:
    """Trains one recipe into one run folder; with a process group, together with its other ranks."""

    def __init__(self, recipe: Recipe, run: Run, console: Console | None = None) -> None:
        self.recipe, self.run, self.console = recipe, run, console
        self.ranks = Ranks.all()
        self.dataset = Dataset(recipe.data.path)
        data = recipe.data
        self.loader = Loader(
            self.dataset,
            data.train,
            data.batch_size,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
            share="slices",
            shuffle=data.shuffle,
            seed=recipe.train.seed,
            prefetch=data.prefetch,
            threads=data.threads,
            shuffle_window_rows=data.shuffle_window_rows,
        )
        self.eval_split = choose_split(data, self.dataset)
        self.plan = place_tables(recipe, self.dataset, self.ranks)
        copied = recipe.train.background_checkpoints
        self.learner = Learner(recipe, self.dataset.schema, self.plan, second_copy=copied)
        apart = self.ranks.with_own_group()
        self.store = CheckpointStore(run.checkpoints, recipe.train.keep_checkpoints, apart)
        self._overlap = self.plan is not None and recipe.sharding.pipeline
        self._pipeline: Pipeline | None = None
        self.steps_an_epoch = len(self.loader)
        self.total_steps = recipe.train.steps or (recipe.train.epochs or 1) * self.steps_an_epoch
        self.step = 0
        self.best = BestSoFar(recipe.train.early_stopping)
        self.window = WindowMetrics(recipe.train.window_samples)
        self.overall = RunMetrics()
        self._interval = _Interval()

    def resume(self, from_step: int | None = None) -> int:
        """Goes back to the newest checkpoint, or to the start if there is none; returns its step.

        `from_step` goes back to an older one and drops what came after it.
        """
        with self.run.locked(self.ranks):
            step = self.ranks.from_first(lambda: self._step_to_resume(from_step))
            if step is not None:
                state = self.state_dict()
                self.store.load(step, state)
                self.load_state_dict(state)
            self.ranks.from_first(lambda: self._drop_later(from_step is not None))
        return self.step

    def _step_to_resume(self, from_step: int | None) -> int | None:
        if from_step is None:
            return self.store.latest()
        return step_to_open(self.run, self.store, from_step)

    def _drop_later(self, went_back: bool) -> None:
        """Drops what was reported after this step and, if an older one was asked for, later checkpoints."""
        cut_back(self.run.metrics, self.step)
        if went_back:
            self.store.drop_after(self.step)
            self.run.summary.unlink(missing_ok=True)

    def fit(self) -> dict[str, Any]:
        """Trains to the end, to an early stop or to a signal; returns the summary, also in summary.json.

        Of a run that has come to its end already nothing is written.
        """
        with self.run.locked(self.ranks):
            done = self.ranks.from_first(self.run.finished)
            return done if done is not None and done["step"] == self.step else self._fit()

    def _fit(self) -> dict[str, Any]:
        config, ranks = self.recipe.train, self.ranks
        began = time.perf_counter()
        first_step = self.step
        ranks.from_first(lambda: self.run.write_plan(self.plan))
        # From here the clocks of all ranks' traces run.
        ranks.from_each(lambda: None)
        trace = self.run.trace_of(ranks.rank) if config.trace else None
        tracer = Tracer(trace, ranks.rank if ranks.world_size > 1 else None, config.trace_bytes)
        reporter = Reporter(
            self.run, self.total_steps, config.tensorboard, self.console, silent=not ranks.is_first
        )
        with tracer, StopSignal() as signal, reporter:
            stopped = self._train(signal, reporter, tracer)
            if not stopped:
                self.store.wait()
                if ranks.from_first(self.store.latest) != self.step:
                    with tracer.span("checkpoint"):
                        self.save()
                with tracer.span("evaluate"):
                    self._final_evaluation(reporter)
            self.store.close()
        return ranks.from_first(lambda: self._finish(stopped, first_step, time.perf_counter() - began))

    def _train(self, signal: StopSignal, reporter: Reporter, tracer: Tracer) -> str | None:
        """Steps until the end or a signal, whose name it returns."""
        config = self.recipe.train
        clock = time.perf_counter()
        left = max(self.total_steps - self.step, 0)
        pipeline = Pipeline(
            self.loader, self.learner.stages, count=left, overlap=self._overlap, tracer=tracer
        )
        self._pipeline = pipeline
        stopped: str | None = None
        try:
            while self.step < self.total_steps and not self.best.exhausted and not stopped:
                with tracer.span("read"):
                    prepared = next(pipeline)
                with tracer.span("step", step=self.step):
                    factor = lr_factor(self.recipe.schedule, self.step, self.total_steps)
                    loss, logits = self.learner.step(prepared.batch, factor, prepared.received)
                with tracer.span("metrics"):
                    self._account(prepared.batch, loss, logits)
                self.step += 1
                reporter.advance(self.step)
                if self.step % config.log_every == 0 or self.step == self.total_steps:
                    now = time.perf_counter()
                    if self.ranks.is_first:
                        reporter.write(self._train_entry(factor, now - clock))
                    clock = now
                    tracer.flush()
                if self._evaluation_due():
                    with tracer.span("evaluate"):
                        self._evaluate(reporter)
                stopped = agree_on_signal(self.ranks, signal.requested)
                if self.step % config.checkpoint_every == 0 or stopped:
                    with tracer.span("checkpoint"):
                        self.save(background=config.background_checkpoints and not stopped)
        except BaseException:
            pipeline.abandon()
            raise
        pipeline.close()
        self._pipeline = None
        # What was read ahead has not been computed.
        self.loader.load_state_dict(pipeline.position)
        return stopped

    def save(self, background: bool = False) -> None:
        """Writes the checkpoint of the current step."""
        about = {"samples": self.step * self.recipe.data.batch_size, "best": self.best.state_dict()}
        self.store.save(self.step, self.state_dict(), about, self.best.step, background)

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "learner": self.learner.state_dict(),
            "loader": json.dumps(self._position()),
            "window": self.window.state_dict(),
            "overall": self.overall.state_dict(),
            "best": self.best.state_dict(),
            "interval": {"loss": self._interval.loss, "steps": self._interval.steps},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.learner.load_state_dict(state["learner"])
        self.loader.load_state_dict(json.loads(state["loader"]))
        self.window.load_state_dict(state["window"])
        self.overall.load_state_dict(state["overall"])
        self.best.load_state_dict(state["best"])
        self._interval = _Interval(**state["interval"])

    def _position(self) -> dict[str, Any]:
        """The loader's state after the last batch that was computed, whatever has been read ahead."""
        return self.loader.state_dict() if self._pipeline is None else self._pipeline.position

    def _account(self, batch: Batch, loss: Tensor, logits: Tensor) -> None:
        """Takes a step into the metrics: those of the whole batch, on the first rank."""
        scored = scored_by_all(self.ranks, batch, loss, logits, self.recipe.data.batch_size)
        if scored is None:
            return
        self.window.update(scored.logits, scored.labels, scored.weights)
        self.overall.update(scored.logits, scored.labels, scored.weights)
        self._interval.loss += float(scored.loss)
        self._interval.steps += 1

    def _train_entry(self, factor: float, seconds: float) -> dict[str, Any]:
        interval, self._interval = self._interval, _Interval()
        samples = interval.steps * self.recipe.data.batch_size
        return {
            "kind": "train",
            "step": self.step,
            "epoch": round(self.step / self.steps_an_epoch, 4),
            "samples": self.step * self.recipe.data.batch_size,
            "loss": interval.loss / interval.steps,
            "lr_factor": factor,
            "window": self.window.compute(),
            "overall": self.overall.compute(),
            "seconds": round(seconds, 4),
            "samples_per_second": round(samples / seconds, 1) if seconds else 0.0,
            "wait_seconds": round(self.loader.wait_seconds, 4),
        }

    def _evaluation_due(self) -> bool:
        if self.eval_split is None or self.step == self.total_steps:
            # The end has an evaluation of its own, over the whole split.
            return False
        return self.step % (self.recipe.train.eval_every or self.steps_an_epoch) == 0

    def _evaluate(self, reporter: Reporter) -> None:
        assert self.eval_split is not None
        limit = self.recipe.train.eval_batches
        result = self._scores(limit)
        reporter.write({"kind": "eval", "step": self.step, **without_curve(result)})
        if self.best.update(self.step, result) and self.recipe.train.early_stopping is not None:
            self.save()

    def _final_evaluation(self, reporter: Reporter) -> None:
        """Evaluates all of the split: the last weights, or the best ones if stopping early was asked for."""
        if self.eval_split is None:
            return
        result = self._scores()
        step = self.step
        reporter.write({"kind": "eval", "step": step, **without_curve(result)})
        better = self.best.update(step, result)
        if self.recipe.train.early_stopping is not None and not better and self.best.step is not None:
            step = self.best.step
            load_learner(self.store, step, self.learner)
            result = self._scores()
        content = json.dumps({"step": step, **result}, indent=1) + "\n"
        path = self.run.evaluation(self.eval_split)
        self.ranks.from_first(lambda: write_atomic(path, content))

    def _scores(self, max_batches: int | None = None) -> dict[str, Any]:
        """Metrics on the evaluation split, the same on every rank."""
        assert self.eval_split is not None
        if self._pipeline is not None:
            # Evaluation exchanges ids too: none of a training batch may be under way.
            self._pipeline.settle()
        where = self.dataset, self.eval_split, self.recipe.data
        return evaluate(self.learner, *where, max_batches, overlap=self._overlap)

    def _finish(self, stopped: str | None, first_step: int, seconds: float) -> dict[str, Any]:
        summary = self._summary(stopped, first_step, seconds)
        write_atomic(self.run.summary, json.dumps(summary, indent=1) + "\n")
        return summary

    def _summary(self, stopped: str | None, first_step: int, seconds: float) -> dict[str, Any]:
        trained = (self.step - first_step) * self.recipe.data.batch_size
        summary = {
            "run": str(self.run.folder),
            "finished": stopped is None,
            "stopped_by": stopped or ("early stopping" if self.step < self.total_steps else None),
            "step": self.step,
            "total_steps": self.total_steps,
            "samples": self.step * self.recipe.data.batch_size,
            "seconds": round(seconds, 3),
            "samples_per_second": round(trained / seconds, 1) if seconds else 0.0,
            "best_step": self.best.step,
            "ranks": self.ranks.world_size,
            "tables": len(self.learner.tables),
            "table_bytes": self.learner.table_bytes,
            "dense_parameters": self.learner.num_dense_parameters,
            "machine": this_machine(self.run.folder).to_dict(),
        }
        if stopped is None and self.eval_split is not None:
            summary["evaluation"] = without_curve(read_evaluation(self.run.evaluation(self.eval_split)))
        return summary


def load_learner(store: CheckpointStore, step: int, learner: Learner) -> None:
    """Puts the weights of a checkpoint into a learner, leaving the rest of the run's state alone."""
    state = {"learner": learner.state_dict()}
    store.load(step, state)
    learner.load_state_dict(state["learner"])


def open_learner(run: Run, dataset: Dataset, step: int | None = None) -> tuple[Learner, int]:
    """The model of a finished or stopped run: its best step where it stopped early, else its newest.

    With a process group its tables are cut over all ranks, which call this together.
    """
    recipe, ranks = run.recipe(), Ranks.all()
    store = CheckpointStore(run.checkpoints, ranks=ranks.with_own_group())
    # The first rank looks: a run that still trains may save meanwhile.
    found = ranks.from_first(
        lambda: _preferred_step(run, recipe, store) if step is None else step_to_open(run, store, step)
    )
    learner = Learner(recipe, dataset.schema, place_again(recipe, dataset, ranks, run.plan))
    load_learner(store, found, learner)
    return learner, found


def step_to_open(run: Run, store: CheckpointStore, step: int) -> int:
    """The step asked for, if there is a checkpoint of it."""
    if step not in store.steps():
        have = ", ".join(str(one) for one in store.steps()) or "none"
        raise CheckpointError(f"{run.folder} has no checkpoint of step {step}; it has: {have}.")
    return step


def without_curve(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "calibration_curve"}


def _preferred_step(run: Run, recipe: Recipe, store: CheckpointStore) -> int:
    if recipe.train.early_stopping is not None and run.summary.exists():
        best = read_summary(run.summary).get("best_step")
        if best in store.steps():
            return int(best)
    latest = store.latest()
    if latest is None:
        raise MegalithError(
            f"{run.folder} has no checkpoint yet; train it with `megalith train {run.folder}`."
        )
    return latest
