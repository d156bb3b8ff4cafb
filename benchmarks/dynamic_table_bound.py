"""Ids without bound through a dynamic table within some bytes: its rows, optimizer state and map of ids.

    python benchmarks/dynamic_table_bound.py --out benchmarks/results/dynamic-table-bound.json
    python benchmarks/dynamic_table_bound.py --ids 5000000 --bound 128MiB --batch 32768

New ids come in order, scattered over 64 bits; a quarter of a batch are ids that came before, most of them
lately. Each gets a gradient of +-1 times a fixed pattern over columns, so that under row-wise AdaGrad the
vector of an id is its start value less a sum that its number of uses gives: a record beside the table, which
knows how often each id was used since it got its row, says what every row must hold.

After every batch: `bytes()` is within the bound, beside what the map keeps to take a batch apart; memory has
grown by no more than the bound, four times a batch's vectors and 16 MiB; no row has two ids; ids that left
had a row; a sample of the batch and of older ids reads what it must, ids without a row zeros. At the end
every id that has a row is read.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import megalith as mg
from megalith.bench.runner import result, save_result
from megalith.core.units import format_bytes, parse_bytes
from megalith.ops.ids.changes import EvictedIds
from megalith.ops.stores.start_values import start_values_twin

Numbers = NDArray[np.int64]
LR = 0.01
SAMPLE = 2048
TOLERANCE = 2e-6
_ODD = 0x9E3779B97F4A7C15
_BACK = pow(_ODD, -1, 1 << 64)
_ALLOWED_BYTES = 16 << 20
_PAGE = resource.getpagesize()


def scattered(numbers: Numbers) -> Numbers:
    """Numbers as ids all over 64 bits; no two become one."""
    return (numbers.view(np.uint64) * np.uint64(_ODD)).view(np.int64)


def numbers_of(ids: Numbers) -> Numbers:
    """The numbers that were scattered."""
    return (ids.view(np.uint64) * np.uint64(_BACK)).view(np.int64)


def require(holds: bool, otherwise: str) -> None:
    """Ends with a sentence where something does not hold."""
    if not holds:
        raise SystemExit(f"It does not hold: {otherwise}.")


def resident_bytes() -> int:
    """What this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


class UseRecord:
    """How often each id was used since it got its row, 0 where it has none; which id each row has."""

    def __init__(self, num_ids: int, rows: int) -> None:
        self.uses = np.zeros(num_ids, dtype=np.uint8)
        self.owners = np.full(rows, -1, dtype=np.int64)
        self.count = self.evicted = 0
        sums = np.concatenate([[0.0], np.cumsum(1 / np.sqrt(np.arange(1, 256)))])
        self._sums = torch.from_numpy(sums)

    def leave(self, _: int, evicted: EvictedIds) -> None:
        """Ids lost their row."""
        numbers = numbers_of(evicted.ids.numpy())
        require(len(np.unique(numbers)) == len(numbers), "an id left twice")
        require(bool((self.uses[numbers] > 0).all()), "an id left that had no row")
        self.uses[numbers] = 0
        self.count -= len(numbers)
        self.evicted += len(numbers)

    def take(self, numbers: Numbers, rows: NDArray[np.int32]) -> None:
        """Ids of a batch were trained in these rows, none where it is negative."""
        numbers, rows = numbers[rows >= 0], rows[rows >= 0]
        before = self.owners[rows]
        others = before[(before >= 0) & (before != numbers)]
        require(not (self.uses[others] > 0).any(), "an id has the row of one that did not leave")
        self.owners[rows] = numbers
        require(bool((self.owners[rows] == numbers).all()), "two ids of a batch share a row")
        self.count += int((self.uses[numbers] == 0).sum())
        require(bool((self.uses[numbers] < 255).all()), "an id was used more often than the record counts")
        self.uses[numbers] += 1

    def vectors(
        self, table: Table, numbers: Numbers, uses: NDArray[np.uint8], has_row: NDArray[np.bool_]
    ) -> torch.Tensor:
        """What ids must read after so many uses each; zeros where they have no row."""
        ids = torch.from_numpy(scattered(numbers))
        steps = LR * self._sums[torch.from_numpy(uses.astype(np.int64))] * table.signs(numbers)
        start = start_values_twin(table.start, ids).double()
        vectors = start - steps[:, None] * table.pattern
        return torch.where(torch.from_numpy(has_row)[:, None], vectors, 0.0)


