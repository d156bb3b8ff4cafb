"""The two passes: count what occurs, then write every row with its ids."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from megalith.core.errors import ConfigError, DataError
from megalith.core.files import new_folder, remove_partials
from megalith.data.dataset import SCHEMA_FILE, DatasetSchema, Split, read_schema, write_schema
from megalith.data.prepare.describe import describe_dataset, output_schema
from megalith.data.prepare.frames import TellListing
from megalith.data.prepare.id_sources import IdSource
from megalith.data.prepare.options import FRAME_SOURCES, PrepareOptions
from megalith.data.prepare.pipeline import OrderedPipeline
from megalith.data.prepare.recipe import ALL_RAW, PrepareRecipe, make_prepare_recipe
from megalith.data.prepare.rows import BadRows, NumberedBlock, RowNumbers
from megalith.data.prepare.splits import ValidRule
from megalith.data.prepare.texts import MetTexts, VocabularyTexts
from megalith.data.prepare.vocabulary import (
    FeatureIds,
    counted_ids,
    ids_by_feature,
    loaded_ids,
    vocabulary_path,
)
from megalith.data.prepare.writer import OutputColumn, SplitWriter
from megalith.data.readers import Bag, ColumnListing, LogSource, open_text
from megalith.ops.text.keys import KeyCounter

Progress = Callable[[str, int, int | None], None]
"""Called with the stage, the rows done and, where it is known, the rows in all."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class PrepareResult:
    """The prepared data set's schema, and what preparing it took."""

    schema: DatasetSchema
    seconds: float
    num_spills: int
    """Times a table of counts went to disk for want of memory."""


def list_frame(options: PrepareOptions, tell: TellListing = lambda listing: None) -> ColumnListing:
    """What the columns of the first file are taken for; nothing is written.

    `tell` hears of it before anything is refused.
    """
    if options.source not in FRAME_SOURCES:
        raise ConfigError(
            f"The columns of {options.source} files are fixed; --dry-run lists those of parquet, arrow and "
            "csv."
        )
    _check_files(options)
    recipe, listing = make_prepare_recipe(options, tell)
    recipe.id_sources(recipe.open(options.files, options.chunk_bytes).features, options)
    assert listing is not None
    return listing


def prepare(
    options: PrepareOptions, progress: Progress | None = None, tell: TellListing = lambda listing: None
) -> PrepareResult:
    """Prepares files into `options.out`, which appears when it is complete and not before.

    `tell` hears what the columns of a table are taken for, before the work begins.
    """
    begin = time.perf_counter()
    out = options.out
    remove_partials(out.parent, out.name)
    with new_folder(out, options.overwrite) as folder:
        _check_files(options)
        work_folder = folder / ".work"
        work_folder.mkdir()
        recipe, listing = make_prepare_recipe(options, tell)
        run = _Run(options, recipe, folder, work_folder, progress or (lambda *_: None))
        schema = run.prepare()
        schema.preparation["unknown_shares"] = run.unknown_shares
        if listing is not None:
            schema.preparation["columns"] = listing.model_dump(mode="json")
        shutil.rmtree(work_folder)
        write_schema(folder, schema)
    return PrepareResult(schema, time.perf_counter() - begin, run.num_spills)


class _OutputRows(NamedTuple):
    """The rows of a block as columns to write."""

    kept: list[OutputColumn]
    held_out: list[OutputColumn] | None
    texts: list[MetTexts]


