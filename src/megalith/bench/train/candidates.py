"""One training step of DLRM on one process: the interface, ours, and one in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megalith.bench.peers.lookup import LEARNING_RATE, LookupShape
from megalith.bench.peers.tables import Megalith, TorchBags
from megalith.bench.train.samples import BOTTOM, NUM_DENSE, TOP, TrainSamples, dense_model, dense_optimizer

PARTS = ("embedding forward", "dense forward and backward", "embedding backward", "dense optimizer")


class TrainCandidate:
    """A model with its tables and optimizers; `loss` is that of its last step."""

    dense_optimizer: torch.optim.Optimizer
    loss = float("nan")

    def logits(self, batch: TrainSamples) -> Tensor:
        """Forward pass: the logit of each sample."""
        raise TypeError(f"{type(self).__name__} must define logits(batch).")

    def prepare(self, batch: TrainSamples) -> None:
        """Done before the clock starts: what a data loader would have done."""

    def step_tables(self) -> None:
        """For tables that the backward pass has not updated already."""

    def timed(self, batch: TrainSamples) -> dict[str, float]:
        """Trains on one batch and returns the seconds it took."""
        self.prepare(batch)
        start = perf_counter()
        self.dense_optimizer.zero_grad(set_to_none=True)
        loss = F.binary_cross_entropy_with_logits(self.logits(batch), batch.labels)
        loss.backward()
        self.dense_optimizer.step()
        self.step_tables()
        end = perf_counter()
        self.loss = loss.item()
        return {"total": end - start}


class MegalithStep(TrainCandidate):
    """Our collection of tables and our DLRM, as users call them."""

    def __init__(self, shape: LookupShape) -> None:
        self.tables = Megalith(shape)
        self.dense = dense_model(shape)
        # As our trainer makes it.
        self.dense_optimizer = torch.optim.Adagrad(self.dense.parameters(), lr=LEARNING_RATE, fused=True)

    def logits(self, batch: TrainSamples) -> Tensor:
        """Forward pass: the logit of each sample."""
        logits: Tensor = self.dense(batch.dense, self.tables.embeddings(batch.values, batch.offsets))
        return logits

    def timed_parts(self, batch: TrainSamples) -> dict[str, float]:
        """The same step, cut where the vectors pass from the tables to the dense part."""
        times = [perf_counter()]
        embedded = self.tables.embeddings(batch.values, batch.offsets)
        times.append(perf_counter())
        self.dense_optimizer.zero_grad(set_to_none=True)
        passed = embedded.detach().requires_grad_()
        F.binary_cross_entropy_with_logits(self.dense(batch.dense, passed), batch.labels).backward()
        times.append(perf_counter())
        embedded.backward(passed.grad)
        times.append(perf_counter())
        self.dense_optimizer.step()
        times.append(perf_counter())
        spans = pairwise(times)
        return {name: end - start for name, (start, end) in zip(PARTS, spans, strict=True)}


class PlainTorchStep(TrainCandidate):
    """What a user of torch alone writes: an nn.EmbeddingBag a table with sparse gradients, nn.Linear, bmm."""

    def __init__(self, shape: LookupShape, ours: MegalithStep) -> None:
        self.tables = TorchBags(shape)
        self.bottom = plain_stack([NUM_DENSE, *BOTTOM, shape.dim], last_activation=True)
        pairs = (shape.tables + 1) * shape.tables // 2
        self.top = plain_stack([shape.dim + pairs, *TOP, 1], last_activation=False)
        self.rows, self.columns = torch.tril_indices(shape.tables + 1, shape.tables + 1, offset=-1)
        self.dense_optimizer = dense_optimizer(nn.ModuleList([self.bottom, self.top]))
        copy_tables(self.tables.weights(), ours)
        with torch.no_grad():
            own = [*self.bottom.parameters(), *self.top.parameters()]
            for target, value in zip(own, ours.dense.parameters(), strict=True):
                target.copy_(value)

    def logits(self, batch: TrainSamples) -> Tensor:
        """Forward pass: the logit of each sample."""
        first = self.bottom(batch.dense)
        vectors = torch.stack([first, *self.tables.pooled(batch.values, batch.offsets)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.rows, self.columns]
        logits: Tensor = self.top(torch.cat([first, products], dim=1)).squeeze(1)
        return logits

    def step_tables(self) -> None:
        """One step of sparse AdaGrad."""
        self.tables.optimizer.step()
        self.tables.optimizer.zero_grad(set_to_none=True)


def plain_stack(widths: Sequence[int], last_activation: bool) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for width, out in pairwise(widths):
        layers += [nn.Linear(width, out), nn.ReLU()]
    return nn.Sequential(*(layers if last_activation else layers[:-1]))


@torch.no_grad()
def copy_tables(weights: Sequence[Tensor], ours: MegalithStep) -> None:
    """Sets the tables of a peer to our start values."""
    for own, source in zip(weights, ours.tables.weights(), strict=True):
        own.copy_(source)
