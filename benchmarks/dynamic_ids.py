"""Ids without bound through a bounded map: what must hold, and what a batch takes.

    python benchmarks/dynamic_ids.py --only bound --out benchmarks/results/dynamic-ids-bound.json
    python benchmarks/dynamic_ids.py --only rate --memory 134217728 --warm 600 --timed 100
    python benchmarks/dynamic_ids.py --only bound --ids 5000000 --memory 134217728

`bound`: distinct ids through a map of as many rows as fit into some bytes, at 260 bytes a row. After every
batch: no more ids than rows, no two ids in a row, every value that was admitted in the row that it was told,
every id that left gone. At the end the map is listed and compared, and ids are looked up again.

`rate`: batches of 2,048 ids of each of 26 tables, Criteo's numbers of ids and a skew like theirs (1% of
the ids take about 91% of the accesses), after a stream that filled the map. Processor seconds of one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

import megalith
from megalith.bench.runner import result, save_result
from megalith.ops.ids.id_map import IdMap
from megalith.ops.ids.policies import IdAdmission, IdEviction, IdTableSpec, bound_for

ROW_BYTES = 260
SKEW = 1.2
SMALL = 100_000
"""Tables of so many ids are kept whole; the others share what is left, in proportion."""
POLICIES = ("lru", "lfu", "score")
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def scattered(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers as ids all over 64 bits: a permutation, so different ones stay different."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(29)) * _MIX[0]
    mixed = (mixed ^ mixed >> np.uint64(32)) * _MIX[1]
    return (mixed ^ mixed >> np.uint64(30)).view(np.int64)


class RowLedger:
    """Which id each row has, kept from what the map tells, to hold the map against."""

    def __init__(self, rows: int) -> None:
        self.ids = np.zeros(rows, dtype=np.int64)
        self.used = np.zeros(rows, dtype=bool)

    def follow(self, ids: IdMap, values: torch.Tensor, batch: int) -> float:
        """Resolves a batch and checks all that it says; the seconds of resolving."""
        begin = time.perf_counter()
        rows, new, evicted = ids.resolve(torch.tensor([[0, 0, len(values)]]), values, batch, trains=True)
        seconds = time.perf_counter() - begin
        left, left_ids = evicted.rows.numpy(), evicted.ids.numpy()
        require(
            bool(self.used[left].all()) and bool((self.ids[left] == left_ids).all()),
            "an id left a row of another",
        )
        require(len(np.unique(left)) == len(left), "two ids left one row")
        self.used[left] = False
        begun = new.rows.numpy()
        require(len(np.unique(begun)) == len(begun) and not self.used[begun].any(), "two ids share a row")
        self.used[begun], self.ids[begun] = True, new.ids.numpy()
        known = rows.numpy() >= 0
        own = rows.numpy()[known]
        require(bool(self.used[own].all()), "a value has a row that no id has")
        require(bool((self.ids[own] == values.numpy()[known]).all()), "a value has the row of another id")
        have = ids.statistics(0).ids
        require(have == int(self.used.sum()) <= len(self.used), "the bound does not hold")
        return seconds


def require(holds: bool, otherwise: str) -> None:
    """Ends with a sentence where something does not hold."""
    if not holds:
        raise SystemExit(f"It does not hold: {otherwise}.")


def bounded(num_ids: int, memory_bytes: int, batch: int) -> dict[str, Any]:
    """Distinct ids, each once, through a map that has room for some."""
    rows = memory_bytes // ROW_BYTES
    ids, ledger = IdMap([IdTableSpec(rows)], lag=2), RowLedger(rows)
    seconds, batches = 0.0, 0
    for first in range(0, num_ids, batch):
        values = scattered(np.arange(first, min(first + batch, num_ids), dtype=np.int64))
        batches += 1
        seconds += ledger.follow(ids, torch.from_numpy(values), batches)
    listed = 0
    last = None
    for block in ids.scan(0):
        own = block.rows.numpy()
        require(
            bool(ledger.used[own].all() and (ledger.ids[own] == block.ids.numpy()).all()), "the list differs"
        )
        require(last is None or int(block.ids[0]) > last, "the list is not in the order of ids")
        last, listed = int(block.ids[-1]), listed + len(own)
    require(listed == int(ledger.used.sum()), "the list is not complete")
    kept = torch.from_numpy(ledger.ids[ledger.used])
    rows_again = ids.resolve(torch.tensor([[0, 0, len(kept)]]), kept, batches, trains=False).rows.numpy()
    require(bool((rows_again == np.flatnonzero(ledger.used)).all()), "an id does not read its row back")
    gone = torch.from_numpy(scattered(np.arange(min(num_ids // 10, batch), dtype=np.int64)))
    absent = ids.resolve(torch.tensor([[0, 0, len(gone)]]), gone, batches, trains=False).rows
    require(num_ids < 2 * rows or bool((absent == -1).all()), "an id that left has a row")
    told = ids.statistics(0)
    parts = ids.bytes()
    return {
        "ids": num_ids,
        "rows": rows,
        "batches": batches,
        "admitted": told.admitted,
        "evicted": told.evicted,
        "full": told.full,
        "seconds": seconds,
        "ids_per_second": num_ids / seconds,
        "bytes": parts,
        "bytes_per_row": sum(parts.values()) / rows,
    }


def criteo_cardinalities() -> list[int]:
    """Numbers of ids of Criteo's 26 features."""
    text = (Path(megalith.__file__).parent / "data" / "synth" / "criteo.yaml").read_text()
    return [feature["cardinality"] for feature in yaml.safe_load(text)["categorical"]]


