"""The loop: read a batch, take a step, report, evaluate, save; from the first step or from any saved one.

Everything a later step depends on is in `state_dict`, so a run that is killed and resumed continues bit for
bit as if it had never stopped. Under torchrun every rank runs the loop: each step is that of one process with
the whole batch, the first rank reports and writes, and all stop at the same step.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from megalith.checkpoint.state import OptionalValues
from megalith.checkpoint.store import CheckpointStore
from megalith.comm.ranks import Ranks
from megalith.core.trace import Tracer
from megalith.core.units import format_bytes
from megalith.data.ingest.tier import open_tier
from megalith.embeddings.stores.adaptive.settings import BudgetSchedule
from megalith.train.checkpoints import existing_step
from megalith.train.evaluation.gather_scores import gather_scores
from megalith.train.evaluation.run_evaluator import RunEvaluator
from megalith.train.evaluation.training_metrics import TrainingMetrics
from megalith.train.learner.learner import Learner
from megalith.train.loaders import check_event_times, choose_split, open_dataset, train_loader
from megalith.train.loop import LoopSteps
from megalith.train.monitor.monitor import RunMonitor
from megalith.train.pipeline import Pipeline
from megalith.train.prediction.tiers import PlannedRun, predict_tiers
from megalith.train.publishing.run_publisher import RunPublisher
from megalith.train.recipe import Recipe
from megalith.train.run.adaptive import AdaptiveMetrics
from megalith.train.run.dynamic_tables import DynamicMetrics, EvictedLog
from megalith.train.run.folder import RunFolder, drop_entries_after, drop_lines_after
from megalith.train.run.reporter import Reporter
from megalith.train.run.summary import RunEnding, write_summary
from megalith.train.run.tiers import TierMetrics
from megalith.train.run.waiting import DataWait, GrowthWait, WaitMeter
from megalith.train.schedule import lr_factor
from megalith.train.sharding_plan import plan_for_training
from megalith.train.stopping import StopSignal, agree_on_signal


class Trainer:
    """Trains one recipe into one run folder; with a process group, together with its other ranks.

    It owns the loader, the learner, the metrics and the checkpoints of the run.

        >>> import megalith as mg
        >>> recipe = mg.load_recipe("demo", ["data.path=data", "train.steps=20"])
        >>> trainer = mg.Trainer(recipe, "runs/first")
        >>> trainer.train()["finished"]
        True
    """

    def __init__(
        self,
        recipe: Recipe,
        run: RunFolder | Path | str,
        console: Console | None = None,
        resumes: bool = False,
    ) -> None:
        """Builds everything and writes nothing; `console` shows the progress.

        Of raw files a run that `resumes` has kept what it needs to know.
        """
        self.recipe, self.console = recipe, console
        self.run = run if isinstance(run, RunFolder) else RunFolder(Path(run))
        self.ranks = Ranks.all()
        kept = self.run.inputs.folder if resumes and self.run.inputs.exists() else None
        self.dataset = open_dataset(recipe.data, kept, self.run.file_index if resumes else None)
        self._tier = open_tier(recipe.ingest, self.ranks)
        self.loader = train_loader(
            recipe.data,
            self.dataset,
            self.ranks,
            recipe.train.seed,
            self._tier.readers,
            self.run.taken_files,
        )
        eval_split = choose_split(recipe.data, self.dataset)
        self.plan = plan_for_training(recipe, self.dataset, self.ranks)
        self._saves_ahead = recipe.train.background_checkpoints or recipe.checkpoint.differential
        copied = recipe.train.background_checkpoints and not recipe.checkpoint.differential
        self._steps = LoopSteps(recipe.train, len(self.loader))
        self.total_steps = self._steps.total
        config = recipe.learner_config(self.run.rows(recipe.memory), self.total_steps)
        self.learner = Learner(config, self.dataset.schema, self.plan, second_copy=copied)
        check_event_times(self.learner.tables, self.dataset)
        own_group = self.ranks.with_own_group()
        self.store = CheckpointStore(
            self.run.checkpoints, recipe.train.keep_checkpoints, own_group, config=recipe.checkpoint
        )
        self._depth = recipe.train.pipeline if self.learner.embeddings.prepares_ahead else 0
        self._growth = GrowthWait(self.loader)
        if self._growth.grows:
            # Who waits for files also publishes, and hears signals.
            self._depth = max(1, self._depth)
        self._pipeline: Pipeline | None = None
        self._evaluator = RunEvaluator(recipe, self.dataset, eval_split, self.learner, self._depth)
        self._tiers = TierMetrics(self.learner.embeddings, self.ranks, is_tiered=recipe.memory is not None)
        self._adaptive = AdaptiveMetrics(self.learner.embeddings, self.ranks)
        self._dynamic = DynamicMetrics(self.learner.embeddings, self.ranks)
        self._waits = WaitMeter(self.ranks)
        self._publisher = RunPublisher(recipe, self.run, self.dataset, self.learner, console)
        self._evicted: EvictedLog | None = None
        if recipe.embeddings.log_evicted:
            self._evicted = EvictedLog(self.run.evicted, self.ranks)
            self.learner.log_evicted(self._evicted.write)
        self.step = 0
        self.best = self._evaluator.best
        self.metrics = TrainingMetrics(recipe.train.window_samples)
        self._has_folder = False

    def create(self, overwrite: bool = False) -> None:
        """Makes the folder of a new run; refuses one that holds a run already, or discards it."""
        self.ranks.from_first(lambda: self.run.create(self.recipe, self.dataset, overwrite))
        self._has_folder = True

    def resume(self, from_step: int | None = None) -> int:
        """Goes back to the newest checkpoint, or to the start if there is none; returns its step.

        `from_step` goes back to an older one and drops what came after it.
        """
        with self.run.locked(self.ranks):
            # Runs of earlier releases have none.
            self.ranks.from_first(self._keep_inputs)
            step = self.ranks.from_first(lambda: self._step_to_resume(from_step))
            if step is not None:
                state = self.state_dict()
                self.store.load(step, state)
                self.load_state_dict(state)
                self.store.follow(step, self.state_dict())
            self.ranks.from_first(lambda: self._drop_later(from_step is not None))
        self._has_folder = True
        return self.step

    def _keep_inputs(self) -> None:
        if not self.run.inputs.exists():
            self.run.write_inputs(self.recipe, self.dataset)
        self.run.write_file_index(self.dataset)

    def _step_to_resume(self, from_step: int | None) -> int | None:
        return self.store.latest() if from_step is None else existing_step(self.run, self.store, from_step)

    def _drop_later(self, went_back: bool) -> None:
        """Drops what was reported after this step and, if an older one was asked for, later checkpoints."""
        drop_entries_after(self.run.metrics, self.step)
        drop_lines_after(self.run.evicted, self.step)
        drop_lines_after(self.run.imports, self.step)
        if went_back:
            self.store.drop_after(self.step)
            self.run.summary.unlink(missing_ok=True)

    def predict_tiers(self) -> str | None:
        """What hits, disk reads and step time are to be expected of tables beyond memory, in one sentence.

        None where every table is whole in memory. For a run that was created or resumed; takes some seconds.
        """
        depth, steps = self._depth, self.total_steps
        if self._growth.grows:
            # Nothing is known of what will come.
            return None
        return predict_tiers(
            PlannedRun(self.recipe, self.run, self.dataset, self.learner, self.ranks, steps, depth)
        )

    def adaptive_memory(self) -> str | None:
        """What adaptive tables may take at first and at the end, in one sentence; None where none is."""
        taken, policy = self.learner.adaptive_bytes, self.learner.config.adaptive
        if taken is None or policy is None:
            return None
        end = BudgetSchedule(policy, taken.dense).end
        return (
            f"Adaptive tables: at most {format_bytes(taken.peak)} while they begin (adaptive.begin_ratio), "
            f"{format_bytes(taken.budget)} from step {end:,} on; dense ones would take "
            f"{format_bytes(taken.dense)}."
        )

    def train(self) -> dict[str, Any]:
        """Trains to the end, to an early stop or to a signal; returns the summary, also in summary.json.

        A run that is neither created nor resumed is created. Of one that has ended already nothing is
        written.
        """
        with self.run.locked(self.ranks):
            if not self._has_folder:
                self.create()
            summary = self.ranks.from_first(self.run.finished)
            return summary if summary is not None and summary["step"] == self.step else self._train()

    def _train(self) -> dict[str, Any]:
        config, ranks = self.recipe.train, self.ranks
        self._tier.start()
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
        features = self.dataset.schema.feature_names
        monitor = RunMonitor(config, self.learner, ranks, reporter, tracer, self.total_steps, features)
        with tracer, StopSignal() as signal, reporter, monitor:
            stopped_by = self._take_steps(signal, reporter, tracer, monitor)
            if stopped_by is None:
                self.store.wait()
                if ranks.from_first(self.store.latest) != self.step or self._is_rounded:
                    with tracer.span("checkpoint"):
                        self.save(whole=self._is_rounded)
                with tracer.span("evaluate"):
                    self._evaluator.final(self.step, reporter, self.store, self.run)
            self.store.close()
        self._tier.close()
        ending = RunEnding(
            first_step,
            self.step,
            self.total_steps,
            stopped_by,
            self._growth.has_ended,
            self.best.step,
            time.perf_counter() - began,
            ranks.world_size,
            self._evaluator.split,
            self._waits.total,
        )
        return ranks.from_first(lambda: write_summary(self.run, ending, self.learner))

    def _take_steps(
        self, signal: StopSignal, reporter: Reporter, tracer: Tracer, monitor: RunMonitor
    ) -> str | None:
        """Steps until the end or a signal, whose name it returns."""
        clock, reported = time.perf_counter(), self.step
        left = max(self.total_steps - self.step, 0)
        memory = self.recipe.memory
        pipeline = Pipeline(
            self.loader,
            self.learner.stages(trains=True),
            count=left,
            depth=self._depth,
            window=0 if memory is None else memory.ahead,
            tracer=tracer,
        )
        self._pipeline = pipeline
        stopped_by: str | None = None

        def publish() -> None:
            self._publisher.after(self.step, tracer)

        try:
            self._publisher.begin(self.step, tracer)
            while self.step < self.total_steps and not self.best.exhausted and not stopped_by:
                if not self._growth.has_batch(pipeline, signal, publish):
                    stopped_by = signal.requested
                    if stopped_by:
                        with tracer.span("checkpoint"):
                            self.save()
                    break
                factor = self._take_step(pipeline, tracer, monitor)
                publish()
                reporter.advance(self.step)
                if self._steps.logs_after(self.step):
                    now = time.perf_counter()
                    stores = {
                        "tiers": self._tiers.take((self.step - reported) * self.recipe.data.batch_size),
                        "adaptive": self._adaptive.take(),
                        "dynamic": self._dynamic.take(),
                        "ranks": monitor.take(self.step),
                    }
                    reported = self.step
                    waited = self._waits.take()
                    if self.ranks.is_first:
                        entry = self._train_entry(factor, now - clock, waited)
                        reporter.write(entry | {name: own for name, own in stores.items() if own is not None})
                    clock = now
                    tracer.flush()
                if self._evaluator.split is not None and self._steps.evaluates_after(self.step):
                    if not self._growth.has_batch(pipeline, signal, publish):
                        continue
                    with tracer.span("evaluate"):
                        # Evaluation exchanges ids too: none of a training batch may be under way.
                        pipeline.settle()
                        if self._evaluator.evaluate(self.step, reporter):
                            self.save()
                    # What evaluation read is not of training.
                    self._tiers.take(0)
                stopped_by = agree_on_signal(self.ranks, signal.requested)
                if self._steps.saves_after(self.step) or stopped_by:
                    with tracer.span("checkpoint"):
                        self.save(self._saves_ahead and not stopped_by)
        except BaseException:
            self._growth.interrupt()
            pipeline.abandon()
            self._publisher.abandon()
            raise
        self._growth.interrupt()
        pipeline.close()
        self._pipeline = None
        self._publisher.finish(self.step, tracer)
        # What was read ahead has not been computed.
        self.loader.load_state_dict(pipeline.position)
        return stopped_by

    def _take_step(self, pipeline: Pipeline, tracer: Tracer, monitor: RunMonitor) -> float:
        """One batch and its metrics; returns the factor on the learning rates."""
        began, waited = time.perf_counter(), pipeline.wait_seconds
        with tracer.span("read"), monitor.waiting():
            prepared = next(pipeline)
        monitor.before(self.step, prepared, pipeline.wait_seconds - waited)
        with tracer.span("step", step=self.step):
            scheduled = lr_factor(self.recipe.schedule, self.step, self.total_steps)
            factor = scheduled * self._evaluator.plateau.factor
            loss, logits = self.learner.step(prepared.batch, factor, prepared.resolved)
        with tracer.span("metrics"):
            batch_size = self.recipe.data.batch_size
            scores = gather_scores(self.ranks, prepared.batch, loss, logits, batch_size)
            if scores is not None:
                self.metrics.update(scores)
        self._waits.add(pipeline.wait_seconds - waited, time.perf_counter() - began)
        self.step += 1
        monitor.after(self.step, None if scores is None else float(scores.loss))
        return factor

    def _train_entry(self, factor: float, seconds: float, waited: DataWait) -> dict[str, Any]:
        batch_size, interval = self.recipe.data.batch_size, self.metrics.take_interval()
        samples = interval.steps * batch_size
        return {
            "kind": "train",
            "step": self.step,
            "epoch": round(self.step / self._steps.steps_an_epoch, 4),
            "samples": self.step * batch_size,
            "loss": interval.mean(),
            "lr_factor": factor,
            "window": self.metrics.window.compute(),
            "overall": self.metrics.overall.compute(),
            "seconds": round(seconds, 4),
            "samples_per_second": round(samples / seconds, 1) if seconds else 0.0,
            **waited.to_dict(),
        }

    @property
    def _is_rounded(self) -> bool:
        """Whether checkpoints round rows: a run ends with one that does not."""
        changes = self.store.changes
        return (
            changes is not None
            and changes.config.bits != 32
            and not changes.has_saved(self.step, exactly=True)
        )

    def save(self, background: bool = False, whole: bool = False) -> None:
        """Writes the checkpoint of the current step; `whole` if it is to have all rows, exactly."""
        changes = self.store.changes
        if changes is not None and not whole:
            self.store.wait()
            if changes.has_saved(self.step):
                # An evaluation has just asked for it.
                return
        if self._evicted is not None:
            self._evicted.flush()
        about = {"samples": self.step * self.recipe.data.batch_size, "best": self.best.state_dict()}
        self.store.save(self.step, self.state_dict(), about, self.best.step, background, whole)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on, as a checkpoint keeps it."""
        # The loader's state is that after the last batch that was computed, whatever has been read ahead.
        position = self.loader.state_dict() if self._pipeline is None else self._pipeline.position
        return {
            "step": self.step,
            "learner": self.learner.state_dict(),
            "loader": json.dumps(position),
            "window": self.metrics.window.state_dict(),
            "overall": self.metrics.overall.state_dict(),
            "best": self.best.state_dict(),
            "plateau": OptionalValues(self._evaluator.plateau.state_dict()),
            "interval": self.metrics.interval.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state that a checkpoint has filled."""
        self.step = state["step"]
        self.learner.load_state_dict(state["learner"])
        self.loader.load_state_dict(json.loads(state["loader"]))
        self.metrics.load_state_dict(state)
        self.best.load_state_dict(state["best"])
        self._evaluator.plateau.load_state_dict(state["plateau"])
