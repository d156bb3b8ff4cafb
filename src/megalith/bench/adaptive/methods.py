"""Every method by name: how it is built, and the settings that tuning tries, its usual ones first.

All methods have as many settings to try, so that none is tuned better than the others. `lr` multiplies the
learning rate of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from megalith.bench.adaptive.rivals.cafe import cafe
from megalith.bench.adaptive.rivals.folded import hashing, quotient_remainder
from megalith.bench.adaptive.rivals.magnitude import magnitude
from megalith.bench.adaptive.rivals.narrow import mixed_dims, small_dim
from megalith.bench.adaptive.rivals.plan import RivalPlan
from megalith.bench.adaptive.rivals.row_pool import access_rows, rows
from megalith.core.errors import ConfigError, nearest

Settings = dict[str, Any]
_RATES: tuple[Settings, ...] = ({}, {"lr": 0.5}, {"lr": 2.0}, {"lr": 1.5})
MOST_TUNING = len(_RATES)


@dataclass(frozen=True)
class Method:
    """A way to hold the tables of a model."""

    name: str
    what: str
    """In a few words."""
    settings: tuple[Settings, ...]
    plan: Callable[..., RivalPlan] | None = None
    """From a `SizeProblem` and settings; None: the learner's own tables, dense or adaptive."""
    shrinks_in_training: bool = False
    """Whether its size is known only after training; all others are built at their size."""


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("none", "dense tables, each row whole", _RATES),
        Method(
            "adaptive",
            "chunks of rows under one budget",
            ({"chunk": 4}, {"chunk": 8}, {"chunk": 2}, {"chunk": 1}),
            shrinks_in_training=True,
        ),
        Method(
            "hashing",
            "ids share fewer rows",
            ({}, {"power": 0.5}, {"lr": 0.5}, {"lr": 2.0}),
            hashing,
        ),
        Method(
            "quotient_remainder",
            "two small tables, vectors multiplied or added",
            ({"how": "multiply"}, {"how": "add"}, {"how": "multiply", "lr": 0.5}, {"how": "add", "lr": 0.5}),
            quotient_remainder,
        ),
        Method(
            "small_dim",
            "one smaller dim for all large tables",
            ({"lift": "pad"}, {"lift": "project"}, {"lift": "pad", "lr": 0.5}, {"lift": "pad", "lr": 2.0}),
            small_dim,
        ),
        Method(
            "mixed_dims",
            "dims by popularity, with projections",
            ({"alpha": 0.3}, {"alpha": 0.15}, {"alpha": 0.5}, {"alpha": 0.3, "lr": 2.0}),
            mixed_dims,
        ),
        Method(
            "magnitude",
            "the smallest weights pruned",
            ({"end": 0.9}, {"end": 0.7}, {"end": 0.9, "normalised": True}, {"end": 0.5}),
            magnitude,
            shrinks_in_training=True,
        ),
        Method(
            "rows",
            "whole rows by accesses and gradients (AdaEmbed-like)",
            ({"gamma": 0.998}, {"gamma": 0.98}, {"gamma": 0.998, "interval": 100}, {"lr": 0.5}),
            rows,
        ),
        Method(
            "access_rows",
            "whole rows by accesses, table by table (ITEP-like)",
            ({"gamma": 0.998}, {"gamma": 0.98}, {"gamma": 0.998, "interval": 100}, {"lr": 0.5}),
            access_rows,
        ),
        Method(
            "cafe",
            "rows of their own for ids that a sketch finds, shared rows for all others (CAFE-like)",
            (
                {"hot_share": 0.6, "buckets": 4},
                {"hot_share": 0.6, "buckets": 1},
                {"hot_share": 0.3, "buckets": 4},
                {"hot_share": 0.6, "buckets": 8},
            ),
            cafe,
        ),
    )
}


def choose_methods(names: Sequence[str]) -> list[Method]:
    """The methods of some names, or all of them."""
    for name in names:
        if name not in METHODS:
            raise ConfigError(f"No method '{name}'; {nearest(name, list(METHODS))}")
    return [METHODS[name] for name in dict.fromkeys(names)] or list(METHODS.values())
