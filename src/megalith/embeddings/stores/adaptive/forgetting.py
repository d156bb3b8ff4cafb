"""`UtilityPredictions`: whether utilities still tell which rows get gradients, and tables that forget.

Utilities fade slowly, or rare ids would be pruned by chance. When the ids of a table change, slow utilities
keep rows that nothing looks up any more. So every table watches how well its utilities predict its gradients:
how much more rows of a high utility are hit than others; 0 if utilities know nothing. When that falls far
below what it was, the table forgets: little of its utilities is left, and what comes counts afresh.

Numbers are whole ones that are added over ranks, so nothing depends on how tables are cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

WINDOW = 5
"""Steps from one check to the next."""
FIRST_STEP = 100
"""Before it utilities are not worth a comparison."""
REST = 15
"""Checks after a forgetting in which there is no other."""
FORGOTTEN = 2.0**-7
"""What is left of utilities: about as much as five steps add at gamma 0.998."""
FADING = 400
"""Steps after a forgetting until the magnitudes of weights count in full again: they are of ids of before."""
_SLOW, _PART = 0.95, 0.6
_SUM_BITS = 40


@dataclass
class TablePrediction:
    """What is known of one table."""

    mass: float = 0.0
    """All utility that was added, in the units of the utilities that are stored."""
    first: float = 0.0
    """Norms of the gradients of the first window."""
    relative: float = 1.0
    """Those of the last one, as a multiple of the first."""
    usual: float | None = None
    """How much more than others rows of a high utility are hit, averaged over many checks."""
    checks: int = REST + 1
    """Since the table last forgot."""
    forgot_at: int | None = None
    norm_scale: float = 2.0**30
    product_scale: float = 2.0**30
    """What norms, and norms times utilities, are multiplied with before they are rounded to whole numbers."""


class UtilityPredictions:
    """The sums of all adaptive tables since the last check, and what past checks found."""

    def __init__(self, rows: Sequence[int]) -> None:
        """The rows of each table, on all ranks together."""
        self._rows = list(rows)
        self.tables = [TablePrediction() for _ in rows]
        self.sums = torch.zeros(len(rows), 2, dtype=torch.int64)
        """Since the last check, here: scaled norms, and scaled norms times utilities; kernels add to them."""

    def weight(self, table: int, weight: float) -> float:
        """What gradients of a table count whose share of a step is to count `weight`."""
        return weight / self.tables[table].relative

    def add_absent(self, tables: Tensor, norms: Tensor) -> None:
        """Counts gradients of rows that are not there; `tables` are their numbers, int64."""
        scales = torch.tensor([table.norm_scale for table in self.tables], dtype=torch.float64)
        whole = (norms.double() * scales[tables]).nan_to_num(0.0).clamp(0, 2.0**_SUM_BITS).round().long()
        self.sums[:, 0].index_add_(0, tables, whole)

    def scale(self, factor: float, table: int | None = None) -> None:
        """Utilities of one table, or of all, were multiplied."""
        for own in self.tables if table is None else [self.tables[table]]:
            own.mass *= factor

    @property
    def forgot_at(self) -> list[int]:
        """The last steps after which tables forgot, of those that ever did."""
        return [own.forgot_at for own in self.tables if own.forgot_at is not None]

    def fades(self, step: int) -> list[float]:
        """By table, the power of magnitudes of weights in its ranking."""
        return [
            1.0 if own.forgot_at is None else min(1.0, (step - own.forgot_at) / FADING) for own in self.tables
        ]

    def after_step(self, step: int, weight: float, add: Callable[[Tensor], Tensor]) -> list[int]:
        """The tables that forget now; `weight` is what this step's gradients counted."""
        if step % WINDOW:
            return []
        sums = add(self.sums.clone()).tolist()
        self.sums.zero_()
        both = zip(self.tables, self._rows, sums, strict=True)
        return [
            number for number, (own, rows, found) in enumerate(both) if _check(own, rows, found, step, weight)
        ]

    def state_dict(self, add: Callable[[Tensor], Tensor]) -> dict[str, str]:
        """As a checkpoint keeps it, the same on every rank."""
        return {
            "tables": json.dumps([asdict(own) for own in self.tables]),
            "sums": json.dumps(add(self.sums.clone()).tolist()),
        }

    def load_state_dict(self, state: dict[str, str], *, is_first: bool) -> None:
        """Goes on from what `state_dict` gave; sums of all ranks are with the first from then on."""
        self.tables = [TablePrediction(**own) for own in json.loads(state["tables"])]
        self.sums.zero_()
        if is_first:
            self.sums.copy_(torch.tensor(json.loads(state["sums"]), dtype=torch.int64))


def _check(own: TablePrediction, rows: int, found: Sequence[int], step: int, weight: float) -> bool:
    """Whether a table forgets, given the sums of a window."""
    norms, products = found[0] / own.norm_scale, found[1] / own.product_scale
    mean = own.mass / rows
    own.mass += norms * weight / own.relative
    own.norm_scale = _next_scale(own.norm_scale, found[0])
    own.product_scale = _next_scale(own.product_scale, found[1])
    if norms <= 0:
        return False
    if own.first == 0:
        own.first = norms
    own.relative = norms / own.first
    if step < FIRST_STEP or mean <= 0:
        return False
    hit = products / norms / mean - 1
    own.checks += 1
    if own.usual is not None and own.checks > REST and hit < _PART * own.usual:
        own.checks, own.forgot_at = 0, step
        return True
    if own.usual is None or own.checks in (1, REST):
        own.usual = hit
    own.usual = _SLOW * own.usual + (1 - _SLOW) * hit
    return False


def _next_scale(scale: float, found: int) -> float:
    """A power of two with which the next window's sum has about 2 ** 40 in it, wherever this one's was."""
    if found == 0:
        return min(scale * 2.0**20, 2.0**100)
    return max(min(scale * 2.0 ** (_SUM_BITS - found.bit_length()), 2.0**100), 2.0**-100)
