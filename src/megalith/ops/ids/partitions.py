"""Which partition an id of a dynamic table belongs to, and which rank owns a partition.

The hash is fixed: an id has the same partition in every process and every run, so what is admitted and what
leaves does not depend on the number of ranks.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from megalith.ops.ids.policies import PARTITIONS


def id_partitions(ids: Tensor) -> Tensor:
    """The partition of each int64 id, uint8: the highest six bits of splitmix64's finaliser over its bits."""
    mixed = ids.contiguous().numpy().view(np.uint64)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return torch.from_numpy(((mixed ^ mixed >> np.uint64(31)) >> np.uint64(58)).astype(np.uint8))


def partitions_of_rank(rank: int, ranks: int) -> tuple[int, int]:
    """[first, last) of the partitions that a rank owns: partition p is of rank p * ranks // 64."""
    return -(-rank * PARTITIONS // ranks), -(-(rank + 1) * PARTITIONS // ranks)


def rows_of_partitions(bound: int, partitions: tuple[int, int]) -> int:
    """Rows of a table of `bound` that [first, last) of its partitions have."""
    first, last = partitions
    return (last - first) * (bound // PARTITIONS) + min(max(bound % PARTITIONS - first, 0), last - first)


def rows_of_whole_table(rows: Tensor, partitions: tuple[int, int]) -> Tensor:
    """Rows of a map that has [first, last), as a map of all partitions numbers them; -1 stays."""
    first, last = partitions
    slots, own = rows.div(last - first, rounding_mode="floor"), rows.remainder(last - first)
    return torch.where(rows < 0, rows, slots * PARTITIONS + first + own)
