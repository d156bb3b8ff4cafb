"""The learner: tables, dense model and optimizers; one training step, one prediction, one state to save.

On many ranks the tables are cut over them by a plan and the dense part is copied to each (replica.py). The
loss is the sum over a rank's samples divided by the samples of all ranks, and gradients are summed, so that a
step is that of one process with the whole batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megalith.comm.ranks import Ranks
from megalith.core.schema import TableSpec
from megalith.data.batch import Batch
from megalith.data.dataset import DatasetSchema
from megalith.embeddings.collection import EmbeddingCollection
from megalith.models.base import ModelInputs
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.runtime.collection import ShardedEmbeddingCollection
from megalith.train.config import AdaGradConfig, AdamConfig, DenseOptimizer, Recipe
from megalith.train.learner.memory import check_memory
from megalith.train.learner.replica import Replica
from megalith.train.pipeline import Stages


class Learner:
    """A model with its tables, ready to train on batches of one schema; with a plan, a rank's part of it."""

    def __init__(
        self,
        recipe: Recipe,
        schema: DatasetSchema,
        plan: ShardingPlan | None = None,
        second_copy: bool = False,
    ) -> None:
        """`second_copy` says that checkpoints will be written from a copy, which must fit into memory too."""
        inputs = ModelInputs(len(schema.numeric), schema.categorical)
        tables = recipe.model.tables(schema.categorical)
        self.tables: list[TableSpec] = tables
        # Without a plan this process is on its own, whatever group it is in.
        ranks = Ranks() if plan is None else Ranks.all()
        check_memory(tables, recipe.embeddings.optimizer, plan, ranks, second_copy)
        seed = recipe.train.seed
        # One seed makes the start values of the dense part; tables take theirs from it and their name.
        torch.manual_seed(seed)
        self.dense = recipe.model.build(inputs)
        self.embeddings: EmbeddingCollection | ShardedEmbeddingCollection
        self._replica: Replica | None = None
        self._seed, self._rank = seed, 0
        if plan is None:
            self.embeddings = EmbeddingCollection(tables, recipe.embeddings.optimizer, seed)
        else:
            self._rank = ranks.rank
            self.embeddings = ShardedEmbeddingCollection(tables, plan, recipe.embeddings.optimizer, seed)
            self._replica = Replica(self.dense, self.embeddings, ranks)
        self.optimizer = _dense_optimizer(recipe.dense, self.dense.parameters())
        self.clip_norm = recipe.train.clip_norm
        self.global_batch = recipe.data.batch_size

    @property
    def num_dense_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.dense.parameters())

    @property
    def table_bytes(self) -> int:
        return sum(table.weight_bytes for table in self.tables)

    @property
    def stages(self) -> Stages:
        """What a pipeline does with a batch ahead of its step."""
        if not isinstance(self.embeddings, ShardedEmbeddingCollection):
            return Stages()
        return Stages(self.exchange, getattr(self.embeddings, "prefetch", None))

    def exchange(self, batch: Batch) -> Any:
        """Sends the ids of this rank's samples to the ranks that hold their rows, and gets theirs."""
        assert isinstance(self.embeddings, ShardedEmbeddingCollection)
        return self.embeddings.receive(self.embeddings.send(batch.values, batch.offsets))

    def step(self, batch: Batch, lr_factor: float, received: Any = None) -> tuple[Tensor, Tensor]:
        """One update; returns the loss and the logits, both detached. On many ranks all take it together,
        each with its slice of the batch, and get its part of the loss."""
        self.dense.train()
        self.embeddings.lr_factor = lr_factor
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * lr_factor
        self.optimizer.zero_grad(set_to_none=True)
        if self._replica is None:
            logits = self.dense(batch.dense, self.embeddings(batch.values, batch.offsets))
            loss = F.binary_cross_entropy_with_logits(logits, batch.labels, weight=batch.weights)
        else:
            # Dropout of a step is a function of the step and the rank: nothing of it has to be saved.
            torch.manual_seed(_random_seed(self._seed, self.embeddings.num_steps, self._rank))
            logits = self._replica(batch.dense, self.exchange(batch) if received is None else received)
            total = F.binary_cross_entropy_with_logits(
                logits, batch.labels, weight=batch.weights, reduction="sum"
            )
            loss = total / self.global_batch
        loss.backward()
        if self.clip_norm is not None:
            # On many ranks the gradients are already sums over all of them, the same everywhere.
            nn.utils.clip_grad_norm_(self.dense.parameters(), self.clip_norm)
        self.optimizer.step()
        return loss.detach(), logits.detach()

    @torch.no_grad()
    def predict(self, batch: Batch, received: Any = None) -> Tensor:
        """Logits of a batch, with dropout off and running statistics in use."""
        self.dense.eval()
        if self._replica is not None:
            received = self.exchange(batch) if received is None else received
            return self._replica.predict(batch.dense, received)
        logits: Tensor = self.dense(batch.dense, self.embeddings(batch.values, batch.offsets))
        return logits

    def state_dict(self) -> dict[str, Any]:
        """Everything training changes, the random state of dropout included; the keys do not depend on the
        number of ranks."""
        return {
            "dense": self.dense.state_dict(),
            "tables": self.embeddings.table_states(),
            "num_steps": self.embeddings.num_steps,
            "optimizer": _by_position(self.optimizer, self.dense),
            "random": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what a checkpoint has filled; the rows of tables were written in place."""
        self.dense.load_state_dict(state["dense"])
        self.embeddings.num_steps = state["num_steps"]
        for parameter, values in zip(self.dense.parameters(), state["optimizer"].values(), strict=True):
            self.optimizer.state[parameter] = values
        torch.set_rng_state(state["random"])


def _random_seed(seed: int, step: int, rank: int) -> int:
    digest = hashlib.sha256(f"{seed}:{step}:{rank}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _by_position(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, dict[str, Tensor]]:
    """The optimizer's state by parameter name, with zeros before the first step, so that it can be loaded
    in place: the shapes are there from the start."""
    return {name: _state_of(optimizer, parameter) for name, parameter in module.named_parameters()}


def _state_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    found = optimizer.state.get(parameter)
    if found:
        return dict(found)
    empty = torch.zeros_like(parameter, requires_grad=False)
    if isinstance(optimizer, torch.optim.Adam):
        return {"step": torch.zeros(()), "exp_avg": empty, "exp_avg_sq": empty.clone()}
    if isinstance(optimizer, torch.optim.SGD) and optimizer.defaults["momentum"]:
        return {"momentum_buffer": empty}
    return {}


def _dense_optimizer(config: DenseOptimizer, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    groups = [{"params": list(parameters), "base_lr": config.lr}]
    # `fused`: one pass over each parameter and its state instead of one for each operation.
    if isinstance(config, AdamConfig):
        cls = torch.optim.AdamW if config.kind == "adamw" else torch.optim.Adam
        return cls(groups, config.lr, config.betas, config.eps, config.weight_decay, fused=True)
    if isinstance(config, AdaGradConfig):
        return torch.optim.Adagrad(
            groups, config.lr, weight_decay=config.weight_decay, eps=config.eps, fused=True
        )
    return torch.optim.SGD(groups, config.lr, config.momentum, weight_decay=config.weight_decay, fused=True)
