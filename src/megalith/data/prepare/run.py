"""The two passes: count what occurs, then write every row with its ids."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megalith.core.errors import ConfigError, DataError
from megalith.core.files import new_folder, remove_partials
from megalith.core.schema import FeatureSpec
from megalith.data.dataset import SCHEMA_FILE, DatasetSchema, Split, read_schema, write_schema
from megalith.data.prepare.options import PrepareOptions
from megalith.data.prepare.pipeline import OrderedPipeline
from megalith.data.prepare.recipe import ALL_RAW, PrepareRecipe, make_prepare_recipe
from megalith.data.prepare.rows import BadRows, NumberedBlock, RowNumbers
from megalith.data.prepare.splits import ValidRule
from megalith.data.prepare.vocabulary import IdMaps, counted_ids, hashed_ids, loaded_ids, vocabulary_path
from megalith.data.prepare.writer import OutputColumn, SplitWriter
from megalith.data.readers import Bag, Feature, LogSource, open_text
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


def prepare(options: PrepareOptions, progress: Progress | None = None) -> PrepareResult:
    """Prepares files into `options.out`, which appears when it is complete and not before."""
    begin = time.perf_counter()
    out = options.out
    remove_partials(out.parent, out.name)
    with new_folder(out, options.overwrite) as folder:
        if options.source != "parquet":
            for path in (*options.files, *options.test_files):
                _check_input(path, options)
        work_folder = folder / ".work"
        work_folder.mkdir()
        run = _Run(options, make_prepare_recipe(options), folder, work_folder, progress or (lambda *_: None))
        schema = run.prepare()
        shutil.rmtree(work_folder)
        write_schema(folder, schema)
    return PrepareResult(schema, time.perf_counter() - begin, run.num_spills)


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
        self.source = recipe.open(options.files, options.chunk_bytes)

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
        total = sum(split.rows for split in splits.values())
        if total == 0:
            raise DataError(f"{options.files[0]} holds no rows; check the file.")
        if self.num_rows not in (None, total):
            raise DataError(f"{options.files[0]} changed while it was being read; wait until it is complete.")
        if options.test_files:
            test = self.recipe.open(options.test_files, options.chunk_bytes)
            splits |= self._write("test", test, ids, ValidRule(0.0), bad_rows)
        return self._schema(splits, ids, bad_rows)

    def _count_rows(self) -> int:
        rows = RowNumbers(
            BadRows(self.options.max_bad_rows), self.options.limit_rows, self._report("counting rows")
        )
        for _ in self._pipeline(self.source, rows, lambda numbered: None):
            pass
        return rows.num_rows

    def _ids(self, rule: ValidRule) -> IdMaps:
        is_raw = [feature.name in self.recipe.raw for feature in self.source.features]
        if all(is_raw):
            return IdMaps((), ()).with_raw(is_raw)
        return self._mapped_ids(rule).with_raw(is_raw)

    def _mapped_ids(self, rule: ValidRule) -> IdMaps:
        """Ids of the features that have no raw ones."""
        options = self.options
        chosen = [n for n, feature in enumerate(self.source.features) if feature.name not in self.recipe.raw]
        features = [self.source.features[number] for number in chosen]
        if self.recipe.hash_buckets:
            return hashed_ids(len(features), self.recipe.hash_buckets)
        if options.vocabulary_from:
            ids = loaded_ids(
                options.vocabulary_from, features, self.folder, self.work_folder, options.memory_bytes
            )
            self._check_sizes(ids, features, options.vocabulary_from)
            return ids
        with KeyCounter(len(features), options.memory_bytes, self.work_folder) as counter:
            rows = RowNumbers(
                BadRows(options.max_bad_rows), options.limit_rows, self._report("counting values")
            )

            def count(numbered: NumberedBlock) -> None:
                valid = rule.mask(numbered.first_row, numbered.block.num_rows)
                training = None if valid is None else ~valid
                # Threads begin at different features, so that they seldom wait for each other.
                for step in range(len(features)):
                    feature = (step + numbered.first_row) % len(features)
                    column = numbered.block.keys[chosen[feature]]
                    if isinstance(column, Bag):
                        column = column if training is None else column.take(training)
                        counter.add(feature, column.keys)
                    else:
                        counter.add(feature, column, training)

            for _ in self._pipeline(self.source, rows, count):
                pass
            self.num_rows = rows.num_rows
            self.num_spills = counter.num_spills
            self.progress("writing vocabularies", rows.num_rows, None)
            return counted_ids(
                counter,
                features,
                self.folder,
                self.work_folder,
                options.min_count,
                options.max_vocabulary,
                options.memory_bytes,
                options.threads,
            )

    def _check_sizes(self, ids: IdMaps, features: Sequence[Feature], origin: Path) -> None:
        """A vocabulary of another size than its data set says would give ids that its tables do not have."""
        declared = {feature.name: feature.num_ids for feature in read_schema(origin).categorical}
        for feature, num_ids in zip(features, ids.num_ids, strict=True):
            if num_ids != declared.get(feature.name):
                raise DataError(
                    f"{vocabulary_path(origin, feature.name)} is not the vocabulary that "
                    f"{origin / SCHEMA_FILE} describes; prepare {origin} again."
                )

    def _write(
        self, split: str, source: LogSource, ids: IdMaps, rule: ValidRule, bad_rows: BadRows
    ) -> dict[str, Split]:
        total = self.num_rows if split == "train" else None
        rows = RowNumbers(bad_rows, self.options.limit_rows, self._report(f"writing {split}", total))
        schema = self._columns_schema()

        def to_columns(numbered: NumberedBlock) -> tuple[list[OutputColumn], list[OutputColumn] | None]:
            block = numbered.block
            times = [] if block.times is None else [block.times]
            columns: list[OutputColumn] = [block.labels, *times, *block.numbers]
            for column, to_ids in zip(block.keys, ids.maps, strict=True):
                if isinstance(column, Bag):
                    columns.append((to_ids(column.keys), column.row_ends))
                else:
                    columns.append(to_ids(column))
            valid = rule.mask(numbered.first_row, block.num_rows)
            if valid is None:
                return columns, None
            return [_take(column, ~valid) for column in columns], [_take(column, valid) for column in columns]

        num_ids = {
            feature.name: count
            for feature, count in zip(source.features, ids.num_ids, strict=True)
            if count is not None
        }
        names = (split, "valid") if rule.fraction else (split,)
        writers = {name: SplitWriter(self.folder, name, schema, num_ids) for name in names}
        try:
            with closing(self._pipeline(source, rows, to_columns)) as results:
                for kept, held_out in results:
                    writers[split].add(kept)
                    if held_out is not None:
                        writers["valid"].add(held_out)
            return {name: writer.close() for name, writer in writers.items()}
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

    def _columns_schema(self) -> pa.Schema:
        # Columns that say they hold no nulls are written and read without their levels.
        time = self.recipe.event_time
        scalars = [(self.recipe.label, pa.float32())]
        scalars += [] if time is None else [(time.name, pa.int64())]
        scalars += [(name, pa.float32()) for name in self.source.numeric]
        fields = [pa.field(name, kind, nullable=False) for name, kind in scalars]
        for feature in self.source.features:
            ids = pa.int64() if feature.name in self.recipe.raw else pa.int32()
            kind = pa.list_(ids) if feature.multi_hot else ids
            fields.append(pa.field(feature.name, kind, nullable=feature.multi_hot))
        return pa.schema(fields)

    def _schema(self, splits: dict[str, Split], ids: IdMaps, bad_rows: BadRows) -> DatasetSchema:
        options = self.options
        return DatasetSchema(
            source=options.source,
            label=self.recipe.label,
            event_time=None if self.recipe.event_time is None else self.recipe.event_time.name,
            numeric=self.source.numeric,
            categorical=tuple(
                FeatureSpec(name=feature.name, num_ids=num_ids, max_length=None if feature.multi_hot else 1)
                for feature, num_ids in zip(self.source.features, ids.num_ids, strict=True)
            ),
            splits=splits,
            bad_rows=bad_rows.count,
            preparation={
                "recipe": self.recipe.model_dump(mode="json"),
                "min_count": None
                if self.recipe.hash_buckets or options.vocabulary_from or not any(ids.num_ids)
                else options.min_count,
                "max_vocabulary": options.max_vocabulary,
                "vocabulary_from": str(options.vocabulary_from) if options.vocabulary_from else None,
                "valid_fraction": options.valid_fraction,
                "valid_from": options.valid_from,
                "seed": options.seed,
                "limit_rows": options.limit_rows,
                "files": [str(path) for path in options.files],
                "test_files": [str(path) for path in options.test_files],
                "first_bad_rows": [
                    {"file": bad.file, "line": bad.line, "problem": bad.problem} for bad in bad_rows.first
                ],
            },
        )


def _take(column: OutputColumn, rows: NDArray[np.bool_]) -> OutputColumn:
    if isinstance(column, tuple):
        ids, ends = column
        lengths = np.diff(ends, prepend=0)
        return ids[np.repeat(rows, lengths)], np.cumsum(lengths[rows])
    return column[rows]


def _check_input(path: Path, options: PrepareOptions) -> None:
    """Finds a missing, empty or unreadable file before hours of work on the others."""
    if path.is_fifo():
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
