"""A step of a loop of one's own: tables that update themselves, beside nn.EmbeddingBag and SparseAdam.

    python benchmarks/own_loop.py --out benchmarks/results/own-loop.json

Each candidate looks up a batch, computes a small dense model and its loss, and takes one step of Adam on the
rows and on the dense part, as a user writes it. They take turns on the same batches in one process, so that a
slow minute of the machine falls on all alike. `accumulate` is our collection with gradients that wait for
`step()`, once a batch.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import megalith as mg
from megalith.bench.runner import Timing, result, save_result
from megalith.bench.turns import take_turns

LR = 1e-3


class Samples(NamedTuple):
    """A batch: ids of all tables, feature-major, and labels."""

    values: Tensor
    offsets: Tensor
    labels: Tensor


class OwnLoop:
    """Our collection inside a user's model."""

    def __init__(self, tables: int, rows: int, dim: int, *, accumulate: bool) -> None:
        specs = [mg.TableSpec(name=f"t{n}", rows=rows, dim=dim, features=(f"f{n}",)) for n in range(tables)]
        # By name, so that the script measures versions without the option too.
        options = {"accumulate": True} if accumulate else {}
        self.emb = mg.EmbeddingCollection(specs, mg.Adam(lr=LR), seed=0, **options)
        self.model, self.optimizer = _dense(tables * dim)
        self.accumulate = accumulate

    def step(self, samples: Samples) -> dict[str, float]:
        """One step and its seconds."""
        start = perf_counter()
        logits = self.model(self.emb(samples.values, samples.offsets)).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logits, samples.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.accumulate:
            self.emb.step()
        return {"total": perf_counter() - start}


class TorchLoop:
    """The same with a bag of sparse gradients for each table."""

    def __init__(self, tables: int, rows: int, dim: int) -> None:
        torch.sparse.check_sparse_tensor_invariants.disable()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(rows, dim, mode="sum", sparse=True, include_last_offset=True)
            for _ in range(tables)
        )
        self.rows = torch.optim.SparseAdam(list(self.bags.parameters()), lr=LR)
        self.model, self.optimizer = _dense(tables * dim)

    def step(self, samples: Samples) -> dict[str, float]:
        """One step and its seconds."""
        start = perf_counter()
        values, offsets, labels = samples
        pooled = []
        for number, bag in enumerate(self.bags):
            own = offsets[number * len(labels) : (number + 1) * len(labels) + 1]
            first, last = int(own[0]), int(own[-1])
            pooled.append(bag(values[first:last], own - first))
        logits = self.model(torch.cat(pooled, dim=1)).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logits, labels)
        self.optimizer.zero_grad()
        self.rows.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.rows.step()
        return {"total": perf_counter() - start}


def _dense(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))
    return model, torch.optim.Adam(model.parameters(), LR, fused=True)


def _draw(tables: int, rows: int, batch: int, seed: int) -> Samples:
    draw = torch.Generator().manual_seed(seed)
    skewed = torch.rand(tables * batch, generator=draw) ** 3
    values = (skewed * rows).long().clamp(max=rows - 1)
    labels = torch.randint(0, 2, (batch,), generator=draw).float()
    return Samples(values, torch.arange(tables * batch + 1), labels)


def _cpu_milliseconds(timing: Timing) -> float:
    return 1000 * statistics.median(timing.cpu_seconds)


def main() -> None:
    """Measures, prints a line for each candidate, and writes a result."""
    parser = argparse.ArgumentParser(description="A step of a loop of one's own.")
    parser.add_argument("--tables", type=int, default=8)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", nargs="*", help="candidates to measure [default: all]")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    shape = given.tables, given.rows, given.dim
    makers = {
        "megalith": partial(OwnLoop, *shape, accumulate=False),
        "accumulate": partial(OwnLoop, *shape, accumulate=True),
        "torch": partial(TorchLoop, *shape),
    }
    candidates = {name: make() for name, make in makers.items() if not given.only or name in given.only}
    batches = [_draw(given.tables, given.rows, given.batch, seed) for seed in range(5)]
    steps = {name: candidate.step for name, candidate in candidates.items()}
    timings = take_turns(steps, batches, given.repeats)
    results = {}
    for name, parts in timings.items():
        timing = parts["total"]
        results[name] = timing.to_dict() | {"cpu_milliseconds": _cpu_milliseconds(timing)}
        print(f"{name:<12} {1000 * timing.median:7.2f} ms a step, {_cpu_milliseconds(timing):7.2f} ms of CPU")
    if given.out is not None:
        settings = {name: getattr(given, name) for name in ("tables", "rows", "dim", "batch", "repeats")}
        settings["threads"] = torch.get_num_threads()
        save_result(given.out, result("own loop", settings, results, None))


if __name__ == "__main__":
    main()
