"""Does the planner's estimate rank real plans as a stopwatch does?

    python benchmarks/plan_ranking.py --out benchmarks/results/plan-ranking.json

Twenty plans of one model, drawn from a fixed seed, run as real processes of one thread each on this machine;
the planner predicts each from a description of the machine that `hardware.probe` measures at the start. What
is compared is the embedding part of a step, forward and backward, from when all ranks begin until the last
one is done. Plans take turns, round after round; of each the median over rounds counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from megalith.bench.runner import result, save_result
from megalith.core.schema import TableSpec
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Cluster
from megalith.hardware.probe import probe
from megalith.sharding.delivery import generated_batch
from megalith.sharding.plan import Placement, Shard, ShardingPlan
from megalith.sharding.planner import make_plan
from megalith.sharding.planner.predict import predict_step
from megalith.sharding.planner.statistics import TableStatistics, zipf_statistics

GLOBAL_BATCH = 6144
BATCHES = 3
MODEL = (
    # rows, dim, ids a sample, Zipf exponent
    (200_000, 64, 20, 1.05),
    (100_000, 32, 10, 1.05),
    (60_000, 128, 5, 0.9),
    (50_000, 16, 30, 1.05),
    (20_000, 64, 2, 0.8),
    (150_000, 64, 1, 0.6),
    (5_000, 32, 5, 1.05),
    (1_000, 16, 10, 1.05),
)
"""About 83 ids a sample: 510,000 lookups and 416 columns a step, 140 MB of weights."""


class Drawn(NamedTuple):
    """A plan and what it is called."""

    name: str
    plan: ShardingPlan


def model() -> tuple[list[TableSpec], dict[str, TableStatistics]]:
    tables = [
        TableSpec(name=f"t{number}", rows=rows, dim=dim, features=(f"f{number}",))
        for number, (rows, dim, _, _) in enumerate(MODEL)
    ]
    traffic = {
        table.name: zipf_statistics(rows, float(lookups), skew)
        for table, (rows, _, lookups, skew) in zip(tables, MODEL, strict=True)
    }
    return tables, traffic


def place(
    table: TableSpec,
    kind: str,
    traffic: TableStatistics,
    world: int,
    per_node: int,
    first: int,
    weight: float = 0.0,
) -> Placement:
    """A table cut as `kind` says, from worker (or node) `first` on; `weight` as in `even_cut`."""
    rows, columns = [(0, table.rows)], [(0, table.dim)]
    nodes = world // per_node
    inside = [first % nodes * per_node + number for number in range(per_node)]
    everyone = [(first + number) % world for number in range(world)]

    def cut(parts: int) -> list[tuple[int, int]]:
        edges = traffic.even_cut(parts, weight).tolist()
        return list(itertools.pairwise(edges))

    def slices(parts: int) -> list[tuple[int, int]]:
        edges = [table.dim * number // parts for number in range(parts + 1)]
        return list(itertools.pairwise(edges))

    if kind == "data_parallel":
        cells = [(worker, rows[0], columns[0]) for worker in range(world)]
    elif kind == "row_wise":
        cells = [(w, r, columns[0]) for w, r in zip(range(world), cut(world), strict=True)]
    elif kind == "table_row":
        cells = [(w, r, columns[0]) for w, r in zip(inside, cut(per_node), strict=True)]
    elif kind == "column_wise":
        cells = [(w, rows[0], c) for w, c in zip(everyone, slices(world), strict=True)]
    elif kind == "table_column":
        cells = [(w, rows[0], c) for w, c in zip(inside, slices(per_node), strict=True)]
    else:
        cells = [(first % world, rows[0], columns[0])]
        kind = "table_wise"
    shards = tuple(Shard(worker=w, rows=r, columns=c) for w, r, c in cells)
    return Placement.model_validate({"table": table.name, "kind": kind, "shards": shards})


def draw_plans(cluster: Cluster) -> list[Drawn]:
    """Twenty: the planner's, uniform ones, lopsided ones, and random mixtures on 2, 3 and 4 workers."""
    tables, traffic = model()

    def plan(world: int, per_node: int, placements: list[Placement]) -> ShardingPlan:
        return ShardingPlan(world_size=world, workers_per_node=per_node, placements=tuple(placements))

    def all_of(kind: str, weight: float = 0.0) -> ShardingPlan:
        return plan(2, 2, [place(t, kind, traffic[t.name], 2, 2, n, weight) for n, t in enumerate(tables)])

    def whole(workers: list[int], copied: int = 0, world: int = 2) -> ShardingPlan:
        """Whole tables on these workers, the last `copied` ones everywhere."""
        kinds = ["table_wise"] * (len(tables) - copied) + ["data_parallel"] * copied
        return plan(
            world,
            world,
            [
                place(t, kind, traffic[t.name], world, world, worker)
                for t, kind, worker in zip(tables, kinds, workers, strict=True)
            ],
        )

    found = [
        Drawn("all tables on one worker", whole([0] * 8)),
        Drawn("whole tables in turn", whole([0, 1] * 4)),
        Drawn("whole tables, the two largest apart from the rest", whole([0, 1, 0, 1, 1, 1, 1, 1])),
        Drawn("whole tables, three quarters on one", whole([0, 0, 1, 0, 0, 0, 1, 1])),
        Drawn("whole tables, small ones copied", whole([0, 1, 1, 1, 0, 0, 0, 0], copied=2)),
        Drawn("rows in equal numbers", all_of("row_wise", 0.0)),
        Drawn("rows by lookups", all_of("row_wise", 0.95)),
        Drawn("columns in halves", all_of("column_wise")),
        Drawn(
            "planner",
            make_plan(tables, cluster, world_size=2, workers_per_node=2, global_batch=GLOBAL_BATCH,
                      statistics=traffic, seconds=2.0),
        ),
        Drawn(
            "greedy",
            make_plan(tables, cluster, world_size=2, workers_per_node=2, global_batch=GLOBAL_BATCH,
                      statistics=traffic, algorithm="greedy", improve=False, seconds=2.0),
        ),
    ]  # fmt: skip
    for number in range(10):
        dice = random.Random(number)
        world, per_node = [(2, 2), (2, 2), (2, 2), (2, 2), (2, 2), (2, 2), (3, 3), (3, 3), (4, 4), (4, 4)][
            number
        ]
        placements = []
        for table in tables:
            kinds = ["table_wise", "table_wise", "table_wise", "row_wise", "column_wise"]
            if table.rows <= 20_000:
                kinds.append("data_parallel")
            if per_node < world:
                kinds += ["table_row", "table_column"]
            kind = dice.choice(kinds)
            # Every second mixture leans to worker 0.
            first = dice.choice([0, 0, dice.randrange(world)]) if number % 2 else dice.randrange(world)
            weight = dice.choice([0.0, 0.5, 0.95])
            placements.append(place(table, kind, traffic[table.name], world, per_node, first, weight))
        found.append(Drawn(f"mixture {number} on {world}", plan(world, per_node, placements)))
    return found


