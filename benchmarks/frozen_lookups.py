"""Pooled lookups over frozen rows, against FBGEMM's quantised ones and against what the memory can do.

    python benchmarks/frozen_lookups.py --out benchmarks/results/frozen-lookups.json
    python benchmarks/frozen_lookups.py --ids zipf --zipf 0.8,1.05,1.2 --builds avx2,portable --no-peer

RM1 is 8 tables of 2 million rows x 32 with 80 ids a bag, RM2 32 tables of 0.5 million x 64 with 120. All
candidates read the same bytes, in turns, over the same ids: more rows than the caches hold for each setting,
whatever the batch. FBGEMM runs with two threads (its own, one table each at least), with ids of 32 and of 64
bits, without its bounds check, and as two processes of one thread that each take every second batch; what is
compared is the best of these, round by round: once in memory as it takes it (`fbgemm`), once on the huge
pages that our rows lie on, which it does not ask for itself (`fbgemm_huge`). Ours checks ids.

The limit is a bare loop over the same rows that touches every cache line they cover, at the best of several
ways to prefetch, with as many rows a call as the batch has (`limit`) and with all of them in one call
(`roof`). Rates are rows a second; ratios are medians over rounds of what was measured within one round.

Ids are drawn evenly (`uniform`), which no cache helps, or by a power law of rank (`zipf`) with any exponents.
`--builds` names builds of the kernels beside the widest that runs here: what a machine without its
instructions would reach with this memory.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

os.environ.setdefault("FBGEMM_TBE_MAX_NUM_THREADS", "2")
os.environ.setdefault("FBGEMM_TBE_MIN_TABLES_PER_THREAD", "1")

import torch
from torch import Tensor

from megalith.bench.runner import result, save_result
from megalith.ops import native
from megalith.ops.frozen.encode import encode_rows
from megalith.ops.frozen.formats import RowFormat
from megalith.ops.frozen.lookup import FrozenLookup
from megalith.ops.frozen.memory import resident
from megalith.ops.frozen.table import FrozenTable
from megalith.ops.native import SIMD_LEVELS
from megalith.ops.simd import use_simd

THREADS = 2
AHEAD, BURSTS, LEVELS = (16, 32, 64, 128), (1, 8), (1, 2, 3)
BATCHES = (1, 16, 64, 256, 1024)
TOUCHED = 4_000_000
"""Rows that every candidate reads in a round, or one batch if that has more."""
ZIPF = 1.05
"""Exponent of skewed ids, unless told otherwise."""


@dataclass(frozen=True)
class FrozenShape:
    """Tables of one size, each looked up by one feature, every bag as long as the others."""

    tables: int
    rows: int
    dim: int
    lookups: int

    def per_batch(self, batch: int) -> int:
        """Rows that a batch reads."""
        return self.tables * self.lookups * batch


SHAPES = {"rm1": FrozenShape(8, 2_000_000, 32, 80), "rm2": FrozenShape(32, 500_000, 64, 120)}


@dataclass
class FrozenBatches:
    """Batches of one size: the same ids as each candidate wants them."""

    short: list[Tensor]
    """int32, feature-major"""
    long: list[Tensor]
    offsets: Tensor
    """int32"""
    long_offsets: Tensor
    places: list[Tensor]
    """int32: rows over all tables, one table after the other, as the limit is measured on."""


def make_rows(shape: FrozenShape, form: RowFormat) -> Tensor:
    """All tables one after the other on huge pages; values of a thousand rows over and over."""
    weights = torch.randn(1000, shape.dim, generator=torch.Generator().manual_seed(0)) * 0.05
    some = encode_rows(weights, form)
    held = resident(torch.empty(shape.tables * shape.rows, some.shape[1], dtype=torch.uint8))
    for block in held.split(1000):
        block.copy_(some[: len(block)])
    return held


def make_batches(shape: FrozenShape, batch: int, zipf: float | None) -> FrozenBatches:
    """As many as it takes to touch enough rows; `zipf` is the exponent of a power law, None draws evenly."""
    generator = torch.Generator().manual_seed(batch)
    count = max(2, TOUCHED // shape.per_batch(batch))
    ranks = torch.arange(1, shape.rows + 1, dtype=torch.float64)
    shares = None if zipf is None else ranks.pow(-zipf).cumsum(0)
    order = torch.randperm(shape.rows, generator=generator)
    first = torch.arange(shape.tables).repeat_interleave(shape.lookups * batch) * shape.rows
    short, places = [], []
    for _ in range(count):
        if shares is None:
            drawn = torch.randint(0, shape.rows, (shape.per_batch(batch),), generator=generator)
        else:
            draws = torch.rand(shape.per_batch(batch), dtype=torch.float64, generator=generator)
            drawn = order[torch.searchsorted(shares, draws * shares[-1]).clamp(max=shape.rows - 1)]
        short.append(drawn.int())
        places.append((drawn + first).int())
    offsets = torch.arange(0, shape.per_batch(batch) + 1, shape.lookups)
    return FrozenBatches(short, [ids.long() for ids in short], offsets.int(), offsets, places)


class Ours:
    """Our lookup, on torch's threads."""

    def __init__(self, shape: FrozenShape, form: RowFormat, rows: Tensor) -> None:
        tables = [
            FrozenTable(rows=part, form=form, dim=shape.dim, features=(number,), name=f"t{number}")
            for number, part in enumerate(rows.split(shape.rows))
        ]
        self.lookup = FrozenLookup(tables, [f"f{number}" for number in range(shape.tables)])

    def run(self, ids: list[Tensor], offsets: Tensor, build: str | None = None) -> Tensor:
        """All batches, by a build of the kernels or the widest; the last one's vectors."""
        use_simd(build)
        for values in ids:
            out = self.lookup(values, offsets)
        use_simd(None)
        return out


