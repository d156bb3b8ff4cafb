"""`megalith bench train --ranks N`: a training step over several processes, beside TorchRec's.

Every process runs our trainer's own step (learner, pipeline, plan) and TorchRec's on its part of the same
batches, from the same start values. Sides take turns of a few steps; all ranks begin a turn together, and its
time is that of the slowest. One process with the whole batch takes turns too, for the parallel efficiency.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor
from torch.multiprocessing.spawn import ProcessException

from megalith.bench.embedding import NUM_BATCHES, check_memory
from megalith.bench.peers import EPS, LEARNING_RATE, OURS, Shape, bytes_needed
from megalith.bench.runner import Timing, result
from megalith.bench.train import BOTTOM, NUM_DENSE, TOP, Samples, draw_samples
from megalith.core.errors import ConfigError, MegalithError
from megalith.core.schema import FeatureSpec, TableSpec
from megalith.data.batch import Batch
from megalith.data.dataset import DatasetSchema
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.optimizers import RowWiseAdaGrad
from megalith.models.dlrm.config import DLRMConfig
from megalith.models.layers.mlp import MLPConfig
from megalith.sharding.plan import Placement, Shard, ShardingPlan
from megalith.sharding.runtime.collection import ShardedEmbeddingCollection
from megalith.train.learner.dense_optimizer import AdaGradConfig
from megalith.train.learner.embeddings import EmbeddingsConfig
from megalith.train.learner.learner import Learner
from megalith.train.loaders import DataConfig
from megalith.train.pipeline import Pipeline
from megalith.train.recipe import Recipe

PEERS = ("torchrec",)
ALONE = f"{OURS}, one process"
STEPS_A_TURN = 2 * NUM_BATCHES
Sharding = Literal["table_wise", "row_wise", "column_wise", "data_parallel", "auto"]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What all processes measure together."""

    shape: Shape
    plan: ShardingPlan
    sharding: Sharding
    peers: tuple[str, ...]
    repeats: int
    threads: int

    @property
    def ranks(self) -> int:
        return self.plan.world_size


class Side(Protocol):
    """A rank of one side."""

    losses: list[Tensor]
    """Of all steps so far."""

    def ready(self, batches: Sequence[Batch]) -> None:
        """Before the clock starts: the batches of the coming turn."""

    def turn(self, num_steps: int) -> None:
        """So many steps."""


