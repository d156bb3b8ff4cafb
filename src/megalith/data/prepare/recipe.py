"""What must be known to turn further files of the same kind into the same columns; kept in `schema.json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megalith.core.config import Config, parse_config
from megalith.core.errors import ConfigError, nearest
from megalith.data.dataset import Dataset
from megalith.data.prepare.frames import TellListing, choose_frame, existing_listing, frame_format
from megalith.data.prepare.id_sources import IdSource, check_names, list_id_sources
from megalith.data.prepare.options import FRAME_SOURCES, PrepareOptions
from megalith.data.readers import (
    AVAZU,
    CRITEO,
    ColumnChoice,
    ColumnListing,
    DelimitedSource,
    EntryShape,
    EntrySource,
    EventTimeColumn,
    Feature,
    FrameSource,
    LogSource,
    scan_shape,
)
from megalith.data.readers.block import Numeric

ALL_RAW = "all"
TEXT_FORMATS = {"criteo": CRITEO, "avazu": AVAZU}
_AVAZU_TIME = "hour"


class PrepareRecipe(Config):
    """How raw files become columns: transforms, and what the entries or columns of the files are."""

    source: str
    numeric: Numeric = "log"
    missing_number: float = 0.0
    hash_buckets: int | None = None
    entries: EntryShape | None = None
    columns: ColumnChoice | None = None
    raw: tuple[str, ...] = ()
    """Features whose ids are 64-bit values, without a vocabulary."""
    event_time: EventTimeColumn | None = None
    """The column that says when a sample happened."""
    hash_buckets_of: dict[str, int] = {}
    """By feature, instead of `hash_buckets`."""
    vocabularies: dict[str, str] = {}
    """By feature, the one whose vocabulary it shares, itself included."""
    delimiter: str = ","
    """csv: what stands between fields."""

    @property
    def label(self) -> str:
        """The name of the column of labels."""
        return self.columns.label if self.columns else "label"

    @property
    def weight(self) -> str | None:
        """The name of the column of sample weights."""
        return self.columns.weight if self.columns else None

    def id_sources(
        self, features: Sequence[Feature], options: PrepareOptions | None = None
    ) -> list[IdSource]:
        """Where the features that `open` reads have their ids from; `options` say how to count values."""
        return list_id_sources(
            features, self.raw, self.hash_buckets, self.hash_buckets_of, self.vocabularies, options
        )

    def open(self, paths: Sequence[Path], chunk_bytes: int) -> LogSource:
        """The reader of these files."""
        if self.entries is not None:
            return EntrySource(paths, self.entries, chunk_bytes)
        if self.columns is not None:
            return FrameSource(
                frame_format(self.source, self.delimiter, chunk_bytes),
                paths,
                self.columns,
                self.numeric,
                self.missing_number,
                self.raw,
                self.event_time,
            )
        return DelimitedSource(
            TEXT_FORMATS[self.source],
            paths,
            self.numeric,
            self.missing_number,
            chunk_bytes,
            self.event_time,
        )


def make_prepare_recipe(
    options: PrepareOptions, tell: TellListing
) -> tuple[PrepareRecipe, ColumnListing | None]:
    """From the options and a look at the files, or from the data set that the vocabulary is taken from; and
    what the columns of a table are taken for, which `tell` hears before any of them is refused."""
    if options.vocabulary_from is not None:
        recipe = _existing_recipe(options, options.vocabulary_from)
        if recipe.columns is None:
            return recipe, None
        known = existing_listing(options, recipe.columns, recipe.event_time, options.vocabulary_from)
        tell(known)
        return recipe, known
    listing, columns = _columns(options, tell)
    recipe = PrepareRecipe(
        source=options.source,
        numeric=options.numeric or "log",
        missing_number=options.missing_number or 0.0,
        hash_buckets=options.hash_buckets,
        hash_buckets_of=options.hash_buckets_of,
        delimiter=options.delimiter,
        **columns,
    )
    names = [feature.name for feature in recipe.open(options.files, options.chunk_bytes).features]
    check_names(options, names)
    return recipe.model_copy(update={"raw": _raw(options, names)}), listing


def _columns(options: PrepareOptions, tell: TellListing) -> tuple[ColumnListing | None, dict[str, Any]]:
    """What the entries or columns of the files are."""
    if options.source in FRAME_SOURCES:
        listing, columns, event_time, vocabularies = choose_frame(options, tell)
        return listing, {"columns": columns, "event_time": event_time, "vocabularies": vocabularies}
    if options.source == "libfm":
        # Files of other splits take part: what a feature is must hold for all rows.
        files = (*options.files, *options.valid_files, *options.test_files)
        entries = scan_shape(files, options.fields, options.chunk_bytes)
        return None, {"entries": entries, "event_time": _event_time(options)}
    return None, {"event_time": _event_time(options)}


def _event_time(options: PrepareOptions) -> EventTimeColumn | None:
    """The column of event times that was asked for; a text format that has none is refused."""
    name = options.event_time
    if name is None:
        return None
    if options.source != "avazu":
        raise ConfigError(
            f"{options.source} files have no column of times; leave out --event-time, which is for parquet, "
            "arrow, csv and avazu."
        )
    if name != _AVAZU_TIME:
        raise ConfigError(f"The event time of avazu files is '{_AVAZU_TIME}', not '{name}'; name that.")
    return EventTimeColumn(name=name, unit="hours")


def _raw(options: PrepareOptions, names: list[str]) -> tuple[str, ...]:
    """The features that were asked to have raw ids; a name of none is refused."""
    if options.raw == (ALL_RAW,):
        return tuple(names)
    for name in options.raw:
        if name not in names:
            raise ConfigError(f"--raw names '{name}', which is no feature; {nearest(name, names)}")
    return tuple(name for name in names if name in options.raw)


def _existing_recipe(options: PrepareOptions, folder: Path) -> PrepareRecipe:
    schema = Dataset(folder).schema
    content = schema.preparation.get("recipe")
    if not isinstance(content, dict):
        raise ConfigError(
            f"{folder} was not made by `megalith data prepare`, so it has no vocabulary to apply."
        )
    recipe = parse_config(PrepareRecipe, content, f"{folder}/schema.json")
    if recipe.source != options.source:
        raise ConfigError(
            f"{folder} was prepared from {recipe.source} files; its vocabulary does not fit {options.source}."
        )
    for name, asked, known in (
        ("--numeric", options.numeric, recipe.numeric),
        ("--missing-number", options.missing_number, recipe.missing_number),
        ("--event-time", options.event_time, recipe.event_time and recipe.event_time.name),
        ("--weight", options.weight, recipe.columns and recipe.columns.weight),
    ):
        if asked is not None and asked != known:
            raise ConfigError(f"{folder} was prepared with {name} {known}; leave out {name} {asked}.")
    return recipe
