"""A recipe: everything a run needs, as one YAML file with nothing left to flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from megalith.core.config import Config
from megalith.embeddings.optimizers import Beta, RowOptimizer, RowWiseAdaGrad
from megalith.models.registry import AnyModel
from megalith.sharding.plan import ExchangeConfig


class DataConfig(Config):
    """Which prepared data set to read, and how."""

    path: Path
    train: tuple[str, ...] = Field(default=("train",), min_length=1)
    """Splits to train on; several are read as one."""
    eval: str | None = None
    """The split to evaluate on; None takes `valid`, else `test`, if there is one."""
    batch_size: int = Field(default=2048, ge=1)
    eval_batch_size: int = Field(default=8192, ge=1)
    shuffle: bool = True
    shuffle_window_rows: int = Field(default=262_144, ge=1)
    threads: int = Field(default=2, ge=1, le=1024)
    prefetch: int = Field(default=4, ge=1, le=1024)


class EmbeddingsConfig(Config):
    optimizer: RowOptimizer = RowWiseAdaGrad(lr=0.02)


class SGDConfig(Config):
    kind: Literal["sgd"] = "sgd"
    lr: float = Field(default=0.1, ge=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)


class AdaGradConfig(Config):
    kind: Literal["adagrad"] = "adagrad"
    lr: float = Field(default=0.01, ge=0)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)


class AdamConfig(Config):
    """`adam` adds the decay to the gradient, `adamw` applies it to the weights."""

    kind: Literal["adam", "adamw"] = "adam"
    lr: float = Field(default=1e-3, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)


DenseOptimizer = Annotated[SGDConfig | AdaGradConfig | AdamConfig, Field(discriminator="kind")]


class ScheduleConfig(Config):
    """A factor on every learning rate: rises over the warm-up, then falls to `end_factor` at the end."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(default=0, ge=0)
    end_factor: float = Field(default=0.0, ge=0)


class EarlyStoppingConfig(Config):
    """Stops when `metric` of the evaluation split has not improved for `patience` evaluations."""

    metric: Literal["ne", "log_loss", "auc"] = "ne"
    patience: int = Field(default=3, ge=1)
    min_delta: float = Field(default=0.0, ge=0)


class LoopConfig(Config):
    """How long to train and what to do on the way; counts are in steps."""

    epochs: int | None = Field(default=None, ge=1)
    steps: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    clip_norm: float | None = Field(default=None, gt=0)
    """Scales the dense gradient down to this norm."""
    log_every: int = Field(default=50, ge=1)
    eval_every: int | None = Field(default=None, ge=1)
    """None evaluates at the end of each epoch."""
    eval_batches: int | None = Field(default=None, ge=1)
    """Evaluations during training read this many batches at most; the last one reads them all."""
    checkpoint_every: int = Field(default=1000, ge=1)
    keep_checkpoints: int = Field(default=2, ge=1)
    background_checkpoints: bool = False
    """Copies the state and writes it while training goes on; needs memory for a second copy."""
    window_samples: int = Field(default=65_536, ge=1)
    """Samples in the window of the training metrics."""
    early_stopping: EarlyStoppingConfig | None = None
    tensorboard: bool = True
    trace: bool = True
    trace_bytes: int = Field(default=64 << 20, ge=1 << 16)
    """A rank's trace is no longer than this: of a long run it keeps the beginning and the end."""

    @model_validator(mode="after")
    def _has_an_end(self) -> LoopConfig:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps")
        return self


class ShardingConfig(Config):
    """How tables are cut over ranks under torchrun; of no effect in one process."""

    plan: Literal["auto"] | Path = "auto"
    """A file of `megalith plan`, or `auto` to plan for the ranks that there are, at every start."""
    exchange: ExchangeConfig | None = None
    """None takes what the plan says."""
    pipeline: bool = True
    """Reads the next batch and exchanges its ids while this one is computed; results are the same."""


class Recipe(Config):
    """One complete run. `data.batch_size` counts the samples of a step on all ranks together."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    data: DataConfig
    model: AnyModel
    embeddings: EmbeddingsConfig = EmbeddingsConfig()
    dense: DenseOptimizer = AdamConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    train: LoopConfig = LoopConfig(epochs=1)
    sharding: ShardingConfig = ShardingConfig()
