"""`predict_tiers`: hits, disk reads and step time of a run whose tables are beyond memory, before it starts.

    megalith.data.access_frequencies     how often ids occur: from statistics.json, or a sample of the data
    megalith.cost.row_cache              what a cache of these rows does
    megalith.ops.stores.disk_probe       what the disk usually gives, measured
    step_seconds.py                      what a step takes with all rows in memory, measured

It takes a few seconds, and a run never fails for it: what cannot be predicted is a sentence. Every rank
predicts its own caches, and all wait for the slowest.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from megalith.comm.peer_lost import PeerLostError
from megalith.comm.ranks import Ranks
from megalith.core.errors import DataError, without_controls
from megalith.core.files import write_atomic
from megalith.cost.row_cache.geometry import CacheGeometry
from megalith.cost.row_cache.prediction import predict_cache
from megalith.cost.row_cache.several import add_caches, add_ranks
from megalith.cost.row_cache.step_time import TierPrediction, predict_tier
from megalith.data.access_frequencies import cache_frequencies, table_frequencies
from megalith.data.dataset import Dataset
from megalith.embeddings.stores.base import RowCache
from megalith.embeddings.stores.settings import TieredMemory
from megalith.hardware.disk import DiskSpeed
from megalith.ops.stores.disk_probe import disk_speed
from megalith.train.learner.learner import Learner
from megalith.train.learner.memory import ranks_a_host
from megalith.train.prediction.step_seconds import measure_step_seconds
from megalith.train.recipe import Recipe
from megalith.train.run.folder import RunFolder
from megalith.train.run.records import read_prediction

_SAMPLED_VALUES = 4_000_000
"""Ids that are read where the data has no statistics: a second or two."""


class _OwnPrediction(NamedTuple):
    """What a rank expects of its caches."""

    lookups: float
    tiers: TierPrediction


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run that is about to start."""

    recipe: Recipe
    folder: RunFolder
    dataset: Dataset
    learner: Learner
    ranks: Ranks
    steps: int
    depth: int
    """Batches that are prepared while one is computed."""

    @property
    def memory(self) -> TieredMemory:
        """The budget of a rank."""
        assert self.recipe.memory is not None
        return self.recipe.memory

    @property
    def conditions(self) -> dict[str, Any]:
        """What a prediction holds for: one of others is made anew."""
        memory = self.memory.model_dump(mode="json")
        batch = self.recipe.data.batch_size
        ranks = self.ranks.world_size
        return {"memory": memory, "batch": batch, "steps": self.steps, "pipeline": self.depth, "ranks": ranks}


def predict_tiers(run: PlannedRun) -> str | None:
    """One sentence, or None where every table is whole in memory; prediction.json has the numbers.

    All ranks call it together. A resumed run keeps the prediction that it was started with.
    """
    if run.recipe.memory is None:
        run.ranks.from_first(lambda: run.folder.prediction.unlink(missing_ok=True))
        return None
    try:
        known = run.ranks.from_first(lambda: _known(run))
        if known is not None:
            return known
        disk = run.ranks.from_first(lambda: disk_speed(_on_disk(run), _engine(run.memory)))
        found = [own for own in run.ranks.from_each(lambda: _predict_own(run, disk)) if own is not None]
        if not found:
            return "Predicted: all rows stay in memory, and the disk is not read."
        together = add_ranks(found)
        return run.ranks.from_first(lambda: _write(run, together, disk))
    except PeerLostError:
        raise
    except Exception as error:
        # Whatever it is, the run itself may well succeed.
        reason = without_controls(str(error)).strip().rstrip(".") or type(error).__name__
        return f"Hits, disk reads and step time are not predicted: {reason}."


def _predict_own(run: PlannedRun, disk: DiskSpeed) -> _OwnPrediction | None:
    caches = run.learner.embeddings.caches()
    if not caches:
        return None
    recipe, world_size = run.recipe, run.ranks.world_size
    batch, splits = recipe.data.batch_size, recipe.data.train
    windows = [window for cache in caches for window in cache.tables]
    names = {window: f"{window.table.name} {window.rows}" for window in windows}
    parts = [
        window.table.model_copy(update={"name": names[window], "rows": window.rows[1] - window.rows[0]})
        for window in windows
    ]
    ranges = {names[window]: window.rows for window in windows if window.rows != (0, window.table.rows)}
    by_table = table_frequencies(run.dataset, parts, splits, _SAMPLED_VALUES, ranges=ranges)
    merged = [
        (cache, cache_frequencies(by_table, [names[window] for window in cache.tables])) for cache in caches
    ]
    predicted = [
        predict_cache(ids, _geometry(run, cache), row_bytes=cache.row_bytes, batch=batch, steps=run.steps)
        for cache, ids in merged
        if ids.num_ids
    ]
    if not predicted:
        return None
    together = add_caches(predicted)
    compute = measure_step_seconds(run.learner.config, run.dataset, splits[0], -(-batch // world_size))
    # Ranks of a machine share its disk.
    sharing = ranks_a_host(world_size)
    own_disk = disk.shared_by(sharing)
    cores = max(torch.get_num_threads(), len(os.sched_getaffinity(0)) // sharing)
    tiers = predict_tier(together, compute, own_disk, cores=cores, pipelined=run.depth > 0)
    return _OwnPrediction(together.run.lookups, tiers)


def _geometry(run: PlannedRun, cache: RowCache) -> CacheGeometry:
    memory = run.memory
    return CacheGeometry(cache.capacity, memory.policy, window=memory.ahead, in_flight=run.depth + 1)


def _on_disk(run: PlannedRun) -> Path:
    """The folder of rows, or the nearest one above it that is there already."""
    folder = run.folder.rows(run.memory).absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def _engine(memory: TieredMemory) -> str:
    return "threads" if memory.engine == "threads" else "io_uring"


def _known(run: PlannedRun) -> str | None:
    """The sentence of an earlier start under the same conditions."""
    try:
        stored = read_prediction(run.folder.prediction) if run.folder.prediction.exists() else {}
    except DataError:
        return None
    return str(stored["sentence"]) if stored.get("conditions") == run.conditions else None


def _write(run: PlannedRun, tiers: TierPrediction, disk: DiskSpeed) -> str:
    sentence = f"Predicted: {str(tiers)[0].lower()}{str(tiers)[1:]}"
    if run.steps > run.recipe.train.checkpoint_every:
        sentence += " Checkpoints on the way keep older files too, which is not predicted."
    if run.ranks.world_size > 1:
        sentence += " The exchange between ranks comes on top."
    content = {
        **asdict(tiers),
        "sentence": sentence,
        "disk": disk.to_dict(),
        "conditions": run.conditions,
    }
    write_atomic(run.folder.prediction, json.dumps(content, indent=1) + "\n")
    return sentence
