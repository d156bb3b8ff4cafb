"""What a user says of precisions: `int8`, `C1=float16`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from megalith.core.errors import ConfigError, nearest
from megalith.export.manifest import TablePrecision
from megalith.export.program import Precision
from megalith.train.publishing.model_folder import EVERY_TABLE

_TABLES: tuple[TablePrecision, ...] = get_args(TablePrecision)
_LAYERS: tuple[Precision, ...] = get_args(Precision)


def table_precisions(given: Sequence[str]) -> dict[str, TablePrecision]:
    """By table, `*` being every table not named.

    >>> table_precisions(["int4", "C1=float16"])
    {'*': 'int4', 'C1': 'float16'}
    """
    found: dict[str, TablePrecision] = {EVERY_TABLE: "int8"}
    for text in (part.strip() for each in given for part in each.split(",")):
        name, _, precision = text.rpartition("=")
        for known in _TABLES:
            if precision == known:
                found[name or EVERY_TABLE] = known
                break
        else:
            raise ConfigError(f"--tables {text}: {precision!r} is none; {nearest(precision, _TABLES)}")
    return found


def dense_precision(text: str) -> Precision:
    """The precision of layers."""
    for known in _LAYERS:
        if text == known:
            return known
    raise ConfigError(f"--dense {text} is none; {nearest(text, _LAYERS)}")
