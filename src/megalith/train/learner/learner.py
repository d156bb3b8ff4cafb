"""The learner: tables, dense model and optimizers; one training step, one prediction, one state to save.

On many ranks the tables are cut over them by a plan and the dense part is copied to each (replica.py). The
loss is the sum over a rank's samples divided by the samples of all ranks, and gradients are summed, so that a
step is that of one process with the whole batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megalith.checkpoint.state import OptionalValues
from megalith.comm.ranks import Ranks
from megalith.core.errors import ConfigError
from megalith.core.schema import TableSpec, feature_order
from megalith.core.spans import span
from megalith.data.batch import Batch
from megalith.data.dataset import DatasetSchema
from megalith.embeddings.collection import EmbeddingCollection, TellEvicted
from megalith.embeddings.module.gradient_norm import clip_grad_norm_
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy
from megalith.embeddings.stores.choose import AdaptiveBytes
from megalith.embeddings.stores.settings import TieredMemory
from megalith.models.base import ModelInputs
from megalith.models.registry import AnyModel, build_model
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.runtime.collection import ShardedEmbeddingCollection
from megalith.train.learner.dense_optimizer import DenseOptimizer, build_dense_optimizer, state_by_name
from megalith.train.learner.embeddings import EmbeddingsConfig, place_tables
from megalith.train.learner.lookup_model import LookupModel, Tables
from megalith.train.learner.memory import check_memory
from megalith.train.learner.replica import Replica
from megalith.train.pipeline import Stages

MakeTables = Callable[[Sequence[TableSpec]], Tables]
"""Makes the tables that a model asks for, otherwise than `EmbeddingCollection` does."""


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """The settings of a recipe that a learner depends on."""

    model: AnyModel
    embeddings: EmbeddingsConfig
    dense: DenseOptimizer
    seed: int
    clip_norm: float | None
    global_batch: int
    """Samples of a step on all ranks together."""
    memory: TieredMemory | None = None
    """What the tiered tables of a rank may take, with a path."""
    adaptive: AdaptivePolicy | None = None
    """What adaptive tables may take, with a schedule in steps."""
    trains: bool = True
    """Whether it is more than loaded: then adaptive tables begin larger than they end."""
    clip_tables: bool = False
    """Whether `clip_norm` is that of the gradients of dense part and tables together."""


class Learner:
    """A model with its tables, ready to train on batches of one schema; with a plan, a rank's part of it.

    The trainer and evaluation call it; it owns the weights and the states of all optimizers.
    """

    def __init__(
        self,
        config: LearnerConfig,
        schema: DatasetSchema,
        plan: ShardingPlan | None = None,
        second_copy: bool = False,
        make_tables: MakeTables | None = None,
    ) -> None:
        """`second_copy` says that checkpoints will be written from a copy, which must fit into memory too.
        `make_tables` gives one process tables of another kind."""
        tables = config.embeddings.with_stores(config.model.tables(schema.categorical))
        _check_pooling(tables)
        if make_tables is None:
            _check_order(tables, schema)
        self.config = config
        # Without a plan this process is on its own, whatever group it is in.
        ranks = Ranks() if plan is None else Ranks.all()
        if config.clip_tables:
            assert make_tables is None, "only our own tables are clipped"
            _check_clipping(plan, config.adaptive)
        optimizer, seed = config.embeddings.optimizer, config.seed
        tables, memory, adaptive = place_tables(tables, optimizer, config.memory, plan, config.adaptive)
        self.tables = tables
        self.adaptive_bytes: AdaptiveBytes | None = None
        """What adaptive tables may take, on all ranks together; None where there are none."""
        if make_tables is None:
            lookups = _lookups(tables, schema, config.global_batch) if config.trains else None
            taken = check_memory(tables, optimizer, plan, ranks, memory, second_copy, adaptive, lookups)
            self.adaptive_bytes = taken if adaptive is not None else None
        # One seed makes the start values of the dense part; tables take theirs from it and their name.
        torch.manual_seed(config.seed)
        self.dense = build_model(config.model, ModelInputs(len(schema.numeric), schema.categorical))
        self.embeddings: Tables
        self._rank = ranks.rank
        self._model: LookupModel | Replica
        if plan is None:
            # Without a plan this process trains alone, whatever group it is in.
            self.embeddings = (
                EmbeddingCollection(
                    *(tables, optimizer, seed),
                    memory=memory,
                    adaptive=adaptive,
                    accumulate=config.clip_tables,
                    independent=True,
                )
                if make_tables is None
                else make_tables(tables)
            )
            self._model = LookupModel(self.dense, self.embeddings)
        else:
            sharded = ShardedEmbeddingCollection(
                tables, plan, optimizer, seed, memory=memory, adaptive=adaptive
            )
            self.embeddings, self._model = sharded, Replica(self.dense, sharded, ranks)
        self.optimizer = build_dense_optimizer(config.dense, self.dense.parameters())
        self.measures_norm = False
        """Whether steps also measure the norm of the dense gradient; those that clip it do so anyway."""
        self.gradient_norm: Tensor | None = None
        """That of the last step, before clipping, if it was measured."""

    @property
    def num_dense_parameters(self) -> int:
        """Weights of the dense part."""
        return sum(parameter.numel() for parameter in self.dense.parameters())

    @property
    def table_bytes(self) -> int:
        """Bytes of the weights of all tables, on all ranks together."""
        return sum(table.weight_bytes for table in self.tables)

    def stages(self, *, trains: bool) -> Stages:
        """What a pipeline does with a batch ahead of its step, or of its prediction."""
        return Stages(
            lambda batch: self._exchanged(batch, trains=trains),
            self.embeddings.expect,
            lambda ids: self.embeddings.resolve(ids, trains=trains, wait=True),
        )

    def step(self, batch: Batch, lr_factor: float, resolved: Any = None) -> tuple[Tensor, Tensor]:
        """One update; returns the loss and the logits, both detached. On many ranks all take it together,
        each with its slice of the batch, and get its part of the loss. `resolved` is of `stages`."""
        self.dense.train()
        self.embeddings.lr_factor = lr_factor
        if isinstance(self.embeddings, EmbeddingCollection):
            self.embeddings.event_time = batch.event_times
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * lr_factor
        self.optimizer.zero_grad(set_to_none=True)
        # Dropout of a step is a function of the step and the rank: nothing of it has to be saved.
        torch.manual_seed(_dropout_seed(self.config.seed, self.embeddings.num_steps, self._rank))
        with span("forward"):
            logits = self._model(batch.dense, self._resolved(batch, resolved, trains=True))
        total = F.binary_cross_entropy_with_logits(
            logits, batch.labels, weight=batch.weights, reduction="sum"
        )
        loss = total / self.config.global_batch
        with span("backward"):
            loss.backward()
        self.gradient_norm = None
        if self.config.clip_norm is not None:
            if self.config.clip_tables and isinstance(self.embeddings, EmbeddingCollection):
                self.gradient_norm = clip_grad_norm_(
                    self.dense.parameters(), [self.embeddings], self.config.clip_norm
                )
                self.embeddings.step()
            else:
                # On many ranks the gradients are already sums over all of them, the same everywhere.
                self.gradient_norm = nn.utils.clip_grad_norm_(self.dense.parameters(), self.config.clip_norm)
        elif self.measures_norm:
            gradients = [each.grad for each in self.dense.parameters() if each.grad is not None]
            self.gradient_norm = nn.utils.get_total_norm(gradients)
        with span("update dense"):
            self.optimizer.step()
        return loss.detach(), logits.detach()

    @torch.no_grad()
    def predict(self, batch: Batch, resolved: Any = None) -> Tensor:
        """Logits of a batch, with dropout off and running statistics in use."""
        self.dense.eval()
        resolved = self._resolved(batch, resolved, trains=False)
        if isinstance(self._model, Replica):
            return self._model.predict(batch.dense, resolved)
        logits: Tensor = self._model(batch.dense, resolved)
        return logits

    def _resolved(self, batch: Batch, resolved: Any, *, trains: bool) -> Any:
        if resolved is not None:
            return resolved
        return self.embeddings.resolve(self._exchanged(batch, trains=trains), trains=trains)

    def _exchanged(self, batch: Batch, *, trains: bool) -> Any:
        """The ids of a batch where their rows are; between ranks with the times by which they expire."""
        ids = batch.values, batch.offsets
        if trains and isinstance(self.embeddings, ShardedEmbeddingCollection):
            return self.embeddings.exchange(*ids, event_time=batch.event_times)
        return self.embeddings.exchange(*ids)

    def see_gradient(self, see: Callable[[Tensor], None] | None) -> None:
        """Shows somebody the gradient of the pooled vectors in each step, until told otherwise."""
        for module in self._model.modules():
            if isinstance(module, LookupModel):
                module.see_gradient = see

    def log_evicted(self, write: TellEvicted) -> None:
        """Has ids of dynamic tables that lose their row on this rank written."""
        if isinstance(self.embeddings, EmbeddingCollection | ShardedEmbeddingCollection):
            self.embeddings.on_evicted(write)

    def state_dict(self) -> dict[str, Any]:
        """Everything training changes; the keys do not depend on the number of ranks."""
        return {
            "dense": self.dense.state_dict(),
            "tables": self.embeddings.table_states(),
            "num_steps": self.embeddings.num_steps,
            "adaptive": OptionalValues(self.embeddings.policy_state()),
            "optimizer": state_by_name(self.optimizer, self.dense),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what a checkpoint has filled; the rows of tables were written in place."""
        self.dense.load_state_dict(state["dense"])
        self.embeddings.num_steps = state["num_steps"]
        self.embeddings.load_policy_state(state["adaptive"])
        for parameter, values in zip(self.dense.parameters(), state["optimizer"].values(), strict=True):
            self.optimizer.state[parameter] = values


