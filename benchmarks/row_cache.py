"""What is predicted of row caches, against real pools: hits, reads, writes, bytes on disk, seconds of a step.

    python benchmarks/row_cache.py --workdir /tmp/rows --out benchmarks/results/row-cache.json
    python benchmarks/row_cache.py --workdir /tmp/rows --costs      processor seconds of this machine

Streams of three skews (1% of the rows take 91%, 52% and 13% of the accesses) run through pools of several
sizes under every policy, rows of 64 floats with one number of state. Nothing is computed between batches, so
that a step is what resolving it takes: finding rows, reading and writing them. Hits and rows are counts and
do not depend on the machine; seconds want a machine at rest. `sampled` are predictions from the first 2% of
the stream, with ids that it lacks estimated.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from megalith.bench.runner import result, save_result
from megalith.cost.row_cache.frequencies import AccessFrequencies, zipf_frequencies
from megalith.cost.row_cache.geometry import CacheGeometry
from megalith.cost.row_cache.prediction import predict_cache
from megalith.cost.row_cache.step_time import ResolveCosts, predict_tier
from megalith.data.unseen_ids import with_unseen_ids
from megalith.hardware.disk import DiskSpeed
from megalith.hardware.machine import usable_cores
from megalith.ops.stores.disk_probe import measure_disk
from megalith.ops.stores.start_values import StartValues
from megalith.ops.stores.tiered_rows import DiskSettings, PooledTable, PoolStatistics, TieredRows

SKEWS = {"criteo": 1.2, "middle": 0.9, "gowalla": 0.56}
POLICIES = (("lru", 0), ("lfu", 0), ("lookahead", 2), ("lookahead", 8), ("lookahead", 32))
CACHES = (0.02, 0.1, 0.3)
"""Rows in memory, of all rows."""
DIM = 64
SAMPLED = 0.02


@dataclass(frozen=True)
class Stream:
    """Batches of one table whose ids fall as rank ** -skew."""

    rows: int
    skew: float
    batch: int
    steps: int

    def ids(self) -> Iterator[torch.Tensor]:
        """One batch after the other, the same every time."""
        shares = np.cumsum(np.arange(1.0, self.rows + 1) ** -self.skew)
        generator = np.random.default_rng(0)
        for _ in range(self.steps):
            yield torch.from_numpy(np.searchsorted(shares, generator.random(self.batch) * shares[-1]))

    def frequencies(self) -> AccessFrequencies:
        """As they are."""
        return zipf_frequencies(self.rows, 1.0, self.skew)

    def sampled(self) -> AccessFrequencies:
        """As the beginning of the stream tells them."""
        some = [ids for ids, _ in zip(self.ids(), range(max(1, int(self.steps * SAMPLED))), strict=False)]
        counts: NDArray[np.int64] = np.bincount(np.concatenate(some), minlength=self.rows)
        return with_unseen_ids(counts, len(some) * self.batch, self.rows)


@dataclass(frozen=True)
class Measured:
    """One run of a pool."""

    statistics: PoolStatistics
    resolve_seconds: float
    """Of one step, by the clock."""
    batches: list[tuple[list[int], float]]
    """[lookups, read rows, written and moved rows, new rows, reads] and processor seconds of each batch."""


def run_pool(stream: Stream, capacity: int, policy: str, window: int, workdir: Path) -> Measured:
    """Resolves all batches of a stream; the first fifth is not timed."""
    lookups = torch.tensor([[0, 0, stream.batch]])
    ahead, waiting = stream.ids(), []
    seconds, batches = 0.0, []
    with tempfile.TemporaryDirectory(dir=workdir) as folder:
        table = PooledTable(stream.rows, StartValues(1, "t", DIM, 1.0))
        memory = [torch.zeros(capacity + 1, DIM), torch.zeros(capacity + 1)]
        pool = TieredRows([table], memory, DiskSettings(Path(folder)), policy)
        before = pool.statistics()
        for number in range(1, stream.steps + 1):
            while len(waiting) <= window and (ids := next(ahead, None)) is not None:
                waiting.append(ids)
                if policy == "lookahead":
                    pool.expect(lookups, ids, number + len(waiting) - 1)
            begin, busy = time.perf_counter(), time.thread_time()
            pool.resolve(lookups, waiting.pop(0), number, trains=True)
            busy = time.thread_time() - busy
            pool.arrive(number)
            pool.release(number)
            if number > stream.steps // 5:
                seconds += time.perf_counter() - begin
            after = pool.statistics()
            batches.append((_counts(before, after), busy))
            before = after
        pool.flush()
        statistics = before._replace(file_bytes=pool.statistics().file_bytes)
        pool.close()
    return Measured(statistics, seconds / (stream.steps - stream.steps // 5), batches)


def _counts(before: PoolStatistics, after: PoolStatistics) -> list[int]:
    change = {name: getattr(after, name) - getattr(before, name) for name in PoolStatistics._fields}
    written = change["written_back_rows"] + 2 * change["moved_rows"]
    return [change["lookups"], change["read_rows"], written, change["new_rows"], change["reads"]]


def compare(stream: Stream, share: float, policy: str, window: int, disk: DiskSpeed, workdir: Path) -> Any:
    """One line: what a pool did and what was predicted of it."""
    capacity = int(stream.rows * share)
    measured = run_pool(stream, capacity, policy, window, workdir)
    found, samples = measured.statistics, stream.batch * stream.steps
    cache = CacheGeometry(capacity, policy, window)
    line: dict[str, Any] = {
        "skew": stream.skew,
        "capacity": capacity,
        "policy": policy,
        "window": window,
        "real": {
            "hit_rate": found.hits / found.lookups,
            "reads_per_sample": found.read_rows / samples,
            "written_rows_per_sample": found.written_back_rows / samples,
            "write_amplification": found.appended_rows / max(1, found.written_back_rows),
            "touched_rows": found.present_rows,
            "disk_bytes": found.file_bytes,
            "step_seconds": measured.resolve_seconds,
        },
    }
    for name, frequencies in (("predicted", stream.frequencies()), ("sampled", stream.sampled())):
        begin = time.perf_counter()
        predicted = predict_cache(
            frequencies, cache, row_bytes=4 * DIM + 4, batch=stream.batch, steps=stream.steps
        )
        spent = time.perf_counter() - begin
        tier = predict_tier(predicted, 0.0, disk, cores=usable_cores(), late=True)
        line[name] = {
            "hit_rate": predicted.hit_rate,
            "reads_per_sample": predicted.run.read_rows / stream.batch,
            "written_rows_per_sample": predicted.run.evicted_rows / stream.batch,
            "write_amplification": predicted.write_amplification,
            "touched_rows": predicted.touched_rows,
            "disk_bytes": predicted.disk_bytes,
            "step_seconds": tier.step_seconds,
            "bound_by": tier.bound_by,
            "prediction_seconds": spent,
        }
    return line


def resolve_costs(workdir: Path) -> ResolveCosts:
    """Processor seconds of a lookup, a row read, written and begun, by least squares over batches; what
    reads take of a core themselves is measured apart."""
    counts, seconds = [], []
    each_read = measure_disk(workdir).read_processor_seconds
    for rows, skew, share in ((2_000_000, 0.56, 0.1), (2_000_000, 1.2, 0.1), (200_000, 1.0, 1.5)):
        measured = run_pool(Stream(rows, skew, 32_768, 120), int(rows * share), "lfu", 0, workdir)
        counts += [each[:4] for each, _ in measured.batches[1:]]
        seconds += [busy - each[4] * each_read for each, busy in measured.batches[1:]]
    solution = np.linalg.lstsq(np.array(counts, dtype=np.float64), np.array(seconds), rcond=None)[0]
    return ResolveCosts(*map(float, solution))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, required=True, help="Folder on the disk to use.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=1000)
    given = parser.parse_args()
    given.workdir.mkdir(parents=True, exist_ok=True)
    if given.costs:
        print(resolve_costs(given.workdir))
        return
    disk = measure_disk(given.workdir)
    print(disk)
    lines = []
    for name, skew in SKEWS.items():
        stream = Stream(given.rows, skew, given.batch, given.steps)
        for share in CACHES:
            for policy, window in POLICIES:
                line = {"stream": name, **compare(stream, share, policy, window, disk, given.workdir)}
                lines.append(line)
                real, ours, sampled = (line[part] for part in ("real", "predicted", "sampled"))
                print(
                    f"{name:8} {share:4.0%} {policy:9} {window}  hits {real['hit_rate']:.4f} predicted "
                    f"{ours['hit_rate']:.4f} sampled {sampled['hit_rate']:.4f}  reads "
                    f"{real['reads_per_sample']:.3f} {ours['reads_per_sample']:.3f}  ms "
                    f"{1e3 * real['step_seconds']:.2f} {1e3 * ours['step_seconds']:.2f} ({ours['bound_by']})",
                    flush=True,
                )
    worst = {
        part: max(abs(line[part]["hit_rate"] - line["real"]["hit_rate"]) for line in lines)
        for part in ("predicted", "sampled")
    }
    print("largest error of the hit rate:", worst)
    if given.out:
        settings = {"rows": given.rows, "batch": given.batch, "steps": given.steps, "dim": DIM}
        results = {"disk": asdict(disk), "largest_error": worst, "lines": lines}
        save_result(given.out, result("row-cache", settings, results, given.workdir))


if __name__ == "__main__":
    main()
