"""Bubble rates of the zero-bubble paper (Qi et al. 2023), replayed.

A row's rate follows from four figures, the mean seconds of a stage's forward, input gradient and weight
gradient and of one message between stages: (cost - m (F + B + W)) / cost, cost being the longest time from
first to last operation of any stage. `bubble_rate` finds it by simulation.

`PROFILED` holds four such figures for each model. They are not among the published measurements that this
package carries (`validation/bubbles.csv` has the rates and nothing else) and no source that they could be
checked against is at hand, so they are not to be quoted as the paper's. What can be checked: only their
ratios matter, and with them the simulation gives the published rates of 1F1B, ZB-H1 and ZB-H2 to all four
digits and those of the interleaved schedule, one layer a chunk, within 0.004. Twelve rates
from twelve free ratios could also come of figures that were solved for, so this is a test of the schedules'
order and not of a model of the hardware; nothing in `explore validate` uses them.

What such figures are made of, for whoever derives them from a model of the hardware (by `PROFILED`):
- W / F, 0.50 (h=2304, micro-batch 6), 0.67 (4096, 3), 0.72 (5120, 1), 0.74 (6144, 1), decides ZB-H2 and
  ZB-H1: their bubbles are (p-1)(F+B-2W) and (p-1)(F+B-W). An error of 12% in W / F moves a rate by 0.02. W is
  products of matrices alone, at 237 to 252 TFLOP/s of an A100; what F has more is softmax, dropout, norms and
  additions, unfused, bound by memory: about 1.1 ms (h=5120, micro-batch 1) to 3.1 ms (2304, 6) a layer.
- B / F is 0.98 to 0.99 everywhere: attention's input gradient has twice the products, the rest reads less.
- A message takes 2 to 4% of F: 0.2 ms to start and meet plus its bytes at about 70 GB/s. Nothing hides it: it
  adds 2(p-1) messages to ZB-H2's bubble, 4(p-1) to ZB-H1's and about 2 m to 1F1B's, so 0.005 to 0.02 of rate.
- The vocabulary's projection costs about what a layer does; the first and last stage have one layer fewer, so
  stages are even and the mean is what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from megalith.core.errors import DataError
from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.pipeline.simulate import simulate


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds of one micro-batch on a stage, and of one message between stages."""

    forward: float
    backward_input: float
    backward_weight: float
    transfer: float = 0.0

    @classmethod
    def of_layers(
        cls,
        layer: StageTimes,
        *,
        layers: int,
        stages: int,
        first: StageTimes | None = None,
        last: StageTimes | None = None,
    ) -> StageTimes:
        """The mean stage of a model of `layers` equal layers with an embedding `first` and a projection
        `last`."""

        def mean(name: str) -> float:
            ends = sum(getattr(end, name) for end in (first, last) if end is not None)
            return float(layers * getattr(layer, name) + ends) / stages

        return cls(mean("forward"), mean("backward_input"), mean("backward_weight"), layer.transfer)


@dataclass(frozen=True, slots=True)
class BubbleRow:
    """One row of bubbles.csv."""

    model: str
    p: int
    m: int
    seq: int
    micro_batch: int
    layers: int
    hidden: int
    heads: int
    schedule: str
    bubble_rate: float

    @property
    def chunks(self) -> int:
        """Interleaving is by single layers; a stage has one more than its layers' share, for the
        vocabulary."""
        return (self.layers + 2) // self.p if self.schedule == "interleaved" else 1


@dataclass(frozen=True, slots=True)
class ReplayedRate:
    """A row of the paper and the rate that the simulation gives for it."""

    row: BubbleRow
    rate: float

    @property
    def error(self) -> float:
        """Simulated less published."""
        return self.rate - self.row.bubble_rate


PROFILED: Mapping[str, StageTimes] = {
    "1.5B": StageTimes(18.522e-3, 18.086e-3, 9.337e-3, 0.601e-3),
    "6.2B": StageTimes(29.718e-3, 29.444e-3, 19.927e-3, 0.527e-3),
    "14.6B": StageTimes(11.347e-3, 11.248e-3, 8.132e-3, 0.377e-3),
    "28.3B": StageTimes(10.419e-3, 10.207e-3, 7.715e-3, 0.408e-3),
}
"""Stage times that reproduce the published rates; unsourced, see above."""


def read_row(row: Mapping[str, str]) -> BubbleRow:
    """A row of bubbles.csv; DataError if it lacks a column."""
    try:
        return BubbleRow(
            model=row["model"],
            p=int(row["p"]),
            m=int(row["m"]),
            seq=int(row["seq"]),
            micro_batch=int(row["micro_batch"]),
            layers=int(row["layers"]),
            hidden=int(row["hidden"]),
            heads=int(row["heads"]),
            schedule=row["schedule"],
            bubble_rate=float(row["bubble_rate"]),
        )
    except (KeyError, ValueError) as error:
        raise DataError(
            f"A row of bubbles.csv lacks or misspells a column ({error}); compare its header."
        ) from error


def bubble_rate(row: BubbleRow, times: StageTimes) -> float:
    """The rate of one row if every stage takes these times."""
    chunks = row.chunks
    costs = StepCosts.uniform(
        row.p * chunks,
        times.forward / chunks,
        times.backward_input / chunks,
        times.backward_weight / chunks,
        latency_seconds=times.transfer,
    )
    return simulate(build_schedule(row.schedule, row.p, row.m, chunks), costs).bubble_rate


def replay_bubbles(rows: Iterable[BubbleRow], times: Callable[[BubbleRow], StageTimes]) -> list[ReplayedRate]:
    """Every row with the times that `times` gives for it."""
    return [ReplayedRate(row, bubble_rate(row, times(row))) for row in rows]