class Table:
    """The table under test."""

    def __init__(self, bound_bytes: int, dim: int) -> None:
        store = {"kind": "dynamic", "bound_bytes": bound_bytes, "unknown": "zeros"}
        spec = mg.TableSpec(name="t", dim=dim, features=("f",), store=store)
        self.collection = mg.EmbeddingCollection([spec], mg.RowWiseAdaGrad(lr=LR), seed=3)
        (self.dynamic,) = self.collection.stores.dynamic
        self.start, self.rows = self.dynamic.starts[0], self.collection.tables[0].rows
        # Of mean square 1: then a row's accumulator is its number of uses.
        pattern = torch.linspace(-1, 2, dim, dtype=torch.float64)
        self.pattern = pattern / pattern.square().mean().sqrt()

    def signs(self, numbers: Numbers) -> torch.Tensor:
        """Of the gradients of ids."""
        return torch.from_numpy(1.0 - 2.0 * (numbers % 3 == 0))

    def rows_of(self, numbers: Numbers) -> NDArray[np.int32]:
        """The row that each id has, -1 where none."""
        ids, lookups = torch.from_numpy(scattered(numbers)), torch.tensor([[0, 0, len(numbers)]])
        return self.dynamic.ids.resolve(lookups, ids, self.dynamic.ids.batch, trains=False).rows.numpy()

    @torch.no_grad()
    def read(self, numbers: Numbers) -> torch.Tensor:
        """The vectors of ids; nothing changes."""
        return self.collection(torch.from_numpy(scattered(numbers)), torch.arange(len(numbers) + 1))


