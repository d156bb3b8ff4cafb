"""The columns of a table that a data set is made of, as its `schema.json` keeps them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from megalith.core.config import Config


class ColumnChoice(Config):
    """Which columns are what."""

    label: str
    numbers: tuple[str, ...]
    features: tuple[tuple[str, bool], ...]
    """Name and whether it is multi-hot, in the order of the file."""
    integers: tuple[str, ...] = ()
    """Features that hold integers: raw ids of these are their values."""
    vectors: dict[str, int] = {}
    """Those of `numbers` that are lists of floats, and how many each row holds."""
    weight: str | None = None
    """The column of sample weights."""
    max_lengths: dict[str, int] = Field(default_factory=dict)
    """By multi-hot feature, how many ids of a row are kept."""
    keep: Literal["last", "first"] = "last"
    """Which ids of a longer list stay."""
    separators: dict[str, str] = {}
    """By multi-hot feature that is text, what stands between its ids."""

    def number_columns(self, name: str) -> tuple[str, ...]:
        """The columns that one of `numbers` becomes: itself, or NAME_0, NAME_1, ... for a vector."""
        if name not in self.vectors:
            return (name,)
        return tuple(f"{name}_{place}" for place in range(self.vectors[name]))
