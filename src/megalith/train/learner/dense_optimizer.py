"""The optimizer of the dense part: torch's own, from the `dense` section of a recipe."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from megalith.core.config import Config
from megalith.embeddings.optimizers import Beta


class SGDConfig(Config):
    """Stochastic gradient descent, with or without momentum."""

    kind: Literal["sgd"] = "sgd"
    lr: float = Field(default=0.1, ge=0)
    """The learning rate, before the schedule."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """What is left of the last step's direction."""
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 penalty, added to the gradient."""


class AdaGradConfig(Config):
    """AdaGrad with a state for every weight."""

    kind: Literal["adagrad"] = "adagrad"
    lr: float = Field(default=0.01, ge=0)
    """The learning rate, before the schedule."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the sum of squares."""
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 penalty, added to the gradient."""


class AdamConfig(Config):
    """Adam: `adam` adds the decay to the gradient, `adamw` applies it to the weights."""

    kind: Literal["adam", "adamw"] = "adam"
    """Where the decay goes."""
    lr: float = Field(default=1e-3, ge=0)
    """The learning rate, before the schedule."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """What is left of the first and second moments after a step."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 penalty (`adam`), or decay of the weights themselves (`adamw`)."""


DenseOptimizer = Annotated[SGDConfig | AdaGradConfig | AdamConfig, Field(discriminator="kind")]


def build_dense_optimizer(
    config: DenseOptimizer, parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer over `parameters`; a group's `base_lr` is the rate that the schedule scales."""
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


def state_by_name(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, dict[str, Tensor]]:
    """The optimizer's state by parameter name, with zeros before the first step, so that it can be loaded
    in place: the shapes are there from the start."""
    return {name: _state_of(optimizer, parameter) for name, parameter in module.named_parameters()}


def _state_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    state = optimizer.state.get(parameter)
    if state:
        return dict(state)
    empty = torch.zeros_like(parameter, requires_grad=False)
    if isinstance(optimizer, torch.optim.Adam):
        return {"step": torch.zeros(()), "exp_avg": empty, "exp_avg_sq": empty.clone()}
    if isinstance(optimizer, torch.optim.SGD) and optimizer.defaults["momentum"]:
        return {"momentum_buffer": empty}
    return {}
