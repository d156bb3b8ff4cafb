"""The learner: tables, dense model and optimizers; one training step, one prediction, one state to save."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megalith.core.schema import TableSpec
from megalith.data.batch import Batch
from megalith.data.dataset import DatasetSchema
from megalith.embeddings.collection import EmbeddingCollection
from megalith.models.base import ModelInputs
from megalith.train.config import AdaGradConfig, AdamConfig, DenseOptimizer, Recipe


class Learner:
    """A model with its tables, ready to train on batches of one schema."""

    def __init__(self, recipe: Recipe, schema: DatasetSchema) -> None:
        inputs = ModelInputs(len(schema.numeric), schema.categorical)
        tables = recipe.model.tables(schema.categorical)
        self.tables: list[TableSpec] = tables
        # One seed makes the start values of the dense part; tables take theirs from it and their name.
        torch.manual_seed(recipe.train.seed)
        self.dense = recipe.model.build(inputs)
        self.embeddings = EmbeddingCollection(tables, recipe.embeddings.optimizer, recipe.train.seed)
        self.optimizer = _dense_optimizer(recipe.dense, self.dense.parameters())
        self.clip_norm = recipe.train.clip_norm

    @property
    def num_dense_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.dense.parameters())

    @property
    def table_bytes(self) -> int:
        return sum(table.weight_bytes for table in self.tables)

    def step(self, batch: Batch, lr_factor: float) -> tuple[Tensor, Tensor]:
        """One update; returns the loss and the logits, both detached."""
        self.dense.train()
        self.embeddings.lr_factor = lr_factor
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * lr_factor
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.dense(batch.dense, self.embeddings(batch.values, batch.offsets))
        loss = F.binary_cross_entropy_with_logits(logits, batch.labels, weight=batch.weights)
        loss.backward()
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.dense.parameters(), self.clip_norm)
        self.optimizer.step()
        return loss.detach(), logits.detach()

    @torch.no_grad()
    def predict(self, batch: Batch) -> Tensor:
        """Logits of a batch, with dropout off and running statistics in use."""
        self.dense.eval()
        logits: Tensor = self.dense(batch.dense, self.embeddings(batch.values, batch.offsets))
        return logits

    def state_dict(self) -> dict[str, Any]:
        """Everything training changes, the random state of dropout included."""
        return {
            "dense": self.dense.state_dict(),
            "embeddings": self.embeddings.get_extra_state(),
            "optimizer": _by_position(self.optimizer, self.dense),
            "random": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.dense.load_state_dict(state["dense"])
        self.embeddings.set_extra_state(state["embeddings"])
        for parameter, values in zip(self.dense.parameters(), state["optimizer"].values(), strict=True):
            self.optimizer.state[parameter] = values
        torch.set_rng_state(state["random"])


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
    if isinstance(config, AdamConfig):
        cls = torch.optim.AdamW if config.kind == "adamw" else torch.optim.Adam
        return cls(groups, config.lr, config.betas, config.eps, config.weight_decay)
    if isinstance(config, AdaGradConfig):
        return torch.optim.Adagrad(groups, config.lr, weight_decay=config.weight_decay, eps=config.eps)
    return torch.optim.SGD(groups, config.lr, config.momentum, weight_decay=config.weight_decay)