class FbgemmRows:
    """FBGEMM's quantised lookup over the same bytes, where they are."""

    def __init__(self, shape: FrozenShape, form: RowFormat, rows: Tensor) -> None:
        import fbgemm_gpu  # noqa: F401
        from fbgemm_gpu.split_embedding_configs import SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
            IntNBitTableBatchedEmbeddingBagsCodegen,
        )

        kind = SparseType.INT8 if form.precision == "int8" else SparseType.INT4
        host = EmbeddingLocation.HOST
        specs = [(f"t{number}", shape.rows, shape.dim, kind, host) for number in range(shape.tables)]
        self.modules = {
            dtype: IntNBitTableBatchedEmbeddingBagsCodegen(
                specs,
                device="cpu",
                output_dtype=SparseType.FP32,
                bounds_check_mode=BoundsCheckMode.NONE,
                row_alignment=1,
                indices_dtype=dtype,
            )
            for dtype in (torch.int32, torch.int64)
        }
        for module in self.modules.values():
            # Rows lie just as it has them: what it would take is not needed.
            assert module.host_size == rows.numel()
            module.host_size = 64
            module.initialize_weights()
            begins = [int(offset) for offset in module.weights_offsets]
            assert begins == [number * shape.rows * rows.shape[1] for number in range(shape.tables)]
            module.weights_host, module.host_size = rows.flatten(), rows.numel()

    def run(self, ids: list[Tensor], offsets: Tensor) -> Tensor:
        """All batches; the last one's vectors."""
        module = self.modules[ids[0].dtype]
        for values in ids:
            out = module(values, offsets)
        return out


