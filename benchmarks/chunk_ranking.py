"""What it takes to rank the chunks of a pool: processor seconds and seconds of each part.

    python benchmarks/chunk_ranking.py --out benchmarks/results/chunk-ranking.json
    python benchmarks/chunk_ranking.py --rows 20000000 --share 0.1 --threads 1
    python benchmarks/chunk_ranking.py --ordered         records lie in the order of ids

Rows of one table, otherwise in no order, with one to all of their chunks live and evenly as many of each; the
budget is nine tenths of what they take. The fastest of some rounds; the last one is applied and the pool
compacted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from megalith.bench.runner import result, save_result
from megalith.ops.chunks.blocks import ChunkShape
from megalith.ops.chunks.chunked_rows import ChunkedRows
from megalith.ops.chunks.ranking import Ranking, RankingChanges, threshold
from megalith.ops.chunks.ranking_sums import RankingSettings
from megalith.ops.chunks.sketch import CandidateSketch, CandidateTable
from megalith.ops.stores.start_values import StartValues
from megalith.ops.stores.tiered_rows import PooledTable


class Clock:
    """The least seconds of each part over all rounds: (processor, clock)."""

    def __init__(self) -> None:
        self.seconds: dict[str, tuple[float, float]] = {}

    def __call__(self, name: str, run: Callable[[], Any]) -> Any:
        """Runs a part and returns what it does."""
        began = time.process_time(), time.perf_counter()
        found = run()
        taken = time.process_time() - began[0], time.perf_counter() - began[1]
        self.seconds[name] = min(self.seconds.get(name, taken), taken)
        return found


def filled(
    rows: int, share: float, dim: int, width: int, ordered: bool
) -> tuple[ChunkedRows, CandidateSketch]:
    """A pool with some of a table's rows, and candidates from among the others."""
    generator, shape = torch.Generator().manual_seed(0), ChunkShape(dim, width, first_state="row")
    pool = ChunkedRows([PooledTable(rows, StartValues(1, "table", dim, 1.0))], shape, 8 << 30)
    ids = torch.randperm(rows, generator=generator)[: int(rows * share)]
    ids = ids.sort().values if ordered else ids
    live = torch.randint(1, shape.chunks + 1, (len(ids),), generator=generator)
    masks = torch.tensor([shape.first_chunks(count) for count in range(shape.chunks + 1)])[live]
    utilities, growth = torch.rand(2, len(ids), generator=generator) + 0.01
    pool.rewrite(0, ids, masks, utilities, growth)
    pool.compact()
    sketch = CandidateSketch([CandidateTable(rows, 1 << 20)])
    absent = torch.randint(0, rows, (100_000,), generator=generator).unique()
    listed = torch.stack([torch.zeros_like(absent), absent], dim=1)
    sketch.add(listed, torch.rand(len(absent), generator=generator), 1.0)
    return pool, sketch


def measured(pool: ChunkedRows, sketch: CandidateSketch, rounds: int) -> dict[str, Any]:
    """Seconds of each part, and what was decided."""
    ranking, clock, found = Ranking(pool, sketch, RankingSettings(), [False]), Clock(), pool.statistics()
    row_bytes = sum(a * b for a, b in zip(found.records, found.row_bytes, strict=True))
    budget = row_bytes * 9 // 10
    for _ in range(rounds):
        norms = ranking.means(clock("sums", ranking.sums))
        sums = clock("score", lambda norms=norms: ranking.score(norms))
        scales = ranking.means(sums)
        key = threshold(
            lambda level, prefix, scales=scales: clock(
                f"histogram {level}", lambda: ranking.histogram(scales, level, prefix)
            ),
            budget,
        )
        counts = clock("changes", lambda scales=scales, key=key: ranking.changes(scales, key))
    decision = sum(processor for processor, _ in clock.seconds.values())
    scratch = ranking.scratch_bytes
    clock("apply", lambda: ranking.apply(scales, key))
    clock("compact", pool.compact)
    parts = {
        name: {"processor_seconds": round(processor, 4), "seconds": round(wall, 4)}
        for name, (processor, wall) in clock.seconds.items()
    }
    return {
        "parts": parts,
        "decision_processor_seconds": round(decision, 4),
        "pool_bytes": found.bytes.total,
        "scratch_bytes": scratch,
        "index": found.index_forms[0],
        "budget": budget,
        "changes": RankingChanges(*counts.tolist())._asdict(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--share", type=float, default=1.0, help="Of the rows that have a record.")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--ordered", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    pool, sketch = filled(given.rows, given.share, given.dim, given.width, given.ordered)
    results = measured(pool, sketch, given.rounds)
    for name, line in results["parts"].items():
        print(f"{name:12} {line['processor_seconds']:8.4f} s of processor {line['seconds']:8.4f} s")
    print({name: value for name, value in results.items() if name != "parts"})
    if given.out:
        settings = {name: value for name, value in vars(given).items() if name != "out"}
        save_result(given.out, result("chunk-ranking", settings, results, None))


if __name__ == "__main__":
    main()
