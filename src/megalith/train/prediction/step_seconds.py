"""Seconds of a step with all rows in memory, measured: a few steps of the same model over smaller tables.

Tables are cut to some rows, and ids are taken modulo them: there are as many lookups as in the run, and the
same dense part. It is a model of its own; nothing of the run is touched.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.core.schema import FeatureSpec
from megalith.data.batch import Batch
from megalith.data.dataset import Dataset, DatasetSchema
from megalith.data.loader import Loader
from megalith.embeddings.memory import memory_of
from megalith.train.learner.learner import Learner, LearnerConfig

_TABLE_BYTES = 128 << 20
"""Beyond the caches of a processor."""
_MAX_SAMPLES = 8192
"""A larger batch is a multiple of this one."""
_SECONDS, _MAX_STEPS = 0.8, 8


def measure_step_seconds(config: LearnerConfig, dataset: Dataset, split: str, samples: int) -> float:
    """A step of `samples` samples in this process: about a second of trying."""
    size = max(1, min(samples, _MAX_SAMPLES, dataset.split(split).rows))
    schema = _cut(config, dataset.schema)
    counts = [feature.num_ids or 0 for feature in schema.categorical]
    with torch.random.fork_rng(devices=[]):
        learner = Learner(replace(config, memory=None, global_batch=size), schema)
        spent = []
        for batch in _batches(dataset, split, size, _MAX_STEPS + 1):
            began = time.perf_counter()
            learner.step(replace(batch, values=_modulo(batch, counts)), 1.0)
            spent.append(time.perf_counter() - began)
            if len(spent) > 2 and sum(spent) > _SECONDS:
                break
    # The first one also takes memory; whatever else runs only slows the others down.
    return min(spent[1:] or spent) * samples / size


def _cut(config: LearnerConfig, schema: DatasetSchema) -> DatasetSchema:
    """The same features with so many ids that all tables are small."""
    most = max((feature.num_ids or 1 for feature in schema.categorical), default=1)
    while most:
        features = tuple(_at_most(feature, most) for feature in schema.categorical)
        optimizer = config.embeddings.optimizer
        tables = config.embeddings.with_stores(config.model.tables(features))
        # Dynamic tables keep their bound: their ids may be any.
        cut = [table for table in tables if not table.is_dynamic]
        if memory_of(cut, [optimizer] * len(cut)).total <= _TABLE_BYTES:
            return schema.model_copy(update={"categorical": features})
        most //= 2
    raise ConfigError("The model has tables that do not depend on the ids of features.")


def _at_most(feature: FeatureSpec, ids: int) -> FeatureSpec:
    return (
        feature if feature.is_raw else feature.model_copy(update={"num_ids": min(feature.num_ids or 1, ids)})
    )


def _batches(dataset: Dataset, split: str, size: int, count: int) -> Iterator[Batch]:
    loader = Loader(dataset, (split,), size, shuffle=False, prefetch=1, threads=1)
    try:
        for number, batch in enumerate(loader, start=1):
            yield batch
            if number == count:
                return
    finally:
        loader.close()


def _modulo(batch: Batch, counts: list[int]) -> Tensor:
    """The ids of every feature modulo how many it has left; 0 leaves raw ids as they are."""
    ends = batch.offsets[:: batch.batch_size]
    modulo = torch.repeat_interleave(torch.tensor(counts), ends.diff())
    return torch.where(modulo > 0, batch.values % modulo.clamp(min=1), batch.values)