def _rank(pipe: Connection, rank: int, world: int, meet: str, plans: dict[int, ShardingPlan]) -> None:
    """One rank: builds its part of every plan, then runs steps of the one that it is told."""
    import torch
    import torch.distributed as dist

    from megalith.embeddings.optimizers import RowWiseAdaGrad
    from megalith.sharding.runtime.collection import ShardedEmbeddingCollection

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    tables, traffic = model()
    batches = []
    for seed in range(BATCHES):
        own = GLOBAL_BATCH * (rank + 1) // world - GLOBAL_BATCH * rank // world
        values, offsets = generated_batch(tables, traffic, own, 100 * seed + rank)
        batches.append((torch.from_numpy(values), torch.from_numpy(offsets)))
    gradient = torch.randn(own, sum(table.output_dim for table in tables)) / GLOBAL_BATCH
    held = {
        number: ShardedEmbeddingCollection(tables, plan, RowWiseAdaGrad(lr=0.01), seed=0)
        for number, plan in plans.items()
    }
    pipe.send("ready")
    while (told := pipe.recv()) is not None:
        number, steps = told
        emb, taken = held[number], []
        for step in range(steps):
            values, offsets = batches[step % BATCHES]
            dist.barrier()
            start = time.perf_counter()
            received = emb.receive(emb.send(values, offsets))
            arrived = time.perf_counter()
            out = emb.lookup(received)
            looked_up = time.perf_counter()
            out.backward(gradient)
            end = time.perf_counter()
            taken.append((arrived - start, looked_up - arrived, end - looked_up, end - start))
        pipe.send(taken)
    dist.destroy_process_group()