class Stream:
    """Batches of different ids: most are new, the others came before."""

    def __init__(self, num_ids: int, batch: int) -> None:
        self.num_ids, self.batch, self.given = num_ids, batch, 0
        self.draw = np.random.default_rng(1)

    def next(self) -> Numbers:
        """The next batch, rising and each id once."""
        new = np.arange(self.given, min(self.given + 3 * self.batch // 4, self.num_ids), dtype=np.int64)
        lately, ever = self.batch // 5, self.batch // 20
        first = max(0, self.given - 8 * self.batch)
        again = [
            self.draw.integers(first, max(1, self.given), lately),
            self.draw.integers(0, max(1, self.given), ever),
        ]
        self.given += len(new)
        return np.unique(np.concatenate([new, *again]))


class BoundCheck:
    """Trains batches of a stream in a table and holds it against the record."""

    def __init__(self, num_ids: int, bound_bytes: int, batch: int, dim: int) -> None:
        self.bound_bytes, self.stream, self.table = (
            bound_bytes,
            Stream(num_ids, batch),
            Table(bound_bytes, dim),
        )
        self.record = UseRecord(num_ids, self.table.rows)
        # Touched before memory is measured.
        self.record.uses.fill(0)
        self.table.dynamic.on_evicted = self.record.leave
        self.batches, self.most_bytes, self.most_scratch, self.seconds = 0, 0, 0, 0.0

    def step(self) -> None:
        """One batch, with all checks but that of memory."""
        stream, table, record = self.stream, self.table, self.record
        numbers = stream.next()
        self.batches += 1
        uses = record.uses[numbers]
        began = time.process_time()
        out = table.collection(torch.from_numpy(scattered(numbers)), torch.arange(len(numbers) + 1))
        self.seconds += time.process_time() - began
        rows = table.rows_of(numbers)
        require(bool((rows[uses > 0] >= 0).all()), "an id of a batch lost its row to another of it")
        chosen = stream.draw.integers(0, len(numbers), SAMPLE)
        self._check(numbers[chosen], out.detach()[torch.from_numpy(chosen)], uses[chosen], rows[chosen] >= 0)
        gradient = (table.signs(numbers)[:, None] * table.pattern).float()
        began = time.process_time()
        out.backward(gradient)
        self.seconds += time.process_time() - began
        record.take(numbers, rows)
        self.check_read(stream.draw.integers(0, stream.given, SAMPLE))
        told, scratch = table.dynamic.ids.statistics(0), table.dynamic.ids.bytes()["scratch"]
        require(told.ids == record.count <= table.rows, "the number of ids is not that of the record")
        taken = table.collection.bytes().memory - scratch
        require(taken <= self.bound_bytes, f"the table takes {taken:,} bytes, above its {self.bound_bytes:,}")
        self.most_bytes, self.most_scratch = max(self.most_bytes, taken), max(self.most_scratch, scratch)

    def check_read(self, numbers: Numbers) -> None:
        """What ids read now is what was written."""
        uses = self.record.uses[numbers]
        self._check(numbers, self.table.read(numbers), uses, uses > 0)

    def _check(
        self, numbers: Numbers, read: torch.Tensor, uses: NDArray[np.uint8], has_row: NDArray[np.bool_]
    ) -> None:
        wrong = float((read.double() - self.record.vectors(self.table, numbers, uses, has_row)).abs().amax())
        require(wrong <= TOLERANCE, f"an id reads a vector that is {wrong:.3g} off what was written")

    def check_all(self) -> int:
        """Reads every id that has a row; how many these are."""
        kept, told = np.flatnonzero(self.record.uses), self.table.dynamic.ids.statistics(0)
        require(len(kept) == told.ids, "ids have a row that the record does not know")
        require(told.evicted == self.record.evicted, "evictions were not told")
        require(len(np.unique(self.table.rows_of(kept))) == len(kept), "two ids share a row")
        for first in range(0, len(kept), 1 << 16):
            self.check_read(kept[first : first + (1 << 16)])
        return len(kept)


def run(num_ids: int, bound_bytes: int, batch: int, dim: int) -> dict[str, Any]:
    """All batches with all checks; what was found."""
    # What a process needs for batches of this size, whatever the table, is taken before memory is measured.
    warm = BoundCheck(8 * batch, 4 << 20, batch, dim)
    warm.bound_bytes = bound_bytes
    while warm.stream.given < warm.stream.num_ids:
        warm.step()
    del warm
    check = BoundCheck(num_ids, bound_bytes, batch, dim)
    before, most_growth = resident_bytes(), 0
    allowed = bound_bytes + 4 * batch * dim * 4 + _ALLOWED_BYTES
    while check.stream.given < num_ids:
        check.step()
        most_growth = max(most_growth, resident_bytes() - before)
        require(most_growth <= allowed, f"memory has grown by {most_growth:,}, above {allowed:,}")
    kept, told = check.check_all(), check.table.dynamic.ids.statistics(0)
    return {
        "ids": num_ids,
        "bound_bytes": bound_bytes,
        "rows": check.table.rows,
        "batches": check.batches,
        "admitted": told.admitted,
        "evicted": told.evicted,
        "full": told.full,
        "kept": kept,
        "most_uses": int(check.record.uses.max()),
        "most_bytes": check.most_bytes,
        "most_batch_bytes": check.most_scratch,
        "most_growth_bytes": most_growth,
        "allowed_growth_bytes": allowed,
        "processor_seconds": round(check.seconds, 1),
        "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    """Runs it and prints what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ids", type=int, default=100_000_000, help="different ids")
    parser.add_argument("--bound", default="2GiB", help="bytes of rows, state and map together")
    parser.add_argument("--batch", type=int, default=131_072)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = run(given.ids, parse_bytes(given.bound), given.batch, given.dim)
    for name, value in found.items():
        print(f"{name:22} {format_bytes(value) if name.endswith('_bytes') else f'{value:,}'}", flush=True)
    print("Everything held after every batch, and every id that has a row reads what was written.")
    if given.out:
        settings = {name: value for name, value in vars(given).items() if name != "out"}
        save_result(given.out, result("dynamic-table-bound", settings, [found], None))


if __name__ == "__main__":
    main()
