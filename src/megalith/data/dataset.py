"""A prepared data set: a folder with `schema.json` and one folder of Parquet parts for each split.

    DIR/schema.json                what the columns mean, where they came from, rows of each split
    DIR/train/part-00000.parquet   label, weight and event time (int64) where there are any, numeric columns
                                   (float32), categorical columns (int32 ids or lists)
    DIR/valid/..., DIR/test/...    where they were asked for
    DIR/vocabulary/...             raw value -> id of each categorical feature, where ids come from one

Ids: 0 is a missing value, 1 a value outside the vocabulary, 2 and up the vocabulary by falling count. Raw ids
(`num_ids` is null; int64 columns) are what `data.readers.raw_ids` makes of values: the smallest 64-bit number
is a missing one. Folders with such features have version 2, those with an event time version 3. An event time
is when a sample happened, in whole seconds since 1970. Features that share a vocabulary (`vocabulary` names
the first of them, which has the file) stand one after the other; such folders have version 4.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import Field, field_validator

from megalith.core.config import Config, parse_config
from megalith.core.errors import ConfigError, DataError, nearest
from megalith.core.files import read_json_object, write_atomic
from megalith.core.schema import FeatureSpec

SCHEMA_FILE = "schema.json"
VERSION = 1
RAW_VERSION = 2
"""Of data sets that have features with raw ids; earlier releases cannot read these."""
TIMED_VERSION = 3
"""Of data sets whose samples have an event time."""
SHARED_VERSION = 4
"""Of data sets with features that share a vocabulary."""
MAX_EVENT_TIME = 2**32 - 1
"""Seconds since 1970: in the year 2106."""
MISSING_ID, UNKNOWN_ID, FIRST_ID = 0, 1, 2
MISSING_RAW_ID = -(2**63)


class Split(Config):
    """The rows of one split and the files that hold them, relative to the data set's folder."""

    rows: int = Field(ge=0)
    positives: float = Field(ge=0)
    files: tuple[str, ...]
    best_log_loss: float | None = None
    """Generated data only: log loss of the planted click probabilities, which no model can beat."""

    @field_validator("files")
    @classmethod
    def _files_lie_inside(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        for name in files:
            path = PurePosixPath(name)
            if not name or "\0" in name or path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{name!r} is not the name of a file inside the data set's folder")
        return files

    @property
    def click_rate(self) -> float:
        """Share of the rows whose label is a click."""
        return self.positives / self.rows if self.rows else 0.0


class DatasetSchema(Config):
    """The content of `schema.json`."""

    format: Literal["megalith-dataset"] = "megalith-dataset"
    version: int = VERSION
    source: str
    """Where the rows came from: criteo, avazu, libfm, parquet, synth-criteo, ..."""
    label: str = "label"
    weight: str | None = None
    event_time: str | None = None
    """The column that says when a sample happened, in seconds since 1970; None where nothing does."""
    numeric: tuple[str, ...] = ()
    categorical: tuple[FeatureSpec, ...] = ()
    splits: dict[str, Split]
    bad_rows: int = 0
    preparation: dict[str, Any] = Field(default_factory=dict)
    """How the columns were made (transforms, minimum count, hash size), enough to do it again."""

    @field_validator("splits")
    @classmethod
    def _splits_name_files(cls, splits: dict[str, Split]) -> dict[str, Split]:
        # A run writes evaluation-SPLIT.json.
        for name in splits:
            if not name.isprintable() or not name or "/" in name:
                raise ValueError(f"{name!r} cannot be the name of a split")
        return splits

    @field_validator("categorical")
    @classmethod
    def _sharers_are_neighbours(cls, features: tuple[FeatureSpec, ...]) -> tuple[FeatureSpec, ...]:
        # A table's features are read one after the other; elsewhere a batch would have them in another order.
        names = [feature.vocabulary or feature.name for feature in features]
        blocks = [name for place, name in enumerate(names) if place == 0 or names[place - 1] != name]
        for name in blocks:
            if blocks.count(name) > 1:
                raise ValueError(f"features that share the vocabulary of '{name}' must follow each other")
        own = {feature.name: feature for feature in features}
        for feature in features:
            first = own.get(feature.vocabulary or feature.name)
            if (
                first is None
                or first.vocabulary not in (None, first.name)
                or first.num_ids != feature.num_ids
            ):
                raise ValueError(f"feature '{feature.name}' cannot share the vocabulary it names")
        return features

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the categorical features, in order."""
        return tuple(feature.name for feature in self.categorical)


class Dataset:
    """A prepared folder, opened: its schema and the paths of its splits."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.schema = read_schema(self.folder)

    def files(self, split: str) -> list[Path]:
        """The Parquet parts of a split, each checked to exist."""
        paths = [self.folder / name for name in self.split(split).files]
        for path in paths:
            if not path.exists():
                raise DataError(
                    f"{path} is named in {SCHEMA_FILE} but missing; run `megalith data prepare` again."
                )
        return paths

    def split(self, name: str) -> Split:
        """The description of one split; a ConfigError names those there are."""
        if name not in self.schema.splits:
            raise ConfigError(
                f"{self.folder} has no split '{name}'; {nearest(name, list(self.schema.splits))}"
            )
        return self.schema.splits[name]


def read_schema(folder: Path) -> DatasetSchema:
    """Reads and checks `schema.json` of a prepared data set."""
    path = folder / SCHEMA_FILE
    if not path.exists():
        raise DataError(
            f"{folder} is not a prepared data set ({SCHEMA_FILE} is missing); make one with "
            "`megalith data prepare` or `megalith data synth`."
        )
    fix = "run `megalith data prepare` again"
    content = read_json_object(path, fix=fix)
    version = content.get("version")
    if version not in (VERSION, RAW_VERSION, TIMED_VERSION, SHARED_VERSION):
        raise DataError(
            f"{path} has version {version}, this package reads {VERSION} to {SHARED_VERSION}; prepare the "
            "data again."
        )
    return parse_config(DatasetSchema, content, str(path), fix, DataError)


def write_schema(folder: Path, schema: DatasetSchema) -> None:
    """Writes `schema.json`, whole or not at all."""
    # Earlier releases refuse keys that they do not know: those are written where they say something.
    left_out: dict[str, Any] = {}
    version = RAW_VERSION if any(feature.is_raw for feature in schema.categorical) else schema.version
    if schema.event_time is None:
        left_out["event_time"] = True
    else:
        version = TIMED_VERSION
    if any(feature.vocabulary for feature in schema.categorical):
        version = SHARED_VERSION
    else:
        left_out["categorical"] = {"__all__": {"vocabulary"}}
    schema = schema.model_copy(update={"version": version})
    write_atomic(folder / SCHEMA_FILE, schema.model_dump_json(indent=1, exclude=left_out) + "\n")
