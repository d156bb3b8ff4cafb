"""Do predicted steps rank real plans in the right order? Twenty plans, run on processes of this machine.

The planner's own, four that treat all tables alike, and random ones. They take turns (lookup, exchange,
backward with updates, one thread a process), so that a slow moment of the machine falls on all; a turn takes
as long as its slowest rank. What counts is the order, so the correlation is Spearman's: of what was predicted
with what was measured, and of one half of the turns with the other, which says how much is noise. And the
regret: how much slower the planner's plan is than the quickest of all.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from megalith.bench.runner import result
from megalith.core.schema import TableSpec
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Cluster
from megalith.hardware.probe import probe
from megalith.sharding.plan import Kind, Placement, Shard, ShardingPlan
from megalith.sharding.planner import SearchSettings, make_plan
from megalith.sharding.planner.estimate.predict import predict_step
from megalith.sharding.planner.statistics import TableStatistics, zipf_statistics

SPEARMAN = 0.9
"""What is asked of it."""
Size = Literal["large", "small"]
_SKEW = 1.05
_BATCHES = 4
"""That take turns, as rows of a batch that was just seen lie in caches."""


@dataclass(frozen=True, slots=True)
class RankingSetting:
    """Tables as rows, columns, ids a sample; and what a step takes."""

    shapes: tuple[tuple[int, int, int], ...]
    batch: int
    most_copied_bytes: int
    """Of a table that a random plan may replicate: gradients of larger ones take longer to sum up
    than all the rest, and plans that have one are told apart too easily."""


SETTINGS: dict[Size, RankingSetting] = {
    "large": RankingSetting(
        shapes=(
            *((200_000, 64, 1), (50_000, 32, 20), (100_000, 128, 2), (5_000, 16, 1), (80_000, 48, 8)),
            *((20_000, 96, 1), (300_000, 16, 4), (1_000, 64, 30)),
        ),
        batch=8192,
        most_copied_bytes=2**23,
    ),
    # Steps of a few milliseconds, of which the calls of Python are a part.
    "small": RankingSetting(
        shapes=(
            *((50_000, 64, 1), (25_000, 32, 20), (20_000, 128, 2), (2_000, 16, 1), (40_000, 48, 8)),
            (8_000, 96, 1),
        ),
        batch=1024,
        most_copied_bytes=2**30,
    ),
}


def bench_ranking(
    ranks: int = 2,
    plans: int = 20,
    repeats: int = 16,
    seed: int = 0,
    size: Size = "large",
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Predicts and measures `plans` plans on `ranks` processes."""
    import torch.multiprocessing

    setting = SETTINGS[size]
    tables, statistics = ranked_tables(setting)
    cluster = _this_machine()
    own = make_plan(
        tables,
        cluster,
        world_size=ranks,
        global_batch=setting.batch,
        statistics=statistics,
        search=SearchSettings(seconds=3.0),
    )
    named = {"planner": own, **uniform_plans(tables, ranks, setting)}
    drawn = random_plans(tables, ranks, max(0, plans - len(named)), seed, setting)
    named |= {f"random {number}": plan for number, plan in enumerate(drawn)}
    predicted = [
        predict_step(tables, plan, cluster, global_batch=setting.batch, statistics=statistics)
        for plan in named.values()
    ]
    say(f"running {len(named)} plans on {ranks} processes")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (folder, setting, [*named.values()], repeats), ranks)
        seconds = np.load(Path(folder) / "seconds.npy")
    measured = typical_seconds(seconds)
    expected = np.array([one["step_seconds"] for one in predicted])
    results = {
        "spearman": spearman(expected, measured),
        "spearman_of_random_plans": spearman(expected[-len(drawn) :], measured[-len(drawn) :]),
        "spearman_of_halves": spearman(typical_seconds(seconds[::2]), typical_seconds(seconds[1::2])),
        "regret": float(measured[0] / measured.min()) - 1,
        "asked": SPEARMAN,
        "plans": [
            {
                "name": name,
                "kinds": [placement.kind for placement in plan.placements],
                "predicted": one,
                "seconds": float(seconds_measured),
            }
            for (name, plan), one, seconds_measured in zip(named.items(), predicted, measured, strict=True)
        ],
        "hardware": {
            **{key: value for key, value in asdict(cluster.device).items() if key != "memory"},
            "memory": [asdict(tier) for tier in cluster.device.memory],
            "links": [asdict(link) for link in (cluster.shared_memory, cluster.loopback) if link is not None],
        },
    }
    settings = {"ranks": ranks, "plans": len(named), "size": size, "batch": setting.batch, "seed": seed}
    return result("plan-ranking", settings, results, None)