class _Run:
    def __init__(
        self,
        options: PrepareOptions,
        recipe: PrepareRecipe,
        folder: Path,
        work_folder: Path,
        progress: Progress,
    ) -> None:
        self.options, self.recipe = options, recipe
        self.folder, self.work_folder = folder, work_folder
        self.progress = progress
        self.num_spills = 0
        self.num_rows: int | None = None
        self.texts: VocabularyTexts | None = None
        self.unknown_shares: dict[str, float] = {}
        self.source = recipe.open(options.files, options.chunk_bytes)
        self.id_sources = recipe.id_sources(self.source.features, options)

    def prepare(self) -> DatasetSchema:
        options = self.options
        tail_start = None
        if options.valid_fraction and options.valid_from == "tail":
            self.num_rows = self._count_rows()
            tail_start = self.num_rows - int(self.num_rows * options.valid_fraction)
        rule = ValidRule(options.valid_fraction, options.seed, tail_start)
        ids = self._ids(rule)
        bad_rows = BadRows(options.max_bad_rows)
        splits = self._write("train", self.source, ids, rule, bad_rows)
        self._save_texts()
        total = sum(split.rows for split in splits.values())
        if total == 0:
            raise DataError(f"{options.files[0]} holds no rows; check the file.")
        if self.num_rows not in (None, total):
            raise DataError(f"{options.files[0]} changed while it was being read; wait until it is complete.")
        for split, files in (("valid", options.valid_files), ("test", options.test_files)):
            if files:
                source = self.recipe.open(files, options.chunk_bytes)
                splits |= self._write(split, source, ids, ValidRule(0.0), bad_rows)
        return describe_dataset(options, self.recipe, self.source, self.id_sources, ids, splits, bad_rows)

    def _count_rows(self) -> int:
        rows = RowNumbers(
            BadRows(self.options.max_bad_rows), self.options.limit_rows, self._report("counting rows")
        )
        for _ in self._pipeline(self.source, rows, lambda numbered: None):
            pass
        return rows.num_rows

    def _ids(self, rule: ValidRule) -> list[FeatureIds]:
        """The ids of each feature."""
        counted = [source for source in self.id_sources if source.has_vocabulary]
        return ids_by_feature(self.id_sources, self._vocabulary_ids(rule, counted) if counted else ())

    def _vocabulary_ids(self, rule: ValidRule, sources: Sequence[IdSource]) -> list[FeatureIds]:
        options = self.options
        if options.vocabulary_from:
            names = [source.name for source in sources]
            ids = loaded_ids(
                options.vocabulary_from, names, self.folder, self.work_folder, options.memory_bytes
            )
            self._check_sizes(ids, names, options.vocabulary_from)
            return ids
        # Of every feature its place in a block, and the vocabulary that its keys count for.
        columns = [(member, number) for number, source in enumerate(sources) for member in source.members]
        with KeyCounter(len(sources), options.memory_bytes, self.work_folder) as counter:
            rows = RowNumbers(
                BadRows(options.max_bad_rows), options.limit_rows, self._report("counting values")
            )

            def count(numbered: NumberedBlock) -> None:
                valid = rule.mask(numbered.first_row, numbered.block.num_rows)
                training = None if valid is None else ~valid
                # Threads begin at different features, so that they seldom wait for each other.
                for step in range(len(columns)):
                    member, number = columns[(step + numbered.first_row) % len(columns)]
                    column = numbered.block.keys[member]
                    if isinstance(column, Bag):
                        column = column if training is None else column.take(training)
                        counter.add(number, column.keys)
                    else:
                        counter.add(number, column, training)

            for _ in self._pipeline(self.source, rows, count):
                pass
            self.num_rows = rows.num_rows
            self.num_spills = counter.num_spills
            self.progress("writing vocabularies", rows.num_rows, None)
            counted = counted_ids(
                counter, sources, self.folder, self.work_folder, options.memory_bytes, options.threads
            )
        self.texts = VocabularyTexts(sources, counted, self.work_folder, options.memory_bytes // 8)
        return [FeatureIds(ids.to_ids, ids.num_ids) for ids in counted]

    def _save_texts(self) -> None:
        """Every value that has an id was met in the training files; other files have nothing to add."""
        if self.texts is not None:
            self.texts.save(self.folder, self.options.threads)
            self.texts = None

    def _check_sizes(self, ids: Sequence[FeatureIds], names: Sequence[str], origin: Path) -> None:
        """A vocabulary of another size than its data set says would give ids that its tables do not have."""
        declared = {feature.name: feature.num_ids for feature in read_schema(origin).categorical}
        for name, id_map in zip(names, ids, strict=True):
            if id_map.num_ids != declared.get(name):
                raise DataError(
                    f"{vocabulary_path(origin, name)} is not the vocabulary that "
                    f"{origin / SCHEMA_FILE} describes; prepare {origin} again."
                )

    def _write(
        self, split: str, source: LogSource, ids: Sequence[FeatureIds], rule: ValidRule, bad_rows: BadRows
    ) -> dict[str, Split]:
        total = self.num_rows if split == "train" else None
        rows = RowNumbers(bad_rows, self.options.limit_rows, self._report(f"writing {split}", total))
        schema = output_schema(self.recipe, source)
        texts = self.texts

        def to_columns(numbered: NumberedBlock) -> _OutputRows:
            block = numbered.block
            optional = [column for column in (block.weights, block.times) if column is not None]
            columns: list[OutputColumn] = [block.labels, *optional, *block.numbers]
            ids_of = [
                to_ids(column.keys if isinstance(column, Bag) else column)
                for column, (to_ids, _) in zip(block.keys, ids, strict=True)
            ]
            met = [] if texts is None else texts.met(block, ids_of)
            for column, mapped in zip(block.keys, ids_of, strict=True):
                columns.append((mapped, column.row_ends) if isinstance(column, Bag) else mapped)
            valid = rule.mask(numbered.first_row, block.num_rows)
            if valid is None:
                return _OutputRows(columns, None, met)
            kept, held_out = ([_take(column, rows) for column in columns] for rows in (~valid, valid))
            return _OutputRows(kept, held_out, met)

        num_ids = {
            feature.name: id_map.num_ids
            for feature, id_map in zip(source.features, ids, strict=True)
            if id_map.num_ids is not None
        }
        names = (split, "valid") if rule.fraction else (split,)
        writers = {name: SplitWriter(self.folder, name, schema, num_ids) for name in names}
        try:
            with closing(self._pipeline(source, rows, to_columns)) as results:
                for kept, held_out, met in results:
                    writers[split].add(kept)
                    if held_out is not None:
                        writers["valid"].add(held_out)
                    if texts is not None:
                        texts.add(met)
            written = {name: writer.close() for name, writer in writers.items()}
            if split == "train":
                self.unknown_shares = writers[split].unknown_shares()
            return written
        finally:
            for writer in writers.values():
                writer.abandon()

    def _pipeline(
        self, source: LogSource, rows: RowNumbers, work: Callable[[NumberedBlock], Result]
    ) -> Generator[Result, None, None]:
        items = rows.until_full(source.items())
        return OrderedPipeline(items, source.parse, rows.number, work, self.options.threads).results()

    def _report(self, stage: str, total: int | None = None) -> Callable[[int], None]:
        return lambda rows: self.progress(stage, rows, total)


def _take(column: OutputColumn, rows: NDArray[np.bool_]) -> OutputColumn:
    if isinstance(column, tuple):
        ids, ends = column
        lengths = np.diff(ends, prepend=0)
        return ids[np.repeat(rows, lengths)], np.cumsum(lengths[rows])
    return column[rows]


def _check_files(options: PrepareOptions) -> None:
    # Parquet and Arrow files are opened by their own readers, which say what is wrong.
    if options.source in ("parquet", "arrow"):
        return
    for path in (*options.files, *options.valid_files, *options.test_files):
        _check_input(path, options)


def _check_input(path: Path, options: PrepareOptions) -> None:
    """Finds a missing, empty or unreadable file before hours of work on the others."""
    if path.is_fifo():
        if options.source == "csv":
            raise ConfigError(f"{path} is a pipe and would be read twice; save it to a file.")
        one_pass = options.hash_buckets or options.vocabulary_from or options.raw == (ALL_RAW,)
        if not one_pass or options.source == "libfm" or options.valid_from == "tail":
            raise ConfigError(
                f"{path} is a pipe and would be read twice; save it to a file, or use --hash-buckets or "
                "--raw all."
            )
        return
    with open_text(path) as stream:
        if not stream.readinto(bytearray(1)):
            raise DataError(f"{path} is empty; leave it out or get it again.")