class Limit:
    """The bare loop, at its best prefetch distance."""

    def __init__(self, rows: Tensor) -> None:
        native.share_torch_threads()
        self._core = native.library()
        self._rows = rows
        self._total = torch.zeros(1, dtype=torch.int64)
        self.ahead, self.burst, self.level = AHEAD[0], BURSTS[0], LEVELS[0]

    def tune(self, places: Tensor) -> None:
        """Takes what is fastest on these rows, three times each."""
        best = 0.0
        for setting in product(AHEAD, BURSTS, LEVELS):
            seconds = []
            for _ in range(3):
                start = perf_counter()
                self._read(places, *setting)
                seconds.append(perf_counter() - start)
            if 1 / median(seconds) > best:
                best = 1 / median(seconds)
                self.ahead, self.burst, self.level = setting

    def run(self, places: list[Tensor]) -> None:
        """All batches."""
        for batch in places:
            self._read(batch, self.ahead, self.burst, self.level)

    def _read(self, places: Tensor, ahead: int, burst: int, level: int) -> None:
        self._core.mg_packed_row_read(
            *(self._rows.data_ptr(), self._rows.shape[1], places.data_ptr(), len(places)),
            *(ahead, burst, level, self._total.data_ptr()),
        )


class TwoProcesses:
    """FBGEMM in two processes of one thread each, forked, so that they read the same memory."""

    def __init__(self, modules: dict[str, FbgemmRows]) -> None:
        context = get_context("fork")
        self._ends: list[Connection] = []
        for number in range(2):
            mine, other = context.Pipe()
            context.Process(target=_serve, args=(modules, other, number), daemon=True).start()
            self._ends.append(mine)

    def take(self, batches: FrozenBatches | None) -> None:
        """What the next rounds run; None ends the processes."""
        for end in self._ends:
            end.send(batches and (torch.stack(batches.short).numpy(), batches.offsets.numpy()))
            end.recv()

    def run(self, name: str) -> None:
        """Every batch, by one of the two."""
        for end in self._ends:
            end.send(name)
        for end in self._ends:
            end.recv()


def _serve(modules: dict[str, FbgemmRows], end: Connection, number: int) -> None:
    os.environ["FBGEMM_TBE_MAX_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    short: list[Tensor] = []
    offsets = torch.zeros(0)
    while True:
        given = end.recv()
        if given is None:
            end.send("over")
            return
        if isinstance(given, str):
            modules[given].run(short, offsets)
        else:
            short = list(torch.from_numpy(given[0])[number::2])
            offsets = torch.from_numpy(given[1])
        end.send("done")


def candidates_of(
    batches: FrozenBatches,
    ours: Ours,
    peers: dict[str, FbgemmRows],
    pair: TwoProcesses | None,
    limit: Limit,
    builds: Sequence[str] = (),
) -> dict[str, Callable[[], Any]]:
    """What is timed, by name; results of all that pool are the same."""
    roof = [torch.cat(batches.places)]
    limit.tune(roof[0])
    candidates: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours.run(batches.short, batches.offsets),
        "ours_int64": lambda: ours.run(batches.long, batches.long_offsets),
        "limit": lambda: limit.run(batches.places),
        "roof": lambda: limit.run(roof),
    }
    for build in builds:
        candidates[f"ours_{build}"] = partial(ours.run, batches.short, batches.offsets, build)
    if pair is not None:
        pair.take(batches)
        for name, peer in peers.items():
            found = ours.run(batches.short[:1], batches.offsets)
            theirs = peer.run(batches.short[:1], batches.offsets)
            torch.testing.assert_close(found, theirs, rtol=1e-4, atol=1e-4)
            candidates[f"{name}_int32"] = partial(peer.run, batches.short, batches.offsets)
            candidates[f"{name}_int64"] = partial(peer.run, batches.long, batches.long_offsets)
            candidates[f"{name}_two_processes"] = partial(pair.run, name)
    return candidates