class CriteoLikeStream:
    """Batches of ids of 26 tables, whose frequency falls as rank ** -SKEW."""

    def __init__(self, samples: int) -> None:
        self.cardinalities, self.samples = criteo_cardinalities(), samples
        self._generator = np.random.default_rng(3)
        ends = torch.arange(1, len(self.cardinalities) + 1) * samples
        self.lookups = torch.stack([torch.arange(len(self.cardinalities)), ends - samples, ends], dim=1)

    def batch(self) -> torch.Tensor:
        """The ids of all tables one after the other."""
        values = []
        for table, count in enumerate(self.cardinalities):
            uniform = self._generator.random(self.samples)
            rank = ((float(count + 1) ** (1 - SKEW) - 1) * uniform + 1) ** (1 / (1 - SKEW))
            values.append(scattered(rank.astype(np.int64) + (table << 40)))
        return torch.from_numpy(np.concatenate(values))


def rate(
    policy: str, admission: str, memory_bytes: int, samples: int, warm: int, timed: int
) -> dict[str, Any]:
    """Milliseconds of a batch, that trains and that only looks up, by one thread."""
    stream = CriteoLikeStream(samples)
    small = sum(bound_for(count) for count in stream.cardinalities if count <= SMALL)
    large = sum(count for count in stream.cardinalities if count > SMALL)
    share = (memory_bytes // ROW_BYTES - small) / large
    specs = [
        IdTableSpec(
            bound_for(count) if count <= SMALL else int(share * count),
            IdAdmission(admission, count=2, counter_bytes=max(4096, min(16 << 20, count))),
            IdEviction(policy, halve_every=1000, half_life=1000),
        )
        for count in stream.cardinalities
    ]
    ids = IdMap(specs, lag=4)
    for number in range(1, warm + 1):
        ids.resolve(stream.lookups, stream.batch(), number, trains=True)
    before = [ids.statistics(table) for table in range(len(specs))]
    trains, looks = [], []
    for number in range(warm + 1, warm + timed + 1):
        values = stream.batch()
        begin = time.thread_time()
        ids.resolve(stream.lookups, values, number, trains=False)
        middle = time.thread_time()
        ids.resolve(stream.lookups, values, number, trains=True)
        looks.append(middle - begin)
        trains.append(time.thread_time() - middle)
    after = [ids.statistics(table) for table in range(len(specs))]
    num_ids = samples * len(specs)

    def grown(name: str) -> int:
        return sum(getattr(own, name) for own in after) - sum(getattr(own, name) for own in before)

    return {
        "policy": policy,
        "admission": admission,
        "ids": num_ids,
        "rows": sum(own.ids for own in after),
        "train_milliseconds": 1e3 * statistics.median(trains),
        "lookup_milliseconds": 1e3 * statistics.median(looks),
        "train_milliseconds_per_10000": 1e7 * statistics.median(trains) / num_ids,
        "hit_rate": grown("hits") / grown("lookups"),
        "admitted_per_batch": grown("admitted") / timed,
        "evicted_per_batch": grown("evicted") / timed,
        "bytes": ids.bytes(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["bound", "rate"])
    parser.add_argument("--ids", type=int, default=100_000_000)
    parser.add_argument("--memory", type=int, default=2 << 30, help="Bytes of rows.")
    parser.add_argument("--batch", type=int, default=1 << 18)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--warm", type=int, default=2000, help="Batches before those that are timed.")
    parser.add_argument("--timed", type=int, default=300)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    results: dict[str, Any] = {}
    if given.only != "rate":
        results["bound"] = bounded(given.ids, given.memory, given.batch)
        print(results["bound"], flush=True)
    if given.only != "bound":
        results["rate"] = []
        for policy in POLICIES:
            for admission in ("always", "count"):
                line = rate(policy, admission, given.memory, given.samples, given.warm, given.timed)
                results["rate"].append(line)
                print(line, flush=True)
    if given.out:
        settings = {name: value for name, value in vars(given).items() if name not in ("out", "only")}
        save_result(given.out, result("dynamic-ids", settings, results, None))


if __name__ == "__main__":
    main()
