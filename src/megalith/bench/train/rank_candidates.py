"""A rank of a training step over several processes: the interface, and ours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.multiprocessing
from torch import Tensor

from megalith.bench.peers.lookup import LookupShape
from megalith.bench.train.rank_plans import recipe_of, schema_of
from megalith.bench.train.samples import TrainSamples
from megalith.data.batch import Batch
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.runtime.collection import ShardedEmbeddingCollection
from megalith.train.learner.learner import Learner
from megalith.train.pipeline import Pipeline


class RankCandidate(Protocol):
    """One rank of a trainer that takes turns with others; the worker calls it."""

    losses: list[Tensor]
    """Of all steps so far."""

    def ready(self, batches: Sequence[Batch]) -> None:
        """Takes the batches of the coming turn, before the clock starts."""

    def turn(self, num_steps: int) -> None:
        """Trains so many steps."""


class MegalithRank:
    """One rank of our trainer; without a plan, the one process that has all samples and tables."""

    def __init__(self, shape: LookupShape, plan: ShardingPlan | None) -> None:
        recipe = recipe_of(shape)
        self._learner = Learner(recipe.learner_config(), schema_of(shape), plan)
        self._source = _MemoryBatches()
        self._plan = plan
        self._pipeline: Pipeline | None = None
        self.losses: list[Tensor] = []

    @property
    def dense(self) -> torch.nn.Module:
        """The dense part of the model."""
        return self._learner.dense

    @property
    def sharded(self) -> ShardedEmbeddingCollection:
        """The embedding tables of all ranks."""
        assert isinstance(self._learner.embeddings, ShardedEmbeddingCollection)
        return self._learner.embeddings

    def ready(self, batches: Sequence[Batch]) -> None:
        """Takes the batches of the coming turn and fills the pipeline."""
        self._source.batches.extend(batches)
        if self._pipeline is None:
            # The thread begins with the first batch at once.
            depth = 0 if self._plan is None else 1
            self._pipeline = Pipeline(self._source, self._learner.stages(trains=True), depth=depth)
        self._pipeline.settle()

    def turn(self, num_steps: int) -> None:
        """Trains so many steps."""
        assert self._pipeline is not None
        for prepared in itertools.islice(self._pipeline, num_steps):
            loss, _ = self._learner.step(prepared.batch, 1.0, prepared.resolved)
            self.losses.append(loss)
        # What the last step prepared for the next turn is work of this one, as every step prepares a batch.
        self._pipeline.settle()

    def close(self) -> None:
        """Stops the thread of the pipeline."""
        if self._pipeline is not None:
            self._pipeline.close()


class _MemoryBatches:
    """Batches for a pipeline, as a loader gives them."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def stream(self) -> Iterator[Batch]:
        for number in itertools.count():
            yield self.batches[number]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.batches.clear()


def part_of(samples: TrainSamples, shape: LookupShape, rank: int, ranks: int) -> Batch:
    """A rank's samples of a batch whose bags all have as many ids."""
    size = shape.batch // ranks
    own = slice(rank * size, (rank + 1) * size)
    values = samples.values.view(shape.tables, shape.batch, shape.lookups)[:, own].flatten()
    offsets = torch.arange(0, len(values) + 1, shape.lookups)
    return Batch(samples.dense[own].contiguous(), values, offsets, samples.labels[own].contiguous())
