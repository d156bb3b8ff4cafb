"""Seconds and bytes of embedding rows on a device: looked up, updated, kept on a memory tier.

A pass over a batch is described by four counts: `ids` looked up, the `distinct` rows among them, the
`vectors` that are written (a pooled one for each bag, or one for each id), and the columns of a row. Memory
moves each distinct row once, by whole cache lines; a row that comes again is served by a cache for a share of
that; an id costs a little by itself; vectors are written once forward and read once backward. All of it is
expressed as bytes of the first memory, so that one set of constants (cost/calibration.yaml) serves devices of
any speed.

Of a processor they are bytes of what its cores copy when all do (sharding/planner/topology.py says what one
gets while others wait).

Counts may be numbers or numpy arrays; numpy itself is not needed here.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from megalith.cost.calibration import Calibration
from megalith.cost.operators import stream_seconds
from megalith.hardware.cluster import Device

Amount: TypeAlias = Any
"""A number, or a numpy array of them."""

SKEW = 0.018
"""Share f of the rows serves f**SKEW of the accesses: BagPipe (SOSP 2023) finds 92% of them in 1% of Criteo's
rows. For models of which no statistics are known."""
CACHE_SHARE = 0.8
"""Of the fastest memory, what tables and a cache over slower ones may take: it holds activations and buffers
of the exchange too."""
SLOWER_SHARE = 0.9
"""Of slower memory, which holds little else."""
DISK_SHARE = 2 / 3
"""Of a disk: its files take up to 1.5 times the bytes of their rows before dead ones are collected."""
VECTOR_BYTES = 4
"""Pooled vectors are computed in single precision."""

OPTIMIZER_VALUES = {
    "sgd": (0, 0),
    "adagrad": (1, 0),
    "rowwise_adagrad": (0, 1),
    "adam": (2, 0),
    "rowwise_adam": (1, 1),
    "lamb": (2, 0),
    "lars": (1, 0),
}
"""Single-precision numbers of state by optimizer: for each element, for each row."""
ROWWISE_OPTIMIZERS = frozenset({"rowwise_adagrad", "rowwise_adam", "lamb", "lars"})
"""Optimizers whose step of one element depends on the whole row: column-wise shards exchange partial sums."""


def table_capacity(device: Device) -> list[float]:
    """Bytes of each memory tier that tables and their caches may take.

    >>> from megalith.hardware.catalog import catalog
    >>> [round(room / 2**30) for room in table_capacity(catalog().device("cpu"))]
    [205, 2467]
    """
    first, *slower = device.memory
    shares = [DISK_SHARE if tier.block_bytes else SLOWER_SHARE for tier in slower]
    return [CACHE_SHARE * first.bytes, *(s * tier.bytes for s, tier in zip(shares, slower, strict=True))]


def state_bytes(optimizer: str, dim: Amount) -> Amount:
    """Optimizer state of one row.

    >>> state_bytes("rowwise_adagrad", 64), state_bytes("adam", 64)
    (4, 512)
    """
    each_element, each_row = OPTIMIZER_VALUES[optimizer]
    return 4 * (each_element * dim + each_row)


def row_traffic_bytes(constants: Calibration, dim: Amount, element_bytes: Amount) -> Amount:
    """Bytes that one random row moves: rows are packed, so those that do not fill whole cache lines straddle
    some, on average `line - gcd(row, line)` bytes more.

    >>> from megalith.cost.calibration import calibration
    >>> from megalith.hardware.catalog import catalog
    >>> constants = calibration(catalog().device("cpu"))
    >>> row_traffic_bytes(constants, 64, 4), row_traffic_bytes(constants, 10, 4)
    (256.0, 96.0)
    """
    row, line = dim * element_bytes, int(constants.line_bytes)
    # The greatest common divisor with a power of two is the lowest bit that is set, at most that power.
    return row + line - _smaller(1.0 * (row & -row), float(line))


def lookup_bytes(
    constants: Calibration,
    ids: Amount,
    distinct: Amount,
    vectors: Amount,
    dim: Amount,
    element_bytes: Amount,
) -> Amount:
    """Memory traffic of a forward pass."""
    row = row_traffic_bytes(constants, dim, element_bytes)
    rows = (constants.row_factor * distinct + constants.repeat_share * (ids - distinct)) * row
    return rows + constants.id_bytes * ids + constants.vector_factor * VECTOR_BYTES * vectors * dim


def update_bytes(
    constants: Calibration,
    ids: Amount,
    distinct: Amount,
    vectors: Amount,
    dim: Amount,
    element_bytes: Amount,
    state_bytes_per_row: Amount,
) -> Amount:
    """Memory traffic of a backward pass with the update in it: each distinct row is read and written once,
    with its optimizer state; gradients of rows that repeat are added up in a cache first."""
    row = row_traffic_bytes(constants, dim, element_bytes)
    line = float(constants.line_bytes)
    # A state of a few bytes still moves a whole line.
    state = _larger(state_bytes_per_row, line * (state_bytes_per_row > 0))
    rows = constants.row_factor * 2.0 * distinct * (row + state)
    rows = rows + constants.update_repeat_share * (ids - distinct) * row
    handled = constants.update_id_bytes * ids
    return rows + handled + constants.update_vector_factor * VECTOR_BYTES * vectors * dim


def column_wise_update_bytes(
    constants: Calibration, ids: Amount, distinct: Amount, vectors: Amount, dim: Amount, element_bytes: Amount
) -> Amount:
    """The same where a row's columns lie on several workers and its optimizer is a row-wise one: in two
    halves, as sums over whole rows are exchanged in between."""
    row_state = float(VECTOR_BYTES)
    counts = ids, distinct, vectors, dim, element_bytes, row_state
    return constants.column_wise_factor * update_bytes(constants, *counts)


def tier_seconds(
    device: Device,
    constants: Calibration,
    moved_bytes: Amount,
    cached: Amount,
    missed_bytes: Amount | None = None,
    tier: int = 1,
) -> Amount:
    """The part `cached` of the traffic at the first memory's bandwidth, the misses at a slower tier's, side
    by side. `missed_bytes` is what misses read and, in time, write back; all traffic if left out."""
    near = moved_bytes * cached * stream_seconds(device, constants, 1.0)
    if len(device.memory) == 1:
        return near
    if missed_bytes is None:
        missed_bytes = 2 * moved_bytes
    return _larger(near, missed_bytes * (1 - cached) / device.memory[tier].bytes_per_second)


def _larger(left: Amount, right: Amount) -> Amount:
    return (left + right + abs(left - right)) / 2


def _smaller(left: Amount, right: Amount) -> Amount:
    return (left + right - abs(left - right)) / 2