class Ranks:
    """Processes of one world size, idle until told to run a plan."""

    def __init__(self, world: int, plans: dict[int, ShardingPlan], folder: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(world):
            ours, theirs = context.Pipe()
            meet = str(Path(folder) / f"meet-{world}")
            process = context.Process(target=_rank, args=(theirs, rank, world, meet, plans), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)
        for pipe in self.pipes:
            assert pipe.recv() == "ready"

    def run(self, number: int, steps: int) -> np.ndarray[Any, Any]:
        """[steps, parts]: input, forward, backward and all of it, at the slowest rank."""
        for pipe in self.pipes:
            pipe.send((number, steps))
        return np.array([pipe.recv() for pipe in self.pipes]).max(axis=0)

    def stop(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(20)


def spearman(one: list[float], other: list[float]) -> float:
    """Correlation of ranks; there are no ties among seconds."""
    left, right = (np.argsort(np.argsort(values)).astype(np.float64) for values in (one, other))
    return float(np.corrcoef(left, right)[0, 1])


def measure(plans: list[Drawn], rounds: int, steps: int) -> list[dict[str, float]]:
    """Median seconds of every plan."""
    worlds = sorted({drawn.plan.world_size for drawn in plans})
    taken: list[list[Any]] = [[] for _ in plans]
    with tempfile.TemporaryDirectory() as folder:
        ranks = {
            world: Ranks(
                world, {n: one.plan for n, one in enumerate(plans) if one.plan.world_size == world}, folder
            )
            for world in worlds
        }
        order = list(range(len(plans)))
        dice = random.Random(0)
        for number in range(1 + rounds):
            dice.shuffle(order)
            for which in order:
                # The first step of a turn finds other plans' rows in the caches.
                seconds = ranks[plans[which].plan.world_size].run(which, 1 + steps)[1:]
                if number:
                    taken[which].append(np.median(seconds, axis=0))
            print(f"round {number} of {rounds}", file=sys.stderr)
        for one in ranks.values():
            one.stop()
    names = ("input_seconds", "forward_seconds", "backward_seconds", "step_seconds")
    return [
        dict(zip(names, np.median(np.array(some), axis=0).tolist(), strict=True))
        | {"spread": float(np.ptp([one[3] for one in some]) / statistics.median([one[3] for one in some]))}
        for some in taken
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--hardware", type=Path, help="a description made before, instead of probing")
    parser.add_argument("--measured", type=Path, help="predict what this result measured, without running it")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        described = options.hardware or Path(folder) / "this-machine.yaml"
        if options.hardware is None:
            probe().write(described)
        text = described.read_text(encoding="utf-8")
        cluster = catalog(described).cluster("this-machine")
        plans = draw_plans(cluster)
        if options.measured is None:
            measured = measure(plans, options.rounds, options.steps)
        else:
            known = json.loads(options.measured.read_text(encoding="utf-8"))["results"]["plans"]
            measured = [one["measured"] for one in known]
            plans = [Drawn(one["plan"], ShardingPlan.model_validate(one["placements"])) for one in known]
    tables, traffic = model()
    rows = []
    for drawn, seconds in zip(plans, measured, strict=True):
        predicted = predict_step(tables, drawn.plan, cluster, global_batch=GLOBAL_BATCH, statistics=traffic)
        placements = drawn.plan.model_dump(mode="json", exclude={"estimate"})
        rows.append(
            {"plan": drawn.name, "measured": seconds, "predicted": predicted, "placements": placements}
        )
    seen = [row["measured"]["step_seconds"] for row in rows]
    expected = [row["predicted"]["step_seconds"] for row in rows]
    correlation = spearman(seen, expected)
    for row in sorted(rows, key=lambda row: row["measured"]["step_seconds"]):
        real, told = row["measured"], row["predicted"]
        parts = " ".join(
            f"{name} {1e3 * real[f'{name}_seconds']:5.1f}" for name in ("input", "forward", "backward")
        )
        phases = " ".join(
            f"{name} {1e3 * told[name]:5.1f}" for name in ("input", "lookup", "exchange", "update")
        )
        print(
            f"{row['plan']:52s} {1e3 * real['step_seconds']:6.1f} ms ({parts}; spread {real['spread']:.0%}) "
            f"predicted {1e3 * told['step_seconds']:6.1f} ({phases})"
        )
    print(f"Spearman {correlation:.3f} over {len(rows)} plans")
    content = result(
        "plan-ranking",
        {"global_batch": GLOBAL_BATCH, "model": MODEL, "rounds": options.rounds, "steps": options.steps,
         "hardware": text},
        {"spearman": correlation, "plans": rows},
        None,
    )  # fmt: skip
    if options.out is not None:
        save_result(options.out, content)


if __name__ == "__main__":
    main()
