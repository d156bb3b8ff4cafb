"""Draws by table lookup: a distribution is its quantile function in 65,536 steps.

The high half of a random 32-bit word picks a step, the low half a place inside it. A frequent id owns whole
steps, so its share is right to 1/65536; a step of the tail spans many ids, drawn evenly. One lookup costs the
same for 3 ids as for 10 million.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.data.synth.calibration import KNOT_QUANTILES, KNOT_RANKS, CategoricalShape, NumericShape

STEPS = 1 << 16

Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class StepTable:
    """Quantile function of whole numbers: step s covers [start[s], start[s] + width[s])."""

    start: NDArray[np.int32]
    width: NDArray[np.uint32]

    def draw(self, words: Words) -> NDArray[np.int32]:
        """One number for each random word."""
        step = words >> np.uint32(16)
        # low * width can pass 32 bits when a step is wider than 65,536 numbers; only then pay for 64.
        if self.wide:
            inside = ((words & np.uint32(0xFFFF)).astype(np.uint64) * self.width[step]) >> np.uint64(16)
        else:
            inside = ((words & np.uint32(0xFFFF)) * self.width[step]) >> np.uint32(16)
        return self.start[step] + inside.astype(np.int32)

    @property
    def wide(self) -> bool:
        """Whether a step covers more numbers than 16 bits can count."""
        return bool(self.width.max() > 0xFFFF)


def id_shares(shape: CategoricalShape, cardinality: int) -> NDArray[np.float64]:
    """The share of each of the first ids (of the present values), as far as the calibration states them."""
    ranks = [rank for rank in KNOT_RANKS if rank <= cardinality][: len(shape.shares)]
    if not ranks:
        return np.zeros(0)
    cumulative = shape.shares[: len(ranks)]
    every = np.arange(1, ranks[-1] + 1)
    # Linear in the logarithm of the rank: shares fall like 1/rank between two knots.
    return np.diff(np.interp(np.log(every), np.log(ranks), cumulative), prepend=0.0)


def id_table(shape: CategoricalShape, cardinality: int) -> StepTable:
    """Ranks of a categorical field, 0 the most frequent; `cardinality` may be below the real one."""
    shares = id_shares(shape, cardinality)
    first_tail = len(shares)
    ends = np.rint(np.cumsum(shares) * STEPS).astype(np.int64)
    if first_tail >= cardinality:
        ends[-1] = STEPS
    ends = np.minimum(ends, STEPS)
    head = np.repeat(np.arange(first_tail), np.diff(ends, prepend=0))
    tail_steps = STEPS - len(head)
    power = 1.0 - shape.tail_exponent
    low, high = first_tail + 1, cardinality + 1
    if abs(power) < 1e-6:
        edges = np.geomspace(low, high, tail_steps + 1) - 1.0
    else:
        edges = np.linspace(low**power, high**power, tail_steps + 1) ** (1.0 / power) - 1.0
    edges = np.clip(np.floor(edges + 1e-6), first_tail, cardinality).astype(np.int64)
    start = np.concatenate([head, np.minimum(edges[:-1], cardinality - 1)])
    width = np.concatenate([np.zeros(len(head), dtype=np.int64), np.diff(edges)])
    return StepTable(start.astype(np.int32), width.astype(np.uint32))


def number_table(shape: NumericShape) -> StepTable:
    """Values of a numeric field, by interpolating its quantiles on a logarithmic scale."""
    at = np.linspace(0.0, 1.0, STEPS + 1)
    values = np.asarray(shape.quantiles)
    logs = np.sign(values) * np.log1p(np.abs(values))
    smooth = np.interp(at, KNOT_QUANTILES, logs)
    edges = np.rint(np.sign(smooth) * np.expm1(np.abs(smooth))).astype(np.int64)
    return StepTable(edges[:-1].astype(np.int32), np.diff(edges).astype(np.uint32))