def ranked_tables(setting: RankingSetting) -> tuple[list[TableSpec], dict[str, TableStatistics]]:
    """The tables of a setting, and statistics of what is looked up in them."""
    tables = [
        TableSpec(name=f"t{number}", rows=rows, dim=dim, features=(f"f{number}",))
        for number, (rows, dim, _) in enumerate(setting.shapes)
    ]
    statistics = {
        table.name: zipf_statistics(table.rows, float(length), _SKEW)
        for table, (_, _, length) in zip(tables, setting.shapes, strict=True)
    }
    return tables, statistics


def uniform_plans(
    tables: Sequence[TableSpec], ranks: int, setting: RankingSetting
) -> dict[str, ShardingPlan]:
    """All tables cut alike, on workers in turn; those too large to be copied stay whole."""
    kinds: tuple[Kind, ...] = ("table_wise", "row_wise", "column_wise", "data_parallel")
    plans = {}
    for kind in kinds:
        placements = []
        for number, table in enumerate(tables):
            copied = kind == "data_parallel" and table.weight_bytes > setting.most_copied_bytes
            placements.append(_placement(table, "table_wise" if copied else kind, ranks, number % ranks))
        plans[f"all {kind}"] = _plan(ranks, placements)
    return plans


def random_plans(
    tables: Sequence[TableSpec], ranks: int, count: int, seed: int, setting: RankingSetting
) -> list[ShardingPlan]:
    """Plans of all kinds that need no nodes, good and bad ones: each has a favourite worker and a favourite
    kind."""
    draw = np.random.default_rng(seed)
    plans = []
    for _ in range(count):
        favourite, bias = int(draw.integers(ranks)), float(draw.uniform(0, 1))
        kinds = ["table_wise", "row_wise", "column_wise", "data_parallel"]
        likely = draw.dirichlet(np.array([2.0, 0.7, 0.7, 0.4]))
        placements = []
        for table in tables:
            kind = str(draw.choice(kinds, p=likely))
            if kind == "data_parallel" and table.weight_bytes > setting.most_copied_bytes:
                kind = str(draw.choice(kinds[:3]))
            first = favourite if draw.random() < bias else int(draw.integers(ranks))
            placements.append(_placement(table, kind, ranks, first))
        plans.append(_plan(ranks, placements))
    return plans


def _plan(ranks: int, placements: Sequence[Placement]) -> ShardingPlan:
    return ShardingPlan(world_size=ranks, workers_per_node=ranks, placements=tuple(placements))


