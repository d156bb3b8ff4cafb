"""What a recipe says of who reads: threads of the trainer, or a tier of reader processes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from megalith.comm.ranks import Ranks
from megalith.core.config import Config
from megalith.data.loader.readers import WindowReaders


class IngestConfig(Config):
    """Who reads training data. Batches and their order do not depend on it; it may change on a resume."""

    engine: Literal["local", "ray"] = "local"
    """`local`: `data.threads` threads of the trainer. `ray`: processes of Ray, here or on other machines."""
    readers: int = Field(default=1, ge=1, le=4096)
    """Reader processes of each rank."""
    address: str | None = None
    """Of a Ray cluster to join, host:port; without one the first rank starts Ray on its machine."""
    windows: int | None = Field(default=None, ge=1, le=65_536)
    """Windows that are being read or ready, for each rank; None is two for each reader."""
    max_bytes: int = Field(default=1 << 30, ge=1 << 20)
    """And bytes of them, of each rank: no more is asked for than fits; one window always is."""

    @model_validator(mode="after")
    def _only_ray_has_an_address(self) -> IngestConfig:
        if self.engine == "local" and self.address is not None:
            raise ValueError("address is of a Ray cluster; add engine: ray")
        return self

    @property
    def windows_ahead(self) -> int:
        """Windows of a rank that may be under way."""
        return self.windows or 2 * self.readers


class LocalTier:
    """The trainer reads by itself."""

    readers: WindowReaders | None = None
    """Of the loader; None are its own threads."""

    def start(self) -> None:
        """Nothing is to be started."""

    def close(self) -> None:
        """Nothing was started."""


def open_tier(config: IngestConfig, ranks: Ranks) -> LocalTier:
    """The readers of a recipe. All ranks start it before they read, and close it when they have read."""
    if config.engine == "local":
        return LocalTier()
    from megalith.data.ingest.ray_tier import RayTier

    return RayTier(config, ranks)
