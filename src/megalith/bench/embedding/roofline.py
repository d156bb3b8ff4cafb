"""How close a pass over embedding tables comes to what the memory can do.

The roof is measured, not looked up: rows of the same size, at random positions of tables of the same size,
one table after the other as lookups go, read or updated by native loops that share nothing with the embedding
kernels and take the best of several prefetch distances. A pass must move at least each distinct row once;
what the caches still hold from the pass before is not moved, so a share can come out above 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from statistics import median
from time import perf_counter
from typing import Any

import torch

from megalith.bench.peers.lookup import LookupIds, LookupShape
from megalith.ops import native
from megalith.ops.embedding.native_tables import allocate_table

_MAX_BYTES = 1 << 32
_TOUCHED_BYTES = 1 << 28
_AHEAD = (8, 16, 32, 64)
_LEVELS = (1, 2)
_LINE_BYTES = 64
_STATE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes a second of rows at random positions."""

    row_bytes: int
    table_bytes: int
    read: float
    """Bytes read a second."""
    update: float
    """Bytes read and written a second: each updated byte counts twice."""

    def to_dict(self) -> dict[str, Any]:
        """As the result file holds it."""
        return asdict(self)


def measure_bandwidth(row_bytes: int, rows: int, tables: int, repeats: int = 3) -> Bandwidth:
    """The best median over prefetch distances and caches to fetch to, on torch's threads."""
    native.share_torch_threads()
    core = native.library()
    row_bytes = max(_LINE_BYTES, row_bytes // _LINE_BYTES * _LINE_BYTES)
    tables = max(1, min(tables, _MAX_BYTES // (rows * row_bytes)))
    weights = allocate_table(tables * rows, row_bytes // 2, torch.float16).zero_()
    # Every row occurs once among the ids: threads update them without synchronising.
    generator = torch.Generator().manual_seed(0)
    per_table = max(1, min(rows // 2, _TOUCHED_BYTES // row_bytes // tables))
    shuffled = [torch.randperm(rows, generator=generator) + rows * table for table in range(tables)]
    halves = [torch.cat([order[start : start + per_table] for order in shuffled]) for start in (0, per_table)]

    def best(run: Callable[..., Any]) -> float:
        fastest = 0.0
        for ahead, level in product(_AHEAD, _LEVELS):
            rates = []
            # Alternating halves, so that no round finds the rows of the last one in a cache.
            for number in range(2 * repeats):
                ids = halves[number % 2]
                if not len(ids):
                    continue
                start = perf_counter()
                run(weights.data_ptr(), row_bytes, ids.data_ptr(), len(ids), ahead, level)
                rates.append(len(ids) * row_bytes / (perf_counter() - start))
            fastest = max(fastest, median(rates))
        return fastest

    total = torch.empty(1)

    def read_rows(*arguments: int) -> None:
        core.mg_random_row_read(*arguments, total.data_ptr())

    read = best(read_rows)
    return Bandwidth(row_bytes, tables * rows * row_bytes, read, 2 * best(core.mg_random_row_update))


def distinct_rows(shape: LookupShape, ids: LookupIds) -> int:
    """Distinct (table, row) pairs of a batch."""
    values = ids.values.view(shape.tables, -1)
    table = torch.arange(shape.tables).unsqueeze(1) * shape.rows
    return len(torch.unique(values + table))


def least_bytes(shape: LookupShape, rows: int) -> dict[str, int]:
    """What each pass cannot avoid to move when `rows` distinct rows are touched."""
    return {
        "forward": rows * shape.row_bytes + shape.output_bytes,
        "backward": 2 * rows * (shape.row_bytes + _STATE_BYTES) + shape.output_bytes,
    }


def shares(moved: dict[str, int], seconds: dict[str, float], roof: Bandwidth) -> dict[str, float]:
    """Each pass's bytes a second as a share of the roof."""
    return {
        "forward": moved["forward"] / seconds["forward"] / roof.read,
        "backward": moved["backward"] / seconds["backward"] / roof.update,
    }
