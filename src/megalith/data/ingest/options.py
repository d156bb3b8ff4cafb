"""What a recipe says of raw files: whose transforms they take, or which."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from megalith.core.config import Config
from megalith.data.prepare.options import MAX_IDS, PrepareOptions, SourceName


class RawFilesConfig(Config):
    """`data.path` names raw files: they become batches by the transforms of `data prepare`, without its pass.

    Either `vocabulary_from` says what becomes of them, or `source` and the keys after it, which have the
    meaning of the options of `data prepare`; every feature is then hashed or has raw ids.
    """

    vocabulary_from: Path | None = None
    """The folder of a prepared data set whose columns, transforms and vocabulary are taken."""
    valid: Path | None = None
    """Raw files of the split `valid`: a file, a folder or a pattern."""
    source: SourceName | None = None
    """What the files are."""
    hash_buckets: int | None = Field(default=None, ge=1, le=MAX_IDS)
    """Ids of each feature are hashes below this."""
    hash_buckets_of: dict[str, Annotated[int, Field(ge=1, le=MAX_IDS)]] = {}
    """By feature, instead of `hash_buckets`."""
    raw_ids: tuple[str, ...] = ()
    """Features whose ids are 64-bit values, for dynamic tables; [all] is every one."""
    numeric: Literal["log", "bucket", "none"] = "log"
    """What becomes of numbers."""
    missing_number: float = Field(default=0.0, allow_inf_nan=False)
    """What a missing number becomes."""
    event_time: str | None = None
    """The column that says when a sample happened."""
    label: str = "label"
    """The column of labels; this and what follows is for parquet, arrow and csv."""
    numbers: tuple[str, ...] = ()
    """Columns that are numbers."""
    categories: tuple[str, ...] = ()
    """Columns that are categories."""
    dropped: tuple[str, ...] = ()
    """Columns that are not read."""
    weight: str | None = None
    """The column of sample weights."""
    share: tuple[str, ...] = ()
    """Features that share their ids, with commas between them."""
    max_length: int | None = Field(default=None, ge=1)
    """Of every list of ids so many are kept."""
    max_length_of: dict[str, Annotated[int, Field(ge=1)]] = {}
    """By feature, instead of `max_length`."""
    keep: Literal["last", "first"] = "last"
    """Which ids of a longer list stay."""
    separators: dict[str, Annotated[str, Field(min_length=1)]] = {}
    """By column of text that holds several ids, what stands between them."""
    delimiter: str = ","
    """What stands between fields of csv."""

    @model_validator(mode="after")
    def _one_origin(self) -> RawFilesConfig:
        if (self.vocabulary_from is None) == (self.source is None):
            raise ValueError("give vocabulary_from, or source and how its features become ids")
        own = {"vocabulary_from", "valid"}
        extra = next((name for name in type(self).model_fields if name in self.model_fields_set - own), None)
        if self.vocabulary_from is not None and extra is not None and getattr(self, extra) is not None:
            default = type(self).model_fields[extra].default
            if getattr(self, extra) != default:
                raise ValueError(f"vocabulary_from decides the transforms; leave out {extra}")
        return self

    def prepare_options(self, files: Sequence[Path]) -> PrepareOptions:
        """As `data prepare` would be asked."""
        content = self.model_dump(exclude={"vocabulary_from", "valid", "raw_ids"})
        return PrepareOptions.model_validate(
            {**content, "files": tuple(files), "out": Path(), "raw": self.raw_ids, "threads": 1}
        )
