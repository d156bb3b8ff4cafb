"""`PublishConfig`: where a run publishes its model while it trains, how often, and in which precision."""

from __future__ import annotations

from pydantic import Field, model_validator

from megalith.core.config import Config
from megalith.core.store_spec import Bytes
from megalith.export.manifest import TablePrecision
from megalith.export.program import Precision

EVERY_TABLE = "*"


class PublishConfig(Config):
    """Versions of the model while it trains: one whole at each start, then what changed."""

    uri: str
    """A directory, or a place in an object store: `s3://bucket/folder`."""
    every_seconds: float | None = Field(default=None, gt=0)
    """Publish every so many seconds. Give this or `every_steps`."""
    every_steps: int | None = Field(default=None, ge=1)
    """Publish every so many steps; one that falls due while another is on its way waits for it."""
    tables: TablePrecision | dict[str, TablePrecision] = "int8"
    """What rows are stored as; or by table, "*" being every table not named. float32 is exact."""
    dense: Precision = "float32"
    """What layers of the dense part are stored as."""
    user: tuple[str, ...] = ()
    """Features that are the same for all samples of a request."""
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+$")
    """Of the model, as servers know it; None is the name of the recipe."""
    keep: int = Field(default=2, ge=1)
    """The newest so many snapshots are kept, with the deltas after the oldest of them."""
    snapshot_share: float = Field(default=0.5, gt=0)
    """Deltas that together take this share of the newest snapshot are made a snapshot."""
    buffer: Bytes = Field(default=256 << 20, ge=1 << 12)
    """Most bytes of rows that are copied for one version; tables that do not fit are sent whole."""

    @model_validator(mode="after")
    def _has_an_interval(self) -> PublishConfig:
        if (self.every_seconds is None) == (self.every_steps is None):
            raise ValueError("give either every_seconds or every_steps")
        return self

    def precision_of(self, table: str) -> TablePrecision:
        """What rows of a table are stored as."""
        if isinstance(self.tables, str):
            return self.tables
        return self.tables.get(table, self.tables.get(EVERY_TABLE, "int8"))