def bench_ranks(
    shape: Shape,
    ranks: int,
    sharding: Sharding,
    peers: Sequence[str],
    repeats: int = 5,
    threads: int | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Times steps over `ranks` processes of `threads` threads each (one, if not told)."""
    if shape.batch % ranks:
        raise ConfigError(
            f"--batch {shape.batch} does not share out evenly over {ranks} ranks; pass a multiple of it."
        )
    _check_peers(sharding, peers)
    sides = 2 + len(peers)
    check_memory(f"Training on {shape.tables} x {shape.rows:,} rows", sides * bytes_needed(OURS, shape))
    plan = make_plan(shape, ranks, sharding)
    settings = Settings(shape, plan, sharding, tuple(peers), repeats, threads or 1)
    say(f"training steps over {ranks} processes, {sharding}: {shape}")
    with tempfile.TemporaryDirectory() as folder:
        _spawn(settings, Path(folder))
        found = json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))
    return result("train", _described(settings), summary(settings, found), None)


def summary(settings: Settings, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What the ranks measured, as one: the time of a step is the slowest rank's."""
    shape = settings.shape
    candidates, timings = {}, {}
    for name in ranks[0]["seconds"]:
        takers = [rank for rank in ranks if name in rank["seconds"]]
        slowest = tuple(max(turn) for turn in zip(*(one["seconds"][name] for one in takers), strict=True))
        cpu = tuple(sum(turn) for turn in zip(*(one["cpu_seconds"][name] for one in takers), strict=True))
        timings[name] = timing = Timing(slowest, cpu)
        candidates[name] = {
            **timing.to_dict(),
            "samples_per_second": timing.rate(shape.batch),
            "losses": [sum(step) for step in zip(*(one["losses"][name] for one in takers), strict=True)],
        }
    ours = timings[OURS].median
    sent = {kind: sum(one["sent_bytes"].get(kind, 0) for one in ranks) for kind in ranks[0]["sent_bytes"]}
    return {
        "candidates": candidates,
        "speed_ratio": {name: one.median / ours for name, one in timings.items() if name != OURS},
        "parallel_efficiency": timings[ALONE].median / (settings.ranks * ours),
        "sent_bytes_a_step": sent,
    }


def make_plan(shape: Shape, ranks: int, sharding: Sharding) -> ShardingPlan:
    """Every table in the same way; `auto` asks our planner."""
    tables = _tables(shape)
    if sharding == "auto":
        from megalith.sharding.planner import make_plan as best_plan
        from megalith.train.sharding_plan import hosts_like_this

        return best_plan(
            tables,
            hosts_like_this(ranks, ranks),
            world_size=ranks,
            workers_per_node=ranks,
            global_batch=shape.batch,
            pipelined=True,
        )
    placements = []
    for number, table in enumerate(tables):
        rows, columns = (0, table.rows), (0, table.dim)
        if sharding == "table_wise":
            # Neighbours together: what a worker looks up for a sample is then one piece.
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


class Ours:
    """A rank of our trainer; without a plan, the one process that has all samples and tables."""

    def __init__(self, shape: Shape, plan: ShardingPlan | None) -> None:
        recipe = _recipe(shape)
        self._learner = Learner(recipe.learner_config, _schema(shape), plan)
        self._source = _Source()
        self._plan = plan
        self._pipeline: Pipeline | None = None
        self.losses: list[Tensor] = []

    @property
    def dense(self) -> torch.nn.Module:
        return self._learner.dense

    @property
    def sharded(self) -> ShardedEmbeddingCollection:
        assert isinstance(self._learner.embeddings, ShardedEmbeddingCollection)
        return self._learner.embeddings

    def ready(self, batches: Sequence[Batch]) -> None:
        self._source.given.extend(batches)
        if self._pipeline is None:
            # The thread begins with the first batch at once.
            overlap = self._plan is not None
            self._pipeline = Pipeline(self._source, self._learner.stages, overlap=overlap)
        self._pipeline.settle()

    def turn(self, num_steps: int) -> None:
        assert self._pipeline is not None
        for prepared in itertools.islice(self._pipeline, num_steps):
            loss, _ = self._learner.step(prepared.batch, 1.0, prepared.received)
            self.losses.append(loss)
        # What the last step prepared for the next turn is work of this one, as every step prepares a batch.
        self._pipeline.settle()

    def close(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()


class _Source:
    """Batches for a pipeline, as a loader gives them."""

    def __init__(self) -> None:
        self.given: list[Batch] = []

    def stream(self) -> Iterator[Batch]:
        for number in itertools.count():
            yield self.given[number]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.given.clear()


def part_of(samples: Samples, shape: Shape, rank: int, ranks: int) -> Batch:
    """A rank's samples of a batch whose bags all have as many ids."""
    size = shape.batch // ranks
    own = slice(rank * size, (rank + 1) * size)
    values = samples.values.view(shape.tables, shape.batch, shape.lookups)[:, own].flatten()
    offsets = torch.arange(0, len(values) + 1, shape.lookups)
    return Batch(samples.dense[own].contiguous(), values, offsets, samples.labels[own].contiguous())


def _run_rank(rank: int, settings: Settings, folder: Path) -> None:
    torch.set_num_threads(settings.threads)
    meet = (folder / "group").as_uri()
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=settings.ranks)
    try:
        measured = _measure(rank, settings)
        found: list[Any] = [None] * settings.ranks
        dist.all_gather_object(found, measured)
        if rank == 0:
            (folder / "result.json").write_text(json.dumps(found), encoding="utf-8")
    finally:
        dist.destroy_process_group()


def _measure(rank: int, settings: Settings) -> dict[str, Any]:
    shape = settings.shape
    samples = [draw_samples(shape, number % NUM_BATCHES) for number in range(STEPS_A_TURN)]
    ours = Ours(shape, settings.plan)
    sides: dict[str, Side] = {OURS: ours}
    if "torchrec" in settings.peers:
        from megalith.bench.torchrec_ranks import TorchRecRanks, quiet

        with quiet():
            sides["torchrec"] = TorchRecRanks(
                shape, settings.sharding, settings.ranks, ours.dense, lambda name: _start_values(shape, name)
            )
    alone = Ours(shape, None) if rank == 0 else None
    if alone is not None:
        sides[ALONE] = alone
    part = [part_of(one, shape, rank, settings.ranks) for one in samples]
    whole = [part_of(one, shape, 0, 1) for one in samples]
    # The first batches fill the pipelines, which then hold some at the start and at the end of every turn.
    for name, side in sides.items():
        side.ready(whole if name == ALONE else part)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in sides}
    names = [OURS, *settings.peers, ALONE]
    order = random.Random(0)
    for number in range(1 + settings.repeats):
        order.shuffle(names)
        for name in names:
            if name not in sides:
                # Those who have no part in a turn wait for the others.
                dist.barrier()
                dist.barrier()
                continue
            clock, cpu = _turn(sides[name], whole if name == ALONE else part)
            if number:
                seconds[name].append(clock)
                cpu_seconds[name].append(cpu)
    # Our loss is a rank's part of that of all; TorchRec's is the mean over the rank's samples.
    shares = dict.fromkeys(settings.peers, 1 / settings.ranks)
    traffic, steps = ours.sharded.traffic, ours.sharded.num_steps
    measured = {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "losses": {
            # Of the first steps: later ones have learnt the few batches by heart.
            name: [loss.item() * shares.get(name, 1) for loss in side.losses[:STEPS_A_TURN]]
            for name, side in sides.items()
        },
        "sent_bytes": {kind: round(sent / steps) for kind, sent in traffic.sent_bytes.items()},
    }
    for one in (ours, alone):
        if one is not None:
            one.close()
    return measured


