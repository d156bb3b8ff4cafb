"""Delimited text formats as values: a delimiter, whether there is a header, and what each column is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ColumnKind = Literal["label", "number", "category", "hour", "skip"]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: ColumnKind = "category"


@dataclass(frozen=True, slots=True)
class TextFormat:
    """A format of one row a line. With a header, columns are found by name and may stand in any order."""

    name: str
    delimiter: str
    columns: tuple[Column, ...]
    header: bool = False


CRITEO = TextFormat(
    "criteo",
    "\t",
    (
        Column("label", "label"),
        *(Column(f"I{number}", "number") for number in range(1, 14)),
        *(Column(f"C{number}") for number in range(1, 27)),
    ),
)
"""Criteo display ads: a label, 13 integers and 26 hexadecimal values; blanks are missing values."""

AVAZU = TextFormat(
    "avazu",
    ",",
    (
        Column("id", "skip"),
        Column("click", "label"),
        Column("hour", "hour"),
        *(
            Column(name)
            for name in (
                *("C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain"),
                *(
                    "app_category",
                    "device_id",
                    "device_ip",
                    "device_model",
                    "device_type",
                    "device_conn_type",
                ),
                *("C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21"),
            )
        ),
    ),
    header=True,
)
"""Avazu clicks: no `id`; `hour` (YYMMDDHH) becomes `hour_of_day` (0-23) and `weekday` (0 is Monday)."""
