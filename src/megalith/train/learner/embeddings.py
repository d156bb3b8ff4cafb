"""The embedding tables of a learner: all of them in one process, or a rank's shards under a plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from megalith.core.config import Config
from megalith.core.schema import TableSpec
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.optimizers import RowOptimizer, RowWiseAdaGrad
from megalith.sharding.plan import ExchangeConfig, ShardingPlan
from megalith.sharding.runtime.collection import ShardedEmbeddingCollection


class EmbeddingsConfig(Config):
    """How the rows of all tables are updated."""

    optimizer: RowOptimizer = RowWiseAdaGrad(lr=0.02)


class ShardingConfig(Config):
    """How tables are cut over ranks under torchrun; of no effect in one process."""

    plan: Literal["auto"] | Path = "auto"
    """A file of `megalith plan`, or `auto` to plan for the ranks that there are, at every start."""
    exchange: ExchangeConfig | None = None
    """None takes what the plan says."""
    pipeline: bool = True
    """Reads the next batch and exchanges its ids while this one is computed; results are the same."""


def build_embeddings(
    tables: Sequence[TableSpec], config: EmbeddingsConfig, plan: ShardingPlan | None, seed: int
) -> EmbeddingCollection | ShardedEmbeddingCollection:
    """The tables with their start values and optimizer states; under a plan all ranks call it together."""
    if plan is None:
        return EmbeddingCollection(tables, config.optimizer, seed)
    return ShardedEmbeddingCollection(tables, plan, config.optimizer, seed)
