"""Chunked rows against whole ones: forward and backward pass of 26 tables, with what finding the rows takes.

    python benchmarks/chunked_rows.py --out benchmarks/results/chunked-rows.json
    python benchmarks/chunked_rows.py --width 4 --pruned 0.9375 --parts      seconds of each part of a step

Tables have a tenth of Criteo's rows, ids fall as rank ** -1.2 in every table, and hot ids lie anywhere. Of
the chunks as many live as the share that is pruned leaves: those of the highest frequency / position in the
row, tables of fewer than 1,000 rows whole. Candidates take turns; ratios are of the seconds of whole rows to
those of chunked rows in the same round.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megalith.bench.runner import Timing, interleave, result, save_result
from megalith.data.synth.calibrate import CRITEO_CARDINALITIES
from megalith.ops.chunks.blocks import ChunkShape
from megalith.ops.chunks.chunked_rows import ChunkedRows, ResolvedSlots
from megalith.ops.chunks.steps import ChunkStep
from megalith.ops.embedding.descriptors import LookupBatch, LookupDescriptor, OutputGradients
from megalith.ops.embedding.native_tables import NativeTables, allocate_table
from megalith.ops.optimizer.steps import OPTIMIZER_KINDS, OptimizerStep
from megalith.ops.stores.start_values import StartValues, start_values_
from megalith.ops.stores.tiered_rows import PooledTable

SKEW, DIM, BATCH, NUM_BATCHES = 1.2, 64, 2048, 8
SMALL_ROWS = 1000
"""Tables with fewer keep all their chunks."""


@dataclass(frozen=True)
class Workload:
    """The tables and the batches that all candidates run."""

    rows: tuple[int, ...]
    orders: tuple[Tensor, ...]
    """The ids of each table, the most frequent first."""
    values: tuple[Tensor, ...]
    """int32 [tables * BATCH] of each batch."""

    @cached_property
    def offsets(self) -> Tensor:
        """One id a bag."""
        return torch.arange(len(self.rows) * BATCH + 1)

    @cached_property
    def gradient(self) -> Tensor:
        """[BATCH, tables * DIM]"""
        return torch.randn(BATCH, len(self.rows) * DIM, generator=torch.Generator().manual_seed(1))

    def descriptors(self, layout: int) -> Tensor:
        """One lookup a table."""
        lookups = [
            LookupDescriptor(table, rows, DIM, 0, 0, table, table * DIM, -1, -1, layout)
            for table, rows in enumerate(self.rows)
        ]
        return torch.tensor(lookups)


def make_workload(scale: int) -> Workload:
    """A `scale`-th of Criteo's rows."""
    generator = np.random.default_rng(0)
    rows = tuple(max(3, count // scale) for count in CRITEO_CARDINALITIES)
    orders = tuple(torch.from_numpy(generator.permutation(count)) for count in rows)
    batches = []
    for _ in range(NUM_BATCHES):
        ids = []
        for count, order in zip(rows, orders, strict=True):
            shares = np.cumsum(np.arange(1.0, count + 1) ** -SKEW)
            ranks = np.searchsorted(shares, generator.random(BATCH) * shares[-1])
            ids.append(order[torch.from_numpy(ranks.clip(max=count - 1))])
        batches.append(torch.cat(ids).int())
    return Workload(rows, orders, tuple(batches))


def live_masks(workload: Workload, shape: ChunkShape, pruned: float) -> list[Tensor]:
    """Masks by rank of each table: the chunks of the highest frequency / position, over all tables."""
    scores = []
    for rows in workload.rows:
        frequency = torch.arange(1.0, rows + 1, dtype=torch.float64) ** -SKEW
        frequency /= frequency.sum()
        if rows < SMALL_ROWS:
            frequency += 1e6
        scores.append(frequency[:, None] / torch.arange(1, shape.chunks + 1))
    flat = torch.cat([one.flatten() for one in scores])
    kept = max(1, round(len(flat) * (1 - pruned)))
    threshold = flat.kthvalue(len(flat) - kept + 1).values
    return [((one >= threshold).long() << torch.arange(shape.chunks)).sum(dim=1) for one in scores]


class WholeRows:
    """Tables of whole rows, row-wise AdaGrad."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        weights = [
            start_values_(allocate_table(rows, DIM, torch.float32), StartValues(1, f"t{table}", DIM, 0.1))
            for table, rows in enumerate(workload.rows)
        ]
        states = [torch.zeros(rows) for rows in workload.rows]
        self.tables = NativeTables(weights, states, [torch.zeros(0)] * len(weights))
        self.descriptors = workload.descriptors(0)
        self.bytes = sum(
            4 * (one.numel() + state.numel()) for one, state in zip(weights, states, strict=True)
        )
        self.steps, self.rounding, self.gradient = *settings_of(workload), workload.gradient

    def find(self, values: Tensor) -> Tensor:
        """Ids are rows."""
        return values

    def forward(self, found: Tensor) -> Tensor:
        """Pooled vectors."""
        self.batch = LookupBatch(found, self.workload.offsets, None, len(self.workload.rows))
        return self.tables.forward(self.descriptors, self.batch, DIM * len(self.workload.rows), torch.float32)

    def backward(self) -> None:
        """The update."""
        gradients = OutputGradients(self.gradient)
        self.tables.backward_(self.steps, self.descriptors, self.batch, gradients, self.rounding)


class ChunkedTables:
    """The same rows with some of their chunks."""

    def __init__(self, workload: Workload, width: int, pruned: float, scored: bool) -> None:
        self.workload = workload
        shape = ChunkShape(DIM, width, first_state="row")
        pooled = [
            PooledTable(rows, StartValues(1, f"t{table}", DIM, 0.1))
            for table, rows in enumerate(workload.rows)
        ]
        self.pool = ChunkedRows(pooled, shape, capacity_bytes=8 << 30)
        masks = live_masks(workload, shape, pruned)
        for table, (order, own) in enumerate(zip(workload.orders, masks, strict=True)):
            by_id = torch.empty_like(own)
            by_id[order] = own
            ids = by_id.nonzero().view(-1)
            self.pool.rewrite(table, ids, by_id[ids])
        self.pool.compact()
        empty = [torch.zeros(0)] * len(pooled)
        self.tables = NativeTables(empty, empty, empty, pools=[self.pool] * len(pooled))
        self.descriptors = workload.descriptors(1)
        first = torch.arange(len(pooled)) * BATCH
        self.lookups = torch.stack([torch.arange(len(pooled)), first, first + BATCH], dim=1)
        self.steps, self.rounding, self.gradient = *settings_of(workload), workload.gradient
        self.utility_weight = 1.0 if scored else 0.0
        self.bytes = self.pool.statistics().bytes.total

    def find(self, values: Tensor) -> ResolvedSlots:
        """Slots of ids."""
        self.found = self.pool.resolve(self.lookups, values, trains=True)
        return self.found

    def forward(self, found: ResolvedSlots) -> Tensor:
        """Pooled vectors."""
        self.batch = LookupBatch(found.slots, self.workload.offsets, None, len(self.workload.rows))
        return self.tables.forward(self.descriptors, self.batch, DIM * len(self.workload.rows), torch.float32)

    def backward(self) -> None:
        """The update, with utilities."""
        norms = torch.empty(len(self.found.absent))
        steps = [ChunkStep(self.utility_weight, absent_norms=norms)] * len(self.workload.rows)
        gradients = OutputGradients(self.gradient)
        self.tables.backward_(self.steps, self.descriptors, self.batch, gradients, self.rounding, steps)


def settings_of(workload: Workload) -> tuple[Tensor, Tensor]:
    """Row-wise AdaGrad for every table, and nothing to round."""
    step = OptimizerStep(OPTIMIZER_KINDS.index("rowwise_adagrad"), lr=0.01, eps=1e-8)
    return torch.tensor([step] * len(workload.rows)), torch.zeros(len(workload.rows), 3, dtype=torch.int64)


def whole_step(candidate: Any, workload: Workload) -> Callable[[], None]:
    """All batches through one candidate."""

    def run() -> None:
        for values in workload.values:
            candidate.forward(candidate.find(values))
            candidate.backward()

    return run


def parts_of_steps(candidate: Any, workload: Workload) -> dict[str, Callable[[], None]]:
    """Each part of a step alone, over all batches."""
    found = [candidate.find(values) for values in workload.values]

    def forward() -> None:
        for one in found:
            candidate.forward(one)

    def find() -> None:
        for values in workload.values:
            candidate.find(values)

    def backward() -> None:
        for one in found:
            candidate.found = one
            candidate.batch = candidate.batch._replace(values=getattr(one, "slots", one))
            candidate.backward()

    return {"find": find, "forward": forward, "backward": backward}


def compared(timings: dict[str, Timing]) -> dict[str, Any]:
    """Ratios of whole rows to each other candidate, round by round."""
    whole = timings["whole"]
    lines = {}
    for name, timing in timings.items():
        ratios = [ours / theirs for ours, theirs in zip(whole.seconds, timing.seconds, strict=True)]
        cpu = [ours / theirs for ours, theirs in zip(whole.cpu_seconds, timing.cpu_seconds, strict=True)]
        lines[name] = {
            "rate_over_whole": statistics.median(ratios),
            "rate_over_whole_by_processor_time": statistics.median(cpu),
            "range": [min(ratios), max(ratios)],
            "milliseconds_a_step": 1e3 * timing.median / NUM_BATCHES,
        }
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--pruned", type=float, nargs="+", default=[0.0, 0.5, 0.9375])
    parser.add_argument("--scale", type=int, default=10, help="Criteo's rows divided by this.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--unscored", action="store_true", help="Leave utilities as they are.")
    parser.add_argument("--parts", action="store_true", help="Print the seconds of each part of a step.")
    given = parser.parse_args()
    workload = make_workload(given.scale)
    candidates: dict[str, Any] = {"whole": WholeRows(workload)}
    for pruned in given.pruned:
        tables = ChunkedTables(workload, given.width, pruned, not given.unscored)
        candidates[f"{pruned:.2%} pruned"] = tables
    steps = {name: whole_step(one, workload) for name, one in candidates.items()}
    lines = compared(interleave(steps, given.rounds, warmup=2))
    for name, line in lines.items():
        line["bytes"] = candidates[name].bytes
        line["absent_share"] = float(
            np.mean(
                [
                    float((getattr(candidates[name].find(values), "slots", values) < 0).float().mean())
                    for values in workload.values
                ]
            )
        )
        print(name, line)
    if given.parts:
        parts = {
            f"{name}, {part}": run
            for name, one in candidates.items()
            for part, run in parts_of_steps(one, workload).items()
        }
        for name, timing in interleave(parts, given.rounds, warmup=2).items():
            print(f"{name}: {1e3 * timing.median / NUM_BATCHES:.3f} ms")
    if given.out:
        settings = {
            "width": given.width,
            "scale": given.scale,
            "dim": DIM,
            "batch": BATCH,
            "skew": SKEW,
            "rounds": given.rounds,
            "scored": not given.unscored,
            "threads": torch.get_num_threads(),
        }
        save_result(given.out, result("chunked rows", settings, lines, None))


if __name__ == "__main__":
    main()
