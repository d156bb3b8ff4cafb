"""Delimited text formats as values: a delimiter, whether there is a header, and what each column is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ColumnKind = Literal["label", "number", "category", "hour", "skip"]


@dataclass(frozen=True, slots=True)
class TextColumn:
    """One column of a text format: its name, and what its values are."""

    name: str
    kind: ColumnKind = "category"


@dataclass(frozen=True, slots=True)
class DelimitedFormat:
    """A format of one row a line. With a header, columns are found by name and may stand in any order."""

    name: str
    delimiter: str
    columns: tuple[TextColumn, ...]
    header: bool = False


CRITEO = DelimitedFormat(
    "criteo",
    "\t",
    (
        TextColumn("label", "label"),
        *(TextColumn(f"I{number}", "number") for number in range(1, 14)),
        *(TextColumn(f"C{number}") for number in range(1, 27)),
    ),
)
"""Criteo display ads: a label, 13 integers and 26 hexadecimal values; blanks are missing values."""

AVAZU = DelimitedFormat(
    "avazu",
    ",",
    (
        TextColumn("id", "skip"),
        TextColumn("click", "label"),
        TextColumn("hour", "hour"),
        *(
            TextColumn(name)
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
