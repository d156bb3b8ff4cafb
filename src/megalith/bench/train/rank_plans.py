"""What all ranks of a benchmark share: tables, recipe, start values and the sharding plan."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Literal

from torch import Tensor

from megalith.bench.peers.lookup import EPS, LEARNING_RATE, LookupShape
from megalith.bench.train.samples import BOTTOM, NUM_DENSE, TOP
from megalith.core.schema import FeatureSpec, TableSpec
from megalith.data.dataset import DatasetSchema
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.optimizers import RowWiseAdaGrad
from megalith.models.dlrm.config import DLRMConfig
from megalith.models.layers.mlp import MLPConfig
from megalith.sharding.plan import Placement, Shard, ShardingPlan
from megalith.sharding.planner import Planner
from megalith.sharding.planner.inputs import local_cluster, plan_inputs
from megalith.sharding.planner.types import Workload
from megalith.train.learner.dense_optimizer import AdaGradConfig
from megalith.train.learner.embeddings import EmbeddingsConfig
from megalith.train.loaders import DataConfig
from megalith.train.recipe import Recipe

ShardingChoice = Literal["table_wise", "row_wise", "column_wise", "data_parallel", "auto"]


def make_plan(shape: LookupShape, ranks: int, sharding: ShardingChoice) -> ShardingPlan:
    """Every table in the same way; `auto` asks our planner."""
    tables = table_specs(shape)
    if sharding == "auto":
        inputs = plan_inputs(
            tables,
            local_cluster(ranks, ranks),
            Workload(shape.batch, pipelined=True),
            world_size=ranks,
            workers_per_node=ranks,
        )
        return Planner().plan(inputs)
    placements = []
    for number, table in enumerate(tables):
        rows, columns = (0, table.rows), (0, table.dim)
        if sharding == "table_wise":
            # Consecutive tables together: what a worker looks up for a sample is then one piece.
            shards = [Shard(worker=number * ranks // len(tables), rows=rows, columns=columns)]
        elif sharding == "row_wise":
            cuts = _cuts(table.rows, ranks)
            shards = [Shard(worker=worker, rows=cut, columns=columns) for worker, cut in enumerate(cuts)]
        elif sharding == "column_wise":
            cuts = _cuts(table.dim, ranks)
            shards = [Shard(worker=worker, rows=rows, columns=cut) for worker, cut in enumerate(cuts)]
        else:
            shards = [Shard(worker=worker, rows=rows, columns=columns) for worker in range(ranks)]
        placements.append(Placement(table=table.name, kind=sharding, shards=tuple(shards)))
    return ShardingPlan(world_size=ranks, workers_per_node=ranks, placements=tuple(placements))


def _features(shape: LookupShape) -> tuple[FeatureSpec, ...]:
    return tuple(FeatureSpec(name=f"f{number}", num_ids=shape.rows) for number in range(shape.tables))


def _model(shape: LookupShape) -> DLRMConfig:
    return DLRMConfig(dim=shape.dim, bottom=MLPConfig(layers=BOTTOM), top=MLPConfig(layers=TOP))


def table_specs(shape: LookupShape) -> list[TableSpec]:
    """The embedding tables of the benchmark."""
    return _model(shape).tables(_features(shape))


def recipe_of(shape: LookupShape) -> Recipe:
    """The recipe that our trainer runs; its data comes from memory, not from a path."""
    return Recipe(
        name="bench",
        data=DataConfig(path=Path("none"), batch_size=shape.batch),
        model=_model(shape),
        embeddings=EmbeddingsConfig(optimizer=RowWiseAdaGrad(lr=LEARNING_RATE, eps=EPS)),
        dense=AdaGradConfig(lr=LEARNING_RATE, eps=1e-10),
    )


def schema_of(shape: LookupShape) -> DatasetSchema:
    """The columns of the random samples."""
    numeric = tuple(f"n{number}" for number in range(NUM_DENSE))
    return DatasetSchema(source="bench", numeric=numeric, categorical=_features(shape), splits={})


def start_values(shape: LookupShape, name: str) -> Tensor:
    """Our start values of one table."""
    tables = [table for table in table_specs(shape) if table.name == name]
    return EmbeddingCollection(tables, seed=0).weight(name)


def _cuts(size: int, parts: int) -> list[tuple[int, int]]:
    """Ranges of about the same length, none of them empty."""
    edges = [size * part // parts for part in range(parts + 1)]
    return [(start, stop) for start, stop in itertools.pairwise(edges) if start < stop]
