"""What can be asked of a preparation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from megalith.core.config import Config

SourceName = Literal["criteo", "avazu", "libfm", "parquet", "arrow", "csv"]
FRAME_SOURCES = ("parquet", "arrow", "csv")
"""Tables whose columns are found by name, with rules for what each is."""
MAX_IDS = 2**31 - 3


def _available_cores() -> int:
    """The cores this process may use, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class PrepareOptions(Config):
    """The arguments of `megalith data prepare`."""

    source: SourceName
    files: tuple[Path, ...] = Field(min_length=1)
    out: Path
    test_files: tuple[Path, ...] = ()
    valid_files: tuple[Path, ...] = ()
    """Files of the split `valid`, instead of a share of the training rows."""
    valid_fraction: float = Field(default=0.0, ge=0.0, lt=1.0)
    valid_from: Literal["random", "tail"] = "random"
    seed: int = 0
    min_count: int = Field(default=10, ge=1)
    hash_buckets: int | None = Field(default=None, ge=1, le=MAX_IDS)
    max_vocabulary: int | None = Field(default=None, ge=1)
    min_count_of: dict[str, Annotated[int, Field(ge=1)]] = {}
    """By feature, instead of `min_count`; the same for the two below."""
    hash_buckets_of: dict[str, Annotated[int, Field(ge=1, le=MAX_IDS)]] = {}
    max_vocabulary_of: dict[str, Annotated[int, Field(ge=1)]] = {}
    vocabulary_from: Path | None = None
    numeric: Literal["log", "bucket", "none"] | None = None
    """None: log, or as in `vocabulary_from`."""
    missing_number: float | None = Field(default=None, allow_inf_nan=False)
    """What stands in the output for a missing number, untransformed. None: 0, or as in `vocabulary_from`."""
    max_bad_rows: int = Field(default=0, ge=0)
    limit_rows: int | None = Field(default=None, ge=1)
    memory_bytes: int = Field(default=512 << 20, ge=1)
    """For the tables of counts and of ids; the process itself takes some 200 MiB more, and texts of values
    longer than 8 bytes that wait to be written an eighth of it."""
    threads: int = Field(default_factory=_available_cores, ge=1)
    overwrite: bool = False
    fields: Literal["auto", "positional", "bag", "named"] = "auto"
    """libfm: what the entries of a row are."""
    label: str = "label"
    """parquet, arrow, csv: the column of labels; what follows is for these too."""
    numbers: tuple[str, ...] = ()
    """Names of columns, or several with commas between them; so are the next two."""
    categories: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    weight: str | None = None
    """The column of sample weights."""
    share: tuple[str, ...] = ()
    """Features that share a vocabulary, with commas between them; one entry for each vocabulary."""
    max_length: int | None = Field(default=None, ge=1)
    """Of every list of ids so many are kept."""
    max_length_of: dict[str, Annotated[int, Field(ge=1)]] = {}
    keep: Literal["last", "first"] = "last"
    """Which ids of a longer list stay."""
    separators: dict[str, Annotated[str, Field(min_length=1)]] = {}
    """By column of text that holds several ids, what stands between them."""
    delimiter: str = ","
    """csv: what stands between fields."""
    raw: tuple[str, ...] = ()
    """Features without a vocabulary, whose ids are 64-bit values; `all` alone is every one."""
    event_time: str | None = None
    """parquet, arrow, csv, avazu: the column that says when a sample happened."""
    chunk_bytes: int = Field(default=4 << 20, ge=1)

    @model_validator(mode="after")
    def _one_source_of_ids(self) -> PrepareOptions:
        own = (self.hash_buckets, self.max_vocabulary, self.hash_buckets_of, self.max_vocabulary_of)
        if self.vocabulary_from and any(own):
            raise ValueError(
                "--vocabulary-from decides the ids; leave out --hash-buckets and --max-vocabulary"
            )
        if self.vocabulary_from and self.share:
            raise ValueError("--vocabulary-from decides which features share one; leave out --share")
        if self.vocabulary_from and self.separators:
            raise ValueError("--vocabulary-from decides which columns are lists; leave out --list")
        if self.vocabulary_from and self.raw:
            raise ValueError("--vocabulary-from decides which features have raw ids; leave out --raw")
        if self.hash_buckets and self.max_vocabulary:
            raise ValueError("--hash-buckets makes no vocabulary; leave out --max-vocabulary")
        return self

    @model_validator(mode="after")
    def _one_source_of_validation(self) -> PrepareOptions:
        if self.valid_files and self.valid_fraction:
            raise ValueError("--valid names the rows of the split valid; leave out --valid-fraction")
        return self

    @model_validator(mode="after")
    def _frames_only(self) -> PrepareOptions:
        given = {
            "--weight": self.weight,
            "--share": self.share,
            "--max-length": self.max_length or self.max_length_of,
            "--number": self.numbers,
            "--category": self.categories,
            "--drop": self.dropped,
            "--list": self.separators,
        }
        option = next((option for option, value in given.items() if value), None)
        if option is not None and self.source not in FRAME_SOURCES:
            raise ValueError(
                f"{option} is for parquet, arrow and csv files; the columns of {self.source} files are fixed"
            )
        return self
