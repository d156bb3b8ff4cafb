"""Measures the constants of `cpu` in cost/calibration.yaml on the cores of this machine, piece by piece.

    python benchmarks/calibrate_host.py

Lookups and updates of single tables, sharing out ids, putting vectors together, copied tables: each runs
alone, on tables of many sizes, none of them a table of `megalith bench plan --ranks`. A process on every core
does the same at the same time, as workers of a step do. Seconds become bytes of what a core copies when all
do, measured before and after. Fits weigh every shape alike (relative errors) and no constant is
below zero. Takes about a minute; the machine should be at rest.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable
from math import gcd

import numpy as np
import torch
from numpy.typing import NDArray

from megalith.core.schema import TableSpec
from megalith.cost.calibration import calibration
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.optimizers import RowWiseAdaGrad
from megalith.hardware.catalog import catalog
from megalith.hardware.machine import usable_cores
from megalith.hardware.probe_host import memory_rates
from megalith.ops.embedding.descriptors import LookupBatch, OutputGradients
from megalith.ops.optimizer.column_sharded import ColumnShardedUpdate
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.plan import Placement, Shard, ShardingPlan
from megalith.sharding.runtime.input_dist.jagged_ids import JaggedIds
from megalith.sharding.runtime.input_dist.routing import IdRouter
from megalith.sharding.runtime.pooled_columns import ColumnGather, ColumnSplit
from megalith.sharding.runtime.replicated import ReplicatedTables
from megalith.sharding.wire_format import replicated_gradient_bytes

Floats = NDArray[np.float64]
_LINE = 64
_REPEATS = 9
_SKEW = 1.05
_TOGETHER, _BATCHES = 6, 4
"""Tables of a call, and batches that it sees; the first warms up."""
_OTHER = torch.ones(2**23)
"""The rest of a step, which leaves nothing in the caches."""


def main() -> None:
    """Measures, and prints the constants."""
    fraction = calibration(catalog().device("cpu")).memory_fraction
    cores = usable_cores()
    rates = [memory_rates(cores, 1.0)[1]]
    context = multiprocessing.get_context("spawn")
    with context.Pool(cores) as pool:
        found = pool.map(measured, range(cores), chunksize=1)
    rates.append(memory_rates(cores, 1.0)[1])
    rate = fraction * float(np.mean(rates)) / cores
    print(
        f"{cores} cores copy {np.mean(rates) / 1e9:.1f} GB/s; bytes are those at {fraction:g} of it, a core's"
    )
    for name in found[0]:
        value = float(np.mean([one[name] for one in found]))
        plain = name.endswith(("factor of updates", "_seconds", "error", "worst"))
        print(f"  {name}: {value if plain else value * rate:.3g}")


def measured(_: int) -> dict[str, float]:
    """All constants, in seconds where they become bytes."""
    torch.set_num_threads(1)
    return {
        **row_costs(),
        "route_id_bytes": routing_seconds(),
        "piece_factor": piece_costs(),
        **copied_costs(),
        **sum_costs(),
    }


def row_costs() -> dict[str, float]:
    """Fits of lookup and update of several tables at once: row bytes that come first and again, ids, bytes of
    vectors, a call."""
    first: list[list[float]] = []
    second: list[list[float]] = []
    reads: list[float] = []
    updates: list[float] = []
    halves: list[float] = []
    draw = np.random.default_rng(0)
    for num_rows, dim in itertools.product((2_000, 50_000, 250_000), (4, 8, 12, 24, 32, 64, 128)):
        tables = _tables(_TOGETHER, num_rows, dim)
        collection = EmbeddingCollection(tables, RowWiseAdaGrad(lr=0.01))
        # As if other workers had as many columns of each row.
        sections = [(place, 0, num_rows) for place in range(_TOGETHER)]
        coupled = collection.column_sharded_update(range(_TOGETHER), [2 * dim] * _TOGETHER, sections)
        for batch, length in ((2048, 1), (8192, 1), (8192, 4), (4096, 20)):
            drawn = [
                [_drawn(draw, num_rows, batch * length) for _ in range(_TOGETHER)] for _ in range(_BATCHES)
            ]
            offsets = torch.arange(_TOGETHER * batch + 1) * length
            gradient = torch.ones(batch, _TOGETHER * dim)
            distinct = float(sum(len(np.unique(ids)) for some in drawn for ids in some)) / _BATCHES
            taken = []
            for ids in [torch.from_numpy(np.concatenate(some)) for some in drawn]:
                _OTHER.add_(1)
                read = _seconds(collection.read, ids, offsets, None)
                _OTHER.add_(1)
                update = _seconds(collection.update, ids, offsets, None, gradient, ())
                _OTHER.add_(1)
                both = _seconds(_in_halves, coupled, collection, ids, offsets, gradient)
                taken.append((read, update, both))
            row = 4 * dim + _LINE - min(_LINE, gcd(4 * dim, _LINE))
            count = float(_TOGETHER * batch * length)
            again, vectors = (count - distinct) * row, 4.0 * batch * _TOGETHER * dim
            first.append([distinct * row, again, count, vectors, 1.0])
            second.append([2 * distinct * (row + _LINE), again, count, vectors, 1.0])
            for kept, seconds in zip((reads, updates, halves), np.median(taken[1:], axis=0), strict=True):
                kept.append(float(seconds))
    ratio, smallest = np.array(halves) / np.array(updates), int(np.argmin(updates))
    names = ("row_factor", "repeat_share", "id_bytes", "vector_factor", "call")
    return {
        **_fitted(first, reads, tuple(f"lookup {name}" for name in names), "lookup"),
        **_fitted(second, updates, tuple(f"update {name}" for name in names), "update"),
        "column_wise_factor": float(np.median(ratio)),
        "column_wise_seconds": halves[smallest] - updates[smallest],
    }


def _in_halves(
    coupled: ColumnShardedUpdate,
    collection: EmbeddingCollection,
    ids: torch.Tensor,
    offsets: torch.Tensor,
    gradient: torch.Tensor,
) -> None:
    batch = LookupBatch(ids, offsets, None, _TOGETHER)
    coupled.finish(coupled.begin(collection.steps(), batch, OutputGradients(gradient)), 1)


def routing_seconds() -> float:
    """Of an id whose table's rows are cut, at its sender; whole tables are slices and cost nothing here."""
    found = []
    for ranks, length in itertools.product((2, 4), (2, 10, 25)):
        tables = _tables(4, 70_000, 32)
        batch = 8192 // ranks
        values = np.concatenate([_drawn(np.random.default_rng(n), 70_000, batch * length) for n in range(4)])
        bags = JaggedIds(torch.from_numpy(values), torch.arange(4 * batch + 1) * length, None, batch, length)
        cut = IdRouter(ExchangeLayout(tables, _plan(tables, ranks, "row_wise")))
        found.append(_usual(cut, bags) / len(values))
    return float(np.median(found))


