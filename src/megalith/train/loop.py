"""The loop's settings: how long a run trains, and at which steps it reports, evaluates and saves."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field, model_validator

from megalith.core.config import Config
from megalith.train.stopping import EarlyStoppingConfig


class LoopConfig(Config):
    """How long to train and what to do on the way; counts are in steps."""

    epochs: int | None = Field(default=None, ge=1)
    """Passes over the training splits. Give this or `steps`."""
    steps: int | None = Field(default=None, ge=1)
    """Batches to train on."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Decides start values, the order of samples, dropout and rounding."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Scales the dense gradient down to this norm."""
    clip_tables: bool = False
    """Whether the gradients of tables count in that norm, and are scaled with the others; in one process."""
    log_every: int = Field(default=50, ge=1)
    """Training metrics are reported every so many steps."""
    eval_every: int | None = Field(default=None, ge=1)
    """None evaluates at the end of each epoch."""
    eval_batches: int | None = Field(default=None, ge=1)
    """Evaluations during training read this many batches at most; the last one reads them all."""
    checkpoint_every: int = Field(default=1000, ge=1)
    """A checkpoint is saved every so many steps, and at the end."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """The newest so many are kept, and the best by evaluation."""
    background_checkpoints: bool = False
    """Copies the state and writes it while training goes on; needs memory for a second copy."""
    pipeline: int = Field(default=1, ge=0, le=64)
    """Batches that are prepared while one is computed: read, their ids exchanged, their rows in memory; 0
    does one after the other. Results are the same."""
    window_samples: int = Field(default=65_536, ge=1)
    """Samples in the window of the training metrics."""
    early_stopping: EarlyStoppingConfig | None = None
    """Ends the run when evaluations no longer get better."""
    tensorboard: bool = True
    """Whether metrics are also written for TensorBoard, to the run's tensorboard/."""
    trace: bool = True
    """Whether spans of every step are written to the run's trace.jsonl."""
    trace_bytes: int = Field(default=64 << 20, ge=1 << 16)
    """A rank's trace is no longer than this: of a long run it keeps the beginning and the end."""
    stall_seconds: float | None = Field(default=60.0, gt=0)
    """The run says so when no batch has come for so long; null never does."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Prometheus reads the run's numbers here, at /metrics; 0 takes a free port."""
    metrics_host: str = "127.0.0.1"
    """The address of that port; by default no other machine reaches it."""

    @model_validator(mode="after")
    def _has_an_end(self) -> LoopConfig:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps")
        if self.clip_tables and self.clip_norm is None:
            raise ValueError("clip_tables has no norm to clip to: give clip_norm too")
        return self


@dataclass(frozen=True, slots=True)
class LoopSteps:
    """The steps of a run: its last one, and those after which something else is due."""

    config: LoopConfig
    steps_an_epoch: int

    @property
    def total(self) -> int:
        """Steps from the start to the end, if no early stop comes before."""
        return self.config.steps or (self.config.epochs or 1) * self.steps_an_epoch

    def logs_after(self, step: int) -> bool:
        """Whether training metrics are reported after this step."""
        return step % self.config.log_every == 0 or step == self.total

    def evaluates_after(self, step: int) -> bool:
        """Whether an evaluation is due; the end has one of its own, over the whole split."""
        return step != self.total and step % (self.config.eval_every or self.steps_an_epoch) == 0

    def saves_after(self, step: int) -> bool:
        """Whether a checkpoint is due after this step."""
        return step % self.config.checkpoint_every == 0
