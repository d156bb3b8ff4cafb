"""Event times: when a sample happened, as whole seconds since 1970, from a column of the files.

    timestamps, dates (tables)    as they are; those without a zone count as UTC; parts of seconds are dropped
    integers (tables)             seconds, or a finer unit: the first value decides for the whole column
    hour (Avazu)                  YYMMDDHH, the beginning of the hour, as UTC

The first integer is in seconds below 10^11 (the year 5138), in milliseconds below 10^14, in microseconds
below 10^17, else in nanoseconds. Every other value is then read in that unit.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megalith.core.config import Config
from megalith.core.errors import ConfigError
from megalith.data.dataset import MAX_EVENT_TIME
from megalith.ops.text.keys import Keys

TimeUnit = Literal["timestamps", "seconds", "milliseconds", "microseconds", "nanoseconds", "hours"]
_A_SECOND: dict[str, int] = {
    "seconds": 1,
    "milliseconds": 10**3,
    "microseconds": 10**6,
    "nanoseconds": 10**9,
}
_BY_ARROW_UNIT = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_LARGEST_SECONDS = 10**11


class EventTimeColumn(Config):
    """The column of event times, and what its values are."""

    name: str
    unit: TimeUnit

    def describe(self) -> str:
        """The rule by which it is read, for people."""
        rules = {
            "timestamps": "timestamps, as UTC where they have no zone",
            "hours": "hours as YYMMDDHH, as UTC",
        }
        read = rules.get(self.unit, f"integers, read as {self.unit} since 1970 as the size of the first asks")
        return f"Event time: column '{self.name}', {read}; kept in whole seconds."


def unit_of_integers(first: int) -> TimeUnit:
    """The unit of a column of integers, from the first of them.

    >>> unit_of_integers(1_700_000_000), unit_of_integers(1_700_000_000_000)
    ('seconds', 'milliseconds')
    """
    size, unit = abs(first), _LARGEST_SECONDS
    for name in ("seconds", "milliseconds", "microseconds"):
        if size < unit:
            return name
        unit *= 1000
    return "nanoseconds"


def is_time(kind: pa.DataType) -> bool:
    """Whether values of this type are times by themselves."""
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def refuse_type(where: str, column: str, kind: pa.DataType) -> ConfigError:
    """The sentence for a column that holds no times."""
    return ConfigError(
        f"Column '{column}' of {where} has type {kind}; --event-time takes timestamps, dates, or integers of "
        "seconds or milliseconds since 1970."
    )


def seconds(column: pa.Array, unit: TimeUnit) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Whole seconds since 1970 of each value, and which values are a time from 1970 to 2106.

    >>> seconds(pa.array([1500, None, -1]), "milliseconds")[0].tolist()
    [1, 0, -1]
    """
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s"))
    parts = _BY_ARROW_UNIT[column.type.unit] if unit == "timestamps" else _A_SECOND[unit]
    missing = column.is_null().to_numpy(zero_copy_only=False)
    # The bits of the largest unsigned integers are negative, and so no time.
    numbers = column.cast(pa.int64(), safe=False).fill_null(0).to_numpy(zero_copy_only=False)
    times = numbers // parts
    return times, ~missing & (times >= 0) & (times <= MAX_EVENT_TIME)


def hour_seconds(keys: Keys) -> NDArray[np.int64]:
    """Seconds since 1970 of hours as YYMMDDHH, by the key of their text; -1 of a missing one."""
    distinct, inverse = np.unique(keys, return_inverse=True)
    texts = [int(key).to_bytes(8, "little").rstrip(b"\0") for key in distinct]
    return np.array([_hour(text) if text else -1 for text in texts], np.int64)[inverse]


def _hour(text: bytes) -> int:
    return int(datetime.strptime(f"20{text.decode()}", "%Y%m%d%H").replace(tzinfo=UTC).timestamp())