def piece_costs() -> float:
    """Of a byte of a pooled vector, at its sample: put into place, and its gradient taken from there."""
    found = []
    for ranks, dim in itertools.product((2, 4), (32, 64, 96)):
        tables = _tables(6, 1000, dim)
        layout = ExchangeLayout(tables, _plan(tables, ranks, "table_wise"))
        batch = 8192 // ranks
        chunks = {n: torch.ones(batch, layout.workers[n].direct_width) for n in range(ranks)}
        gradient = torch.ones(batch, layout.output_dim)

        takings = [ColumnSplit(layout.sources[source]) for source in chunks]
        seconds = _usual(_there_and_back, ColumnGather(layout.levels), takings, chunks, gradient)
        found.append(seconds / (4 * batch * layout.output_dim))
    return float(np.median(found))


def _there_and_back(
    assembly: ColumnGather,
    takings: list[ColumnSplit],
    chunks: dict[int, torch.Tensor],
    gradient: torch.Tensor,
) -> None:
    assembly(chunks, len(gradient))
    for taking, chunk in zip(takings, chunks.values(), strict=True):
        taking(gradient, chunk)


def copied_costs() -> dict[str, float]:
    """The update of copied tables without the sum over ranks: seconds of a call, an id, a byte of them."""
    inputs, taken = [], []
    for count, num_rows, dim, length in (
        *((1, 500, 16, 1), (4, 500, 16, 1), (1, 30_000, 64, 1), (1, 120_000, 32, 1), (2, 30_000, 64, 10)),
        *((1, 120_000, 32, 20), (3, 5_000, 16, 20)),
    ):
        tables, batch = _tables(count, num_rows, dim), 2048
        optimizers = {table.name: RowWiseAdaGrad(lr=0.01) for table in tables}
        features = [table.features[0] for table in tables]
        copied = ReplicatedTables(*(tables, features, optimizers, 0), stochastic_rounding=True, comm=None)
        ids = np.concatenate(
            [_drawn(np.random.default_rng(n), num_rows, batch * length) for n in range(count)]
        )
        bags = JaggedIds(torch.from_numpy(ids), torch.arange(count * batch + 1) * length, None, batch, length)
        gradient = torch.ones(batch, count * dim)
        seconds = _usual(copied.update, bags, gradient, 1, 1.0)
        inputs.append([1.0, len(ids), float(count * replicated_gradient_bytes(num_rows, dim))])
        taken.append(seconds)
    return _fitted(
        inputs, taken, ("copied_seconds", "copied ids and their update", "copied_factor"), "copied"
    )