def _turn(side: Side, batches: Sequence[Batch]) -> tuple[float, float]:
    """Seconds of a step, by the clock and of the processor, in a turn that all ranks begin together."""
    side.ready(batches)
    dist.barrier()
    start, cpu_start = perf_counter(), process_time()
    side.turn(len(batches))
    clock, cpu = perf_counter() - start, process_time() - cpu_start
    dist.barrier()
    return clock / len(batches), cpu / len(batches)


def _spawn(settings: Settings, folder: Path) -> None:
    # Processes that start count threads before they can be told.
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    try:
        torch.multiprocessing.spawn(_run_rank, (settings, folder), nprocs=settings.ranks)
    except ProcessException as error:
        last = str(error).strip().splitlines()[-1]
        raise MegalithError(f"Rank {error.error_index} of the benchmark ended: {last}") from error
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _check_peers(sharding: Sharding, peers: Sequence[str]) -> None:
    if "torchrec" in peers:
        from megalith.bench.torchrec_ranks import KINDS

        if sharding not in KINDS:
            raise ConfigError(
                f"TorchRec does not train {sharding} tables on the CPU; pass --sharding "
                f"{' or '.join(KINDS)}, or --peer none."
            )


def _described(settings: Settings) -> dict[str, Any]:
    shape = settings.shape
    return {
        **asdict(shape),
        "bottom": [*BOTTOM, shape.dim],
        "top": [*TOP, 1],
        "dense_features": NUM_DENSE,
        "ranks": settings.ranks,
        "sharding": settings.sharding,
        "peers": list(settings.peers),
        "repeats": settings.repeats,
        "batches": NUM_BATCHES,
        "steps_a_turn": STEPS_A_TURN,
        "threads": settings.threads,
    }


def _features(shape: Shape) -> tuple[FeatureSpec, ...]:
    return tuple(FeatureSpec(name=f"f{number}", num_ids=shape.rows) for number in range(shape.tables))


def _model(shape: Shape) -> DLRMConfig:
    return DLRMConfig(dim=shape.dim, bottom=MLPConfig(layers=BOTTOM), top=MLPConfig(layers=TOP))


def _tables(shape: Shape) -> list[TableSpec]:
    return _model(shape).tables(_features(shape))


def _recipe(shape: Shape) -> Recipe:
    return Recipe(
        name="bench",
        data=DataConfig(path=Path("none"), batch_size=shape.batch),
        model=_model(shape),
        embeddings=EmbeddingsConfig(optimizer=RowWiseAdaGrad(lr=LEARNING_RATE, eps=EPS)),
        dense=AdaGradConfig(lr=LEARNING_RATE, eps=1e-10),
    )


def _schema(shape: Shape) -> DatasetSchema:
    numeric = tuple(f"n{number}" for number in range(NUM_DENSE))
    return DatasetSchema(source="bench", numeric=numeric, categorical=_features(shape), splits={})


def _start_values(shape: Shape, name: str) -> Tensor:
    tables = [table for table in _tables(shape) if table.name == name]
    return EmbeddingCollection(tables, seed=0).weight(name)


def _cuts(size: int, parts: int) -> list[tuple[int, int]]:
    """Ranges of about the same length, none of them empty."""
    edges = [size * part // parts for part in range(parts + 1)]
    return [(start, stop) for start, stop in itertools.pairwise(edges) if start < stop]