def measure(
    shape: FrozenShape,
    batch: int,
    batches: FrozenBatches,
    candidates: dict[str, Callable[[], Any]],
    rounds: int,
) -> dict[str, Any]:
    """Rates of all candidates on these batches, and the ratios that count."""
    rows = shape.per_batch(batch) * len(batches.short)
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for number in range(1 + rounds):
        for name in names if number % 2 else reversed(names):
            start = perf_counter()
            candidates[name]()
            if number:
                rates[name].append(rows / (perf_counter() - start))

    def ratios(*others: str) -> dict[str, Any] | None:
        """Ours to the best of the others, round by round."""
        known = [rates[name] for name in others if name in rates]
        each = [
            own / max(rates_of_round)
            for own, *rates_of_round in zip(rates["ours"], *known, strict=True)
            if known
        ]
        return {"median": median(each), "low": min(each), "high": max(each)} if each else None

    ways = ("int32", "int64", "two_processes")
    return {
        "rows_per_second": {name: median(each) for name, each in rates.items()},
        "spread": {name: (max(each) - min(each)) / median(each) for name, each in rates.items()},
        "to_fbgemm": ratios(*(f"fbgemm_{way}" for way in ways)),
        "to_fbgemm_huge": ratios(*(f"fbgemm_huge_{way}" for way in ways)),
        "to_limit": ratios("limit"),
        "to_roof": ratios("roof"),
    }


def main() -> None:
    """Runs what the options name and prints a line for each setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--precisions", default="int8,int4")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--ids", default="uniform,zipf")
    parser.add_argument("--zipf", default=str(ZIPF), help="exponents of skewed ids")
    parser.add_argument("--builds", default="avx2", help="builds of the kernels beside the widest")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-peer", action="store_true", help="without FBGEMM")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    kinds: dict[str, float | None] = {"uniform": None} if "uniform" in options.ids else {}
    kinds |= {f"zipf {each}": float(each) for each in options.zipf.split(",") if "zipf" in options.ids}
    narrower = SIMD_LEVELS[: SIMD_LEVELS.index(native.simd_level())]
    builds = [each for each in options.builds.split(",") if each in narrower]
    results: list[dict[str, Any]] = []
    for name, precision in product(options.shapes.split(","), options.precisions.split(",")):
        shape, form = SHAPES[name], RowFormat(precision, "float16")
        rows = make_rows(shape, form)
        peers: dict[str, FbgemmRows] = {}
        if not options.no_peer:
            # In its own kind of memory, and on our pages.
            peers["fbgemm"] = FbgemmRows(shape, form, torch.zeros_like(rows).copy_(rows))
            peers["fbgemm_huge"] = FbgemmRows(shape, form, rows)
        pair = TwoProcesses(peers) if peers else None
        ours, limit = Ours(shape, form, rows), Limit(rows)
        for kind, batch in product(kinds, map(int, options.batches.split(","))):
            batches = make_batches(shape, batch, kinds[kind])
            candidates = candidates_of(batches, ours, peers, pair, limit, builds)
            found = measure(shape, batch, batches, candidates, options.rounds)
            found["prefetch"] = {"ahead": limit.ahead, "burst": limit.burst, "level": limit.level}
            results.append({"shape": name, "precision": precision, "ids": kind, "batch": batch, **found})
            print(_line(results[-1]), file=sys.stderr)
        if pair is not None:
            pair.take(None)
        del pair, peers, candidates, ours, limit, rows
        gc.collect()
    settings = {"shapes": {name: asdict(shape) for name, shape in SHAPES.items()}, "rounds": options.rounds}
    content = result(
        "frozen-lookups",
        {**settings, "threads": THREADS, "build": native.simd_level()},
        {"lookups": results},
        None,
    )
    if options.out:
        save_result(options.out, content)


def _line(one: dict[str, Any]) -> str:
    rates = ", ".join(f"{name} {rate / 1e6:.1f}" for name, rate in one["rows_per_second"].items())
    parts = [f"{one['shape']} {one['precision']} {one['ids']:9} batch {one['batch']:4}: {rates} M rows/s"]
    parts += [
        f"{name} {one[name]['median']:.2f} ({one[name]['low']:.2f}-{one[name]['high']:.2f})"
        for name in ("to_fbgemm", "to_fbgemm_huge", "to_limit", "to_roof")
        if one[name]
    ]
    return "; ".join([*parts, str(one["prefetch"])])


if __name__ == "__main__":
    main()
