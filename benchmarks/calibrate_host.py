"""Measures the constants of `cpu` in cost/calibration.yaml on one core of this machine, piece by piece.

    python benchmarks/calibrate_host.py

Lookups and updates of single tables, sharing out ids, putting vectors together, copied tables: each runs
alone, on tables of many sizes, none of them a table of `megalith bench plan --ranks`. Seconds become bytes of
one core's copies, measured in between. Fits weigh every shape alike (relative errors) and no constant is
below zero. Takes about a minute; the machine should be at rest.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from math import gcd
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from megalith.core.schema import TableSpec
from megalith.cost.calibration import calibration
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.optimizers import RowWiseAdaGrad
from megalith.hardware.catalog import catalog
from megalith.hardware.probe_host import memory_rates
from megalith.ops.coupled import CoupledUpdate
from megalith.sharding.plan import Placement, Shard, ShardingPlan
from megalith.sharding.runtime.layout import ExchangeLayout
from megalith.sharding.runtime.pooled import assemble, columns_of
from megalith.sharding.runtime.replicated import ReplicatedTables
from megalith.sharding.runtime.routing import Bags, Router
from megalith.sharding.runtime.traffic import Traffic

Floats = NDArray[np.float64]
_LINE = 64
_REPEATS = 9
_SKEW = 1.05
_OTHER = torch.ones(2**23)
"""The rest of a step, which leaves nothing in the caches."""


def main() -> None:
    torch.set_num_threads(1)
    fraction = calibration(catalog().device("cpu")).memory_fraction
    rates = [memory_rates(1, 1.0)[0]]
    rows, routing, pieces, copied = row_costs(), routing_seconds(), piece_costs(), copied_costs()
    rates.append(memory_rates(1, 1.0)[0])
    rate = fraction * float(np.mean(rates))
    print(
        f"one core copies {rate / fraction / 1e9:.1f} GB/s; constants of cpu, as bytes at {fraction:g} of it"
    )
    for name, fit in rows.items():
        print(f"  {name}: " + ", ".join(f"{key} {value * rate:.3g}" for key, value in fit["found"].items()))
        print(f"    mean error {fit['error']:.0%}, worst a factor of {fit['worst']:.2f}")
    print(f"  route_id_bytes: {routing * rate:.3g}  ({1e9 * routing:.1f} ns an id)")
    print(f"  piece_factor: {pieces * rate:.3g}  ({1e9 * pieces:.2f} ns a byte)")
    print("  copied: " + ", ".join(f"{key} {value:.3g}" for key, value in copied.items()))


def row_costs() -> dict[str, dict[str, Any]]:
    """Fits of lookup and update: row bytes that come first and again, ids, bytes of vectors, a call."""
    first, second, reads, updates, halves = [], [], [], [], []
    draw = np.random.default_rng(0)
    for num_rows, dim in itertools.product((2_000, 60_000, 1_000_000), (16, 32, 64, 128)):
        table = TableSpec(name="t", rows=num_rows, dim=dim, features=("f",))
        collection = EmbeddingCollection([table], RowWiseAdaGrad(lr=0.01))
        for batch, length in ((2048, 1), (32768, 1), (8192, 4), (4096, 20), (8192, 25)):
            batches = [_drawn(draw, num_rows, batch * length) for _ in range(3)]
            offsets = torch.arange(batch + 1) * length
            gradient = torch.ones(batch, dim)
            distinct = float(np.mean([len(np.unique(ids)) for ids in batches]))
            numbers = itertools.cycle(map(torch.from_numpy, batches))
            # As if other workers had as many columns of each row.
            coupled = collection.coupled_update([0], [2 * dim], [(0, 0, num_rows)])
            taken = []
            for ids in itertools.islice(numbers, 5):
                _OTHER.add_(1)
                gradient.fill_(1.0)
                read = _seconds(collection.read, ids, offsets, None)
                _OTHER.add_(1)
                update = _seconds(collection.update, ids, offsets, None, gradient, ())
                _OTHER.add_(1)
                both = _seconds(_in_halves, coupled, collection, ids, offsets, gradient)
                taken.append((read, update, both))
            row = 4 * dim + _LINE - min(_LINE, gcd(4 * dim, _LINE))
            again, vectors = (batch * length - distinct) * row, 4.0 * batch * dim
            first.append([distinct * row, again, batch * length, vectors, 1.0])
            second.append([2 * distinct * (row + _LINE), again, batch * length, vectors, 1.0])
            for kept, seconds in zip((reads, updates, halves), np.median(taken[1:], axis=0), strict=True):
                kept.append(float(seconds))
    ratio, smallest = np.array(halves) / np.array(updates), int(np.argmin(updates))
    print(f"coupled_factor: {np.median(ratio):.2f} ({ratio.min():.2f} to {ratio.max():.2f})")
    print(f"coupled_seconds: {halves[smallest] - updates[smallest]:.2g}")
    return {
        "lookup": _fitted(first, reads, ("row", "repeat_share", "id_bytes", "vector_factor", "call")),
        "update": _fitted(
            second,
            updates,
            ("row", "update_repeat_share", "update_id_bytes", "update_vector_factor", "call"),
        ),
    }


def _in_halves(
    coupled: CoupledUpdate,
    collection: EmbeddingCollection,
    ids: torch.Tensor,
    offsets: torch.Tensor,
    gradient: torch.Tensor,
) -> None:
    coupled.finish(coupled.begin(collection.steps(), ids, offsets, None, 1, gradient), 1)


def routing_seconds() -> float:
    """Of an id whose table's rows are cut, at its sender; whole tables are slices and cost nothing here."""
    found = []
    for ranks, length in itertools.product((2, 4), (2, 10, 25)):
        tables = _tables(4, 70_000, 32)
        batch = 8192 // ranks
        values = np.concatenate([_drawn(np.random.default_rng(n), 70_000, batch * length) for n in range(4)])
        bags = Bags(torch.from_numpy(values), torch.arange(4 * batch + 1) * length, None, batch, length)
        cut = Router(ExchangeLayout(tables, _plan(tables, ranks, "row_wise")))
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

        seconds = _usual(_there_and_back, layout, chunks, gradient)
        found.append(seconds / (4 * batch * layout.output_dim))
    return float(np.median(found))


def _there_and_back(layout: ExchangeLayout, chunks: dict[int, torch.Tensor], gradient: torch.Tensor) -> None:
    assemble(chunks, layout.levels, len(gradient))
    for source, chunk in chunks.items():
        columns_of(gradient, layout.sources[source], chunk)


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
        copied = ReplicatedTables(
            *(tables, features, optimizers, 0), stochastic_rounding=True, group=None, traffic=Traffic()
        )
        ids = np.concatenate(
            [_drawn(np.random.default_rng(n), num_rows, batch * length) for n in range(count)]
        )
        bags = Bags(torch.from_numpy(ids), torch.arange(count * batch + 1) * length, None, batch, length)
        gradient = torch.ones(batch, count * dim)
        seconds = _usual(copied.update, bags, gradient, 1, 1.0)
        inputs.append([1.0, len(ids), 4.0 * count * num_rows * (dim + 1)])
        taken.append(seconds)
    fit = _fitted(inputs, taken, ("seconds", "seconds_an_id", "seconds_a_byte"))
    return {**fit["found"], "error": fit["error"]}


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


def _fitted(inputs: list[list[float]], seconds: list[float], names: tuple[str, ...]) -> dict[str, Any]:
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
    return {"found": found, "error": float(ratio.mean()), "worst": float(np.exp(ratio.max()))}


if __name__ == "__main__":
    main()
