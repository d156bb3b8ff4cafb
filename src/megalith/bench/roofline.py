"""How close a pass over embedding tables comes to what the memory can do.

The roof is measured, not looked up: rows of the same size, at random places of a table of the same size, read
or updated by native loops that share nothing with the embedding kernels. A pass must move at least each
distinct row once, so skewed ids, whose rows stay in the caches, can come out above 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch

from megalith.bench.peers import Ids, Shape
from megalith.ops import native
from megalith.ops.embedding import allocate

_MAX_TABLE_BYTES = 1 << 31
_READ_BYTES = 1 << 27
_AHEAD = (1, 2, 4, 8, 16, 32)
_STATE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes a second of rows at random places."""

    row_bytes: int
    table_bytes: int
    read: float
    """Bytes read a second."""
    update: float
    """Bytes read and written a second: each updated byte counts twice."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_bandwidth(row_bytes: int, table_bytes: int, repeats: int = 3) -> Bandwidth:
    """The best of a few prefetch distances, on torch's threads; a roof should not depend on our choice."""
    native.share_torch_threads()
    core = native.library()
    row_bytes = max(8, row_bytes // 8 * 8)
    rows = max(1, min(table_bytes, _MAX_TABLE_BYTES) // row_bytes)
    table = allocate(rows, row_bytes // 2, torch.float16).zero_()
    # A row stands among the ids once: threads update them without asking each other.
    generator = torch.Generator().manual_seed(0)
    shuffled = torch.randperm(rows, generator=generator)
    per_round = max(1, min(rows // 2, _READ_BYTES // row_bytes))
    halves = shuffled[:per_round], shuffled[per_round : 2 * per_round]

    def best(run: Callable[..., Any]) -> float:
        fastest = 0.0
        for ahead in _AHEAD:
            # Turn and turn about, so that no round finds its rows where the last one left them.
            for number in range(2 * repeats):
                ids = halves[number % 2]
                if not len(ids):
                    continue
                start = perf_counter()
                run(table.data_ptr(), row_bytes, ids.data_ptr(), len(ids), ahead)
                fastest = max(fastest, len(ids) * row_bytes / (perf_counter() - start))
        return fastest

    read = best(partial(core.mg_random_row_read))
    return Bandwidth(row_bytes, rows * row_bytes, read, 2 * best(partial(core.mg_random_row_update)))


def distinct_rows(shape: Shape, ids: Ids) -> int:
    """Distinct (table, row) pairs of a batch."""
    values = ids.values.view(shape.tables, -1)
    table = torch.arange(shape.tables).unsqueeze(1) * shape.rows
    return len(torch.unique(values + table))


def least_bytes(shape: Shape, rows: int) -> dict[str, int]:
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
