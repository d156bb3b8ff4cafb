"""The shape of a real data set, as numbers: `criteo.yaml` and `avazu.yaml` beside this module.

One Zipf exponent fits no field of either set. A field is a point mass on its missing value, the shares of its
first thousand ids, and a tail r ** -exponent over all the others, most of which are seen once.
`calibrate.py` reads these numbers off the head of the real file; `observed` keeps what was measured there,
for the tests.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml
from pydantic import Field

from megalith.core.config import Config, parse_config

KNOT_RANKS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Ranks at which the cumulative share of a field's ids is stated."""
KNOT_QUANTILES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)
"""Quantiles at which the values of a numeric field are stated."""

CalibratedSource = Literal["criteo", "avazu"]
"""Real data sets."""
SynthSource = CalibratedSource | Literal["tables", "rm1", "rm2", "rm3", "dlrm-v2"]
"""And tables of a stated shape (tables.py)."""


class Observed(Config):
    """What the real head shows of a field, in shares of all its rows."""

    top1: float
    top10: float
    top100: float
    once: float
    """Rows whose id occurs nowhere else in the head."""


class CategoricalShape(Config):
    """One categorical field."""

    name: str
    cardinality: int = Field(ge=1)
    missing: float = Field(default=0.0, ge=0.0, lt=1.0)
    missing_group: str | None = None
    """Fields of one group are missing in the same rows."""
    shares: tuple[float, ...] = ()
    """Cumulative share of present values at KNOT_RANKS, as many as the field has ids."""
    tail_exponent: float = 0.0
    text: Literal["hex", "integer", "hour"] = "hex"
    text_base: int = 0
    """Integer fields: what the first id is called in text."""
    observed: Observed | None = None


class NumericShape(Config):
    """One numeric field: whole numbers whose quantiles are known."""

    name: str
    missing: float = Field(default=0.0, ge=0.0, lt=1.0)
    missing_group: str | None = None
    quantiles: tuple[float, ...] = Field(min_length=len(KNOT_QUANTILES), max_length=len(KNOT_QUANTILES))


class DatasetShape(Config):
    """One data set."""

    source: SynthSource
    rows: int
    click_rate: float = Field(gt=0.0, lt=1.0)
    observed_rows: int
    numeric: tuple[NumericShape, ...] = ()
    categorical: tuple[CategoricalShape, ...]


@cache
def load_shape(source: CalibratedSource) -> DatasetShape:
    """The numbers of a data set that ships with the package."""
    name = f"{source}.yaml"
    content: Any = yaml.safe_load((files(__package__) / name).read_text(encoding="utf-8"))
    return parse_config(DatasetShape, content, name)