def _check_clipping(plan: ShardingPlan | None, adaptive: AdaptivePolicy | None) -> None:
    if plan is not None:
        raise ConfigError(
            "train.clip_tables=true needs the gradients of all tables in one process; train without "
            "torchrun, or clip the dense part alone with train.clip_tables=false."
        )
    if adaptive is not None:
        raise ConfigError(
            "train.clip_tables=true does not go with adaptive tables, whose rows have only some of their "
            "columns; set train.clip_tables=false, or embeddings.optimizer.max_gradient."
        )


def _check_pooling(tables: Sequence[TableSpec]) -> None:
    """Refuses sequences: models read one vector of each table and sample."""
    for table in tables:
        if table.pooling == "none":
            raise ConfigError(
                f"Table '{table.name}' has pooling none, one vector for each id, and a model reads one "
                "for each sample; use model.pooling=sum, mean or max."
            )


def _check_order(tables: Sequence[TableSpec], schema: DatasetSchema) -> None:
    """Batches have features in the order of the data, and tables must read them in that order."""
    order = feature_order(tables)
    if order != schema.feature_names:
        raise ConfigError(
            f"The model's tables read features in the order {', '.join(order)}, the data has them in the "
            f"order {', '.join(schema.feature_names)}; keep that order in tables(features)."
        )


def _lookups(tables: Sequence[TableSpec], schema: DatasetSchema, batch: int) -> dict[str, int | None]:
    """By table, the most lookups of a batch; None where a sample may have any number of ids."""
    lengths = {feature.name: feature.max_length for feature in schema.categorical}
    found: dict[str, int | None] = {}
    for table in tables:
        own = [lengths.get(feature) for feature in table.features]
        known = [length for length in own if length is not None]
        found[table.name] = batch * sum(known) if len(known) == len(own) else None
    return found


def _dropout_seed(seed: int, step: int, rank: int) -> int:
    digest = hashlib.sha256(f"{seed}:{step}:{rank}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