def typical_seconds(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each plan, out of [turns, plans]: medians, without what made all plans of a turn slow or quick.

    >>> typical_seconds(np.array([[1.0, 2], [2, 4], [1, 2]])).tolist()
    [1.0, 2.0]
    """
    speeds = np.median(seconds, axis=1, keepdims=True)
    typical: NDArray[np.float64] = np.median(seconds / speeds, axis=0) * np.median(speeds)
    return typical


def spearman(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Correlation of ranks.

    >>> spearman(np.array([1.0, 2, 3]), np.array([10.0, 30, 20]))
    0.5
    """
    ranks = [np.argsort(np.argsort(values)).astype(np.float64) for values in (one, other)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _placement(table: TableSpec, kind: str, ranks: int, first: int) -> Placement:
    rows, columns = (0, table.rows), (0, table.dim)
    workers = [(first + number) % ranks for number in range(ranks)]
    if kind == "table_wise":
        cells = [(rows, columns)]
    elif kind == "data_parallel":
        cells = [(rows, columns)] * ranks
    elif kind == "row_wise":
        edges = np.linspace(0, table.rows, ranks + 1).astype(int).tolist()
        cells = [((begin, end), columns) for begin, end in pairwise(edges)]
    else:
        edges = np.linspace(0, table.dim, ranks + 1).astype(int).tolist()
        cells = [(rows, (begin, end)) for begin, end in pairwise(edges)]
    shards = [
        {"worker": worker, "rows": cell[0], "columns": cell[1]}
        for worker, cell in zip(workers, cells, strict=False)
    ]
    return Placement.model_validate(
        {"table": table.name, "kind": kind, "shards": [Shard.model_validate(one) for one in shards]}
    )


def _this_machine() -> Cluster:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.yaml"
        probe(seconds=0.6).write(path)
        return catalog(path).cluster("this-machine")


def _rank(rank: int, folder: str, setting: RankingSetting, plans: list[ShardingPlan], repeats: int) -> None:
    """One process: all plans in turns; rank 0 writes the slowest rank's seconds."""
    import torch
    import torch.distributed as dist

    from megalith.embeddings.optimizers import RowWiseAdaGrad
    from megalith.sharding.runtime.collection import ShardedEmbeddingCollection

    torch.set_num_threads(1)
    _keep_memory()
    ranks, (tables, _) = plans[0].world_size, ranked_tables(setting)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    batches = [tuple(map(torch.from_numpy, _ids(setting, ranks, rank, number))) for number in range(_BATCHES)]
    sides = [ShardedEmbeddingCollection(tables, plan, RowWiseAdaGrad(lr=0.01)) for plan in plans]
    gradient = torch.ones(setting.batch // ranks, sides[0].output_dim)
    seconds = np.zeros((repeats, len(plans)))
    draw = np.random.default_rng(0)
    for turn in range(-1, repeats):
        # No plan follows the same one each time.
        for number in draw.permutation(len(plans)).tolist():
            side, begin = sides[number], 0.0
            # One that brings its tables back into caches, and one that counts.
            for step in range(2):
                dist.barrier()
                begin = perf_counter()
                side(*batches[(turn + step) % _BATCHES]).backward(gradient)
            taken = torch.tensor([perf_counter() - begin])
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            if turn >= 0:
                seconds[turn, number] = float(taken)
    if rank == 0:
        np.save(Path(folder) / "seconds.npy", seconds)
    dist.barrier()
    dist.destroy_process_group()


def _keep_memory() -> None:
    """Freed memory stays with the process, as it does when one plan is trained: twenty of them in turn would
    give back what the next one asks for again, and pay for every page."""
    trim_threshold, mmap_threshold = -1, -3
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(mmap_threshold, 2**25)
        library.mallopt(trim_threshold, 2**30)


def _ids(
    setting: RankingSetting, ranks: int, rank: int, number: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Zipf ids, hot rows first, feature after feature."""
    draw, batch = np.random.default_rng((rank, number)), setting.batch // ranks
    pieces, lengths = [], []
    for rows, _, length in setting.shapes:
        shares = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -_SKEW)
        drawn = np.searchsorted(shares, draw.random(batch * length) * shares[-1], side="right")
        pieces.append(np.minimum(drawn, rows - 1))
        lengths.append(np.full(batch, length))
    offsets = np.concatenate(([0], np.cumsum(np.concatenate(lengths))))
    return np.concatenate(pieces).astype(np.int64), offsets.astype(np.int64)
