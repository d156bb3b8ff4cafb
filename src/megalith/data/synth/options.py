"""What can be asked of generated data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from megalith.core.errors import ConfigError
from megalith.data.synth.calibration import CalibratedSource, SynthSource
from megalith.data.synth.tables import TableShapes

SPLITS = ("train", "valid", "test")
_SMALLEST_CAP = 10_000


@dataclass(frozen=True, slots=True)
class SynthOptions:
    """What to generate; splits follow each other in time: train, valid, test."""

    source: SynthSource
    train_rows: int
    valid_rows: int = 0
    test_rows: int = 0
    seed: int = 0
    drift: float = 0.05
    multi_hot: int = 0
    scale: float | Literal["auto"] = "auto"
    """Share of the real cardinalities; "auto" takes no more ids than there are rows."""
    tail: bool = False
    """Whether rare ids of large fields have effects on clicks (tail.py)."""
    days: int = 0
    """Days over which the rows of all splits are spread evenly by their event time; 0 is no event time."""

    tables: TableShapes | None = None
    """Of data that resembles no real set; `source` then only names it."""

    def check(self) -> None:
        """Raises a ConfigError that names the option which is out of range."""
        if self.tables is not None:
            self._check_tables(self.tables)
        elif self.source not in get_args(CalibratedSource):
            raise ConfigError(f"Source {self.source} needs tables; see megalith.data.synth.tables.")
        if self.train_rows <= 0:
            raise ConfigError(f"--rows must be at least 1, not {self.train_rows}.")
        for name, rows in (("--valid-rows", self.valid_rows), ("--test-rows", self.test_rows)):
            if rows < 0:
                raise ConfigError(f"{name} must not be negative, not {rows}.")
        if self.seed < 0:
            raise ConfigError(f"--seed must not be negative, not {self.seed}.")
        if not 0.0 <= self.drift <= 1.0:
            raise ConfigError(f"--drift must lie between 0 (off) and 1, not {self.drift}.")
        if not 0 <= self.multi_hot <= 100:
            raise ConfigError(f"--multi-hot must lie between 0 and 100, not {self.multi_hot}.")
        if not 0 <= self.days <= 10_000:
            raise ConfigError(f"--days must lie between 0 (no event time) and 10000, not {self.days}.")
        if self.scale != "auto" and not 0.0 < self.scale <= 1.0:
            raise ConfigError(
                f"--scale must be 'auto', 'full' or a number above 0 and up to 1, not {self.scale}."
            )

    def _check_tables(self, tables: TableShapes) -> None:
        tables.check()
        if self.source in get_args(CalibratedSource):
            raise ConfigError(f"{self.source} has the tables of the real data; take the source `tables`.")
        for name, given in (("--multi-hot", self.multi_hot), ("--tail", self.tail), ("--scale", self.scale)):
            if given not in (0, False, "auto"):
                raise ConfigError(
                    f"{name} is for criteo and avazu; {self.source} has --table-rows for how many ids there "
                    "are, and --varied for how many a row has."
                )

    def to_dict(self) -> dict[str, Any]:
        """The options as a data set states them; some only where they are on."""
        optional = ("tail", "days", "tables")
        return {name: value for name, value in asdict(self).items() if name not in optional or value}

    @property
    def rows(self) -> dict[str, int]:
        """Rows of each split."""
        return dict(zip(SPLITS, (self.train_rows, self.valid_rows, self.test_rows), strict=True))

    @property
    def total_rows(self) -> int:
        """Rows of all splits together."""
        return self.train_rows + self.valid_rows + self.test_rows

    def cardinality(self, real: int) -> int:
        """How many ids a field of `real` ids gets here."""
        if self.scale == "auto":
            return min(real, max(self.total_rows, _SMALLEST_CAP))
        return max(min(real, _SMALLEST_CAP), round(real * self.scale))
