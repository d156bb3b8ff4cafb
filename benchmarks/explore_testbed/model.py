"""The small transformer that the ranks train, cut into chunks of layers, and what a pipeline does with them.

A chunk computes F (forward), then BW (both gradients), or B (gradient of its input) and later W (gradients
of its weights): linear layers then keep what W needs, as zero-bubble schedules ask. `WaitingChunk` has the
same interface but waits instead of computing: more ranks than cores can still send real bytes in real time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Shape:
    """The model and what one micro-batch is; the same figures make the Explorer's job."""

    hidden: int
    layers: int
    heads: int
    vocab: int
    seq: int
    micro_batch: int

    def activation(self) -> Tensor:
        """A tensor of the size that passes between stages."""
        return torch.zeros(self.micro_batch, self.seq, self.hidden)


@dataclass(frozen=True, slots=True)
class Part:
    """What a chunk holds: some layers, and perhaps the model's ends."""

    layers: int
    embedding: bool = False
    head: bool = False


class Chunk(Protocol):
    """Layers that sit together on one rank; gradients of all its weights lie in one flat buffer."""

    part: Part
    gradient: Tensor

    def forward(self, micro_batch: int, received: Tensor | None) -> Tensor:
        """F of one micro-batch: the activation for the next stage, or the loss."""

    def backward(self, micro_batch: int, received: Tensor | None, *, weights: bool) -> Tensor | None:
        """B, or BW with `weights`: the gradient for the stage before; None at the first."""

    def backward_weights(self, micro_batch: int) -> None:
        """W of one micro-batch, where the backward pass left it for later."""

    def update(self) -> None:
        """The optimizer step; clears the gradients."""


class WeightLater(torch.autograd.Function):
    """A linear layer whose backward gives the input's gradient and keeps what the weight's needs."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor, kept: list[Any]) -> Tensor:
        """The product, keeping its operands."""
        context.save_for_backward(x, weight)
        context.bias, context.kept = bias, kept
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of the input; the operands of the weight's are kept."""
        x, weight = context.saved_tensors
        context.kept.append((weight, context.bias, x, gradients[0]))
        return gradients[0] @ weight, None, None, None


class Linear(nn.Linear):
    """A linear layer that can leave the gradient of its weight for later."""

    kept: list[Any] | None = None
    """Where a backward leaves the work of W; None: it does that work at once."""

    def forward(self, x: Tensor) -> Tensor:
        """The product, with or without the gradient of the weight at once."""
        if self.kept is None:
            return super().forward(x)
        result: Tensor = WeightLater.apply(x, self.weight, self.bias, self.kept)
        return result


class Block(nn.Module):
    """A pre-norm transformer layer with causal attention and a feed-forward of four times the width."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query_key_value, self.projection = Linear(hidden, 3 * hidden), Linear(hidden, hidden)
        self.up, self.down = Linear(hidden, 4 * hidden), Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and feed-forward, each added to its input."""
        batch, seq, hidden = x.shape
        mixed = self.query_key_value(self.attention_norm(x))
        q, k, v = mixed.view(batch, seq, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).reshape(batch, seq, hidden))
        return x + self.down(functional.gelu(self.up(self.feed_norm(x))))


class TransformerChunk:
    """Layers that compute."""

    def __init__(self, shape: Shape, part: Part, *, split: bool = False) -> None:
        self.part = part
        self.layers = nn.Sequential(*(Block(shape.hidden, shape.heads) for _ in range(part.layers)))
        self.embedding = nn.Embedding(shape.vocab, shape.hidden) if part.embedding else None
        self.norm = nn.LayerNorm(shape.hidden) if part.head else None
        self.head = Linear(shape.hidden, shape.vocab) if part.head else None
        self.tokens = torch.randint(shape.vocab, (shape.micro_batch, shape.seq))
        modules = [module for module in (self.embedding, self.layers, self.norm, self.head) if module]
        weights = [weight for module in modules for weight in module.parameters()]
        # Gradients are views of one buffer, so that an exchange needs no copy.
        self.gradient = torch.zeros(sum(weight.numel() for weight in weights))
        start = 0
        for weight in weights:
            weight.grad = self.gradient[start : start + weight.numel()].view_as(weight)
            start += weight.numel()
        self.optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
        self.split = split
        self.linears = [
            layer for module in modules for layer in module.modules() if isinstance(layer, Linear)
        ]
        self.in_flight: dict[int, tuple[Tensor | None, Tensor]] = {}
        self.kept: dict[int, list[Any]] = {}

    def forward(self, micro_batch: int, received: Tensor | None) -> Tensor:
        """Computes the layers."""
        if self.split:
            kept = self.kept[micro_batch] = []
            for linear in self.linears:
                linear.kept = kept
        x = None if received is None else received.detach().requires_grad_()
        hidden = self.embedding(self.tokens) if self.embedding is not None else x
        out: Tensor = self.layers(hidden)
        if self.norm is not None and self.head is not None:
            logits = self.head(self.norm(out))
            out = functional.cross_entropy(logits.flatten(0, 1), self.tokens.flatten())
        self.in_flight[micro_batch] = x, out
        return out.detach()

    def backward(self, micro_batch: int, received: Tensor | None, *, weights: bool) -> Tensor | None:
        """Computes the gradients."""
        x, out = self.in_flight.pop(micro_batch)
        out.backward(received)
        if weights and self.split:
            self.backward_weights(micro_batch)
        return None if x is None else x.grad

    @torch.no_grad()
    def backward_weights(self, micro_batch: int) -> None:
        """Computes the gradients of the weights that were left for later."""
        for weight, bias, x, gradient in self.kept.pop(micro_batch):
            flat = gradient.flatten(0, 1)
            weight.grad.addmm_(flat.t(), x.flatten(0, 1))
            bias.grad.add_(flat.sum(0))

    def update(self) -> None:
        """Steps AdamW and clears the gradients."""
        self.optimizer.step()
        self.gradient.zero_()


@dataclass(slots=True)
class WaitingChunk:
    """Waits as long as it is told a chunk takes, and returns a tensor of the right size."""

    part: Part
    gradient: Tensor
    activation: Tensor
    seconds: dict[str, float]

    def forward(self, micro_batch: int, received: Tensor | None) -> Tensor:
        """Waits as long as a forward pass takes."""
        time.sleep(self.seconds["F"])
        return self.activation

    def backward(self, micro_batch: int, received: Tensor | None, *, weights: bool) -> Tensor | None:
        """Waits as long as a backward pass takes."""
        time.sleep(self.seconds["BW"] if weights else self.seconds["B"])
        return None if self.part.embedding else self.activation

    def backward_weights(self, micro_batch: int) -> None:
        """Waits as long as the weights' gradients take."""
        time.sleep(self.seconds["W"])

    def update(self) -> None:
        """Waits as long as an update takes."""
        time.sleep(self.seconds["update"])