def sum_costs() -> dict[str, float]:
    """Seconds of a byte of copied tables' gradients that ranks of a host add up: written for the others, and
    for every part but one added (comm/all_reduce.py)."""
    inputs, taken = [], []
    for parts, size in itertools.product((2, 3, 4), (2**20, 2**22, 2**23)):
        written = [torch.ones(size) for _ in range(parts)]
        out = torch.ones(size)
        inputs.append([4.0 * size, 4.0 * size * (parts - 1)])
        taken.append(_usual(_added, written, out))
    return _fitted(inputs, taken, ("sum written_factor", "sum added_factor"), "sum")


def _added(written: list[torch.Tensor], out: torch.Tensor) -> None:
    written[0].copy_(out)
    torch.add(written[0], written[1], out=out)
    for part in written[2:]:
        out.add_(part)


def _plan(tables: list[TableSpec], ranks: int, kind: str) -> ShardingPlan:
    placements = []
    for number, table in enumerate(tables):
        edges = np.linspace(0, table.rows, ranks + 1).astype(int).tolist()
        rows = [(0, table.rows)] if kind == "table_wise" else [*itertools.pairwise(edges)]
        shards = [
            Shard(worker=(number + place) % ranks, rows=part, columns=(0, table.dim))
            for place, part in enumerate(rows)
        ]
        placements.append(Placement.model_validate({"table": table.name, "kind": kind, "shards": shards}))
    return ShardingPlan(world_size=ranks, workers_per_node=ranks, placements=tuple(placements))


def _tables(count: int, rows: int, dim: int) -> list[TableSpec]:
    return [TableSpec(name=f"t{n}", rows=rows, dim=dim, features=(f"f{n}",)) for n in range(count)]


def _drawn(draw: np.random.Generator, rows: int, count: int) -> NDArray[np.int32]:
    shares = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -_SKEW)
    return np.minimum(np.searchsorted(shares, draw.random(count) * shares[-1]), rows - 1).astype(np.int32)


def _seconds(run: Callable[..., object], *given: object) -> float:
    begin = time.perf_counter()
    run(*given)
    return time.perf_counter() - begin


def _usual(run: Callable[..., object], *given: object) -> float:
    """Seconds after something else had the caches."""
    taken = []
    for _ in range(_REPEATS):
        _OTHER.add_(1)
        taken.append(_seconds(run, *given))
    return float(np.median(taken[1:]))


def _fitted(
    inputs: list[list[float]], seconds: list[float], names: tuple[str, ...], kind: str
) -> dict[str, float]:
    """The least squares of relative errors without negative constants: of all sets that have none, the
    best."""
    matrix, taken = np.array(inputs), np.array(seconds)
    relative = matrix / taken[:, None]
    best: tuple[float, Floats] | None = None
    for size in range(1, len(names) + 1):
        for chosen in itertools.combinations(range(len(names)), size):
            solved, *_ = np.linalg.lstsq(relative[:, chosen], np.ones(len(taken)), rcond=None)
            if (solved < 0).any():
                continue
            left = float(((relative[:, chosen] @ solved - 1) ** 2).sum())
            if best is None or left < best[0]:
                whole = np.zeros(len(names))
                whole[list(chosen)] = solved
                best = left, whole
    assert best is not None
    ratio = np.abs(np.log(np.maximum(matrix @ best[1], 1e-12) / taken))
    found = dict(zip(names, best[1].tolist(), strict=True))
    return {**found, f"{kind} error": float(ratio.mean()), f"{kind} worst": float(np.exp(ratio.max()))}


if __name__ == "__main__":
    main()
