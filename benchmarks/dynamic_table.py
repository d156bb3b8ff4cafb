"""What a step takes with dynamic tables, beside the same step with static tables of the same rows.

    python benchmarks/dynamic_table.py --out benchmarks/results/dynamic-table.json
    python benchmarks/dynamic_table.py --rows 30000 --rounds 40 --threads 1 --clock thread

26 tables, batches of 2,048, ids by Zipf's law. Static tables read row numbers, dynamic ones the same rows as
ids all over 64 bits, resolved a batch ahead as the pipeline of a run does (`direct`: not ahead). Steps take
turns, in one process, on the same batches; the median of each, and the median ratio of neighbours. `hits`:
every id has its row. `turnover`: dynamic tables have rows for a part of the ids, so ids come and go, which a
static table does not have to do.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from dynamic_ids import scattered

import megalith as mg
from megalith.bench.runner import result, save_result
from megalith.core.schema import FeatureSpec
from megalith.models.base import ModelInputs
from megalith.models.dlrm.config import DLRMConfig
from megalith.models.layers.mlp import MLPConfig
from megalith.ops.ids.policies import bound_for

TABLES, DENSE = 26, 13
SKEW = 1.05


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.threads)
    results = []
    for dim in given.dims:
        for model in ("embedding", "dlrm"):
            for share in (1.0, given.share):
                results.append(compare(given, dim, model, share))
                print(results[-1], flush=True)
    settings = {key: value for key, value in vars(given).items() if key != "out"}
    if given.out is not None:
        save_result(given.out, result("dynamic-table", settings, {"steps": results}, None))


def compare(given: argparse.Namespace, dim: int, model: str, share: float) -> dict[str, Any]:
    """Times of both kinds of tables for a dim and a model; dynamic ones have rows for a share of the ids."""
    batches = [draw(given, seed) for seed in range(given.batches)]
    bound = bound_for(given.rows) if share == 1.0 else max(64, int(given.rows * share))
    store = {"kind": "dynamic", "bound": bound}
    candidates = {
        "static": TrainedTables(given, dim, model, batches, None),
        "dynamic": TrainedTables(given, dim, model, batches, store),
        "direct": TrainedTables(given, dim, model, batches, store, ahead=False),
    }
    for name in ("dynamic", "direct"):
        fill(given, candidates[name].tables)
    clock = time.thread_time if given.clock == "thread" else time.perf_counter
    spent: dict[str, list[float]] = {name: [] for name in candidates}
    before = candidates["dynamic"].tables.dynamic_counts()
    for number in range(given.rounds + given.warm):
        for name in list(candidates)[:: 1 if number % 2 else -1]:
            began = clock()
            candidates[name].step(number)
            if number >= given.warm:
                spent[name].append(clock() - began)
    counts = candidates["dynamic"].tables.dynamic_counts()
    assert counts is not None
    assert before is not None
    counted = counts.since(before)
    found: dict[str, Any] = {"dim": dim, "model": model, "ids": "hits" if share == 1.0 else "turnover"}
    found |= {f"{name}_ms": round(1000 * median(each), 3) for name, each in spent.items()}
    for name in ("dynamic", "direct"):
        ratios = [own / other for own, other in zip(spent[name], spent["static"], strict=True)]
        found[f"{name}_ratio"] = round(median(ratios), 3)
    steps = given.rounds + given.warm
    return {
        **found,
        "evicted_a_step": round(counted.evicted / steps, 1),
        "hit_rate": round(counted.hits / counted.lookups, 4),
    }


class TrainedTables:
    """Tables with a model over them, and batches."""

    def __init__(
        self,
        given: argparse.Namespace,
        dim: int,
        model: str,
        batches: list[np.ndarray],
        store: Any,
        *,
        ahead: bool = True,
    ) -> None:
        self.runs_ahead = ahead and store is not None
        specs = [
            mg.TableSpec(name=f"t{n}", rows=given.rows, dim=dim, features=(f"f{n}",), store=store)
            for n in range(TABLES)
        ]
        self.tables = mg.EmbeddingCollection(specs, mg.RowWiseAdaGrad(lr=0.01))
        self.values = [torch.from_numpy((scattered(ids) if store else ids).reshape(-1)) for ids in batches]
        self.offsets = torch.arange(TABLES * given.batch + 1)
        self.dense = torch.randn(given.batch, DENSE, generator=torch.Generator().manual_seed(0))
        self.labels = (torch.rand(given.batch, generator=torch.Generator().manual_seed(1)) < 0.25).float()
        self.gradient = torch.full((given.batch, TABLES * dim), 1e-3)
        self.thread, self.ahead = ThreadPoolExecutor(1), None
        self.model = self.optimizer = None
        if model == "dlrm":
            torch.manual_seed(0)
            features = tuple(FeatureSpec(name=f"f{n}", num_ids=given.rows) for n in range(TABLES))
            config = DLRMConfig(dim=dim, bottom=MLPConfig(layers=(256, 64)), top=MLPConfig(layers=(256, 128)))
            self.model = config.build(ModelInputs(DENSE, features))
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def prepare(self, number: int) -> Any:
        """What the pipeline of a run does ahead, in a thread of its own."""
        return self.tables.resolve(
            self.tables.exchange(self.values[number % len(self.values)], self.offsets), trains=True, wait=True
        )

    def step(self, number: int) -> None:
        """A step of training on a batch; one that is resolved ahead where there is something to gain."""
        if not self.runs_ahead:
            out = self.tables(self.values[number % len(self.values)], self.offsets)
        else:
            resolved = (self.ahead or self.thread.submit(self.prepare, number)).result()
            self.ahead = self.thread.submit(self.prepare, number + 1)
            out = self.tables.finish_lookup(self.tables.start_lookup(resolved)).pooled
        if self.model is None:
            out.backward(self.gradient)
            return
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(self.dense, out)
        torch.nn.functional.binary_cross_entropy_with_logits(logits, self.labels).backward()
        self.optimizer.step()


def fill(given: argparse.Namespace, tables: mg.EmbeddingCollection) -> None:
    """Every id once, the frequent ones last."""
    for ids in np.array_split(np.arange(given.rows)[::-1], max(1, given.rows // 4096)):
        values = torch.from_numpy(np.tile(scattered(np.ascontiguousarray(ids)), TABLES))
        tables(values, torch.arange(len(values) + 1))


def draw(given: argparse.Namespace, seed: int) -> np.ndarray:
    """int64 [tables, batch]: ranks by Zipf's law below `rows`."""
    generator = np.random.default_rng(seed)
    mass = np.arange(1, given.rows + 1, dtype=np.float64) ** -SKEW
    edges = np.cumsum(mass / mass.sum())
    drawn = np.searchsorted(edges, generator.random((TABLES, given.batch)))
    return np.minimum(drawn, given.rows - 1).astype(np.int64)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--rows", type=int, default=100_000, help="ids of each table")
    parser.add_argument("--share", type=float, default=0.5, help="of the ids, those with a row in `turnover`")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--batches", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--warm", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=["wall", "thread"], default="wall", help="thread: that computes")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
