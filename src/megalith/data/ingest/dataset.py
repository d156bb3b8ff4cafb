"""`RawDataset`: a data set whose rows are in raw files; only its schema and vocabulary are in a folder."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from megalith.core.errors import ConfigError, DataError
from megalith.data.dataset import Dataset, Split, write_schema
from megalith.data.ingest.formats import raw_format
from megalith.data.ingest.index import FileIndex, IndexFile, RowIndex
from megalith.data.ingest.options import RawFilesConfig
from megalith.data.ingest.raw_rows import RawRows, SectionReader
from megalith.data.ingest.stored import transforms_of
from megalith.data.places import copy_here, is_remote, list_files, place_text
from megalith.data.prepare.describe import describe_dataset
from megalith.data.prepare.recipe import make_prepare_recipe
from megalith.data.prepare.rows import BadRows
from megalith.data.prepare.vocabulary import ids_by_feature
from megalith.data.prepare.writer import GROUP_ROWS
from megalith.data.raw.transform import RowTransform


class RawDataset(Dataset):
    """Raw files with the transforms of a folder, or with those that a recipe gives them.

    Its splits are `train` and, where there are files for it, `valid`. Rows are counted when a split is first
    asked for.
    """

    def __init__(
        self,
        path: Path,
        config: RawFilesConfig,
        *,
        kept: Path | None = None,
        index: IndexFile | None = None,
        group_rows: int = GROUP_ROWS,
    ) -> None:
        """`kept` is the folder in which a run has the schema already; `index` what it knows of the files."""
        self.path, self._config = path, config
        self.index_file = IndexFile(None) if index is None else index
        self._group_rows = group_rows
        given = config.vocabulary_from
        super().__init__(kept or (self._own_folder() if given is None else transforms_of(given, self)))
        self._places = {"train": path} | ({} if config.valid is None else {"valid": config.valid})
        # What these were before belongs to other rows.
        splits = {name: Split(rows=0, positives=0, files=()) for name in self._places}
        self.schema = self.schema.model_copy(update={"splits": splits})
        self._indexes: dict[str, RowIndex] = {}

    def files(self, split: str) -> list[Path]:
        """There are none that were prepared."""
        raise DataError(
            f"Split '{split}' of {place_text(self.path)} is in raw files; this needs prepared ones, from "
            "`megalith data prepare`."
        )

    def split(self, name: str) -> Split:
        """The rows of a split; how many of them are clicks is not known."""
        return super().split(name).model_copy(update={"rows": self.index(name).rows})

    def index(self, split: str) -> RowIndex:
        """Where the rows of a split are."""
        if split not in self._indexes:
            super().split(split)
            found: list[FileIndex] = []
            place = self._places[split]
            for file in list_files(place):
                first_row = found[-1].first_row + found[-1].rows if found else 0
                known = self.index_file.find(file, first_row)
                if known is None:
                    known = self.reader.format.index(file, first_row, self._group_rows)
                    self.index_file.add(known)
                found.append(known)
            if not found:
                raise DataError(f"{place_text(place)} holds no file; check the path.")
            self._indexes[split] = RowIndex(found, self._group_rows)
        return self._indexes[split]

    def rows(self, splits: Sequence[str]) -> RawRows:
        """The rows of a split, for a loader."""
        if len(splits) != 1:
            raise ConfigError(f"Raw files have one split to train on, not {', '.join(splits)}; name train.")
        return RawRows(self.reader, self.index(splits[0]))

    @cached_property
    def reader(self) -> SectionReader:
        """What turns sections of the files into columns."""
        transform = RowTransform(self.folder)
        if transform.recipe is None:
            raise ConfigError(
                f"{self.folder} was not made by `megalith data prepare`, so it has no transforms for raw "
                "files; name one that was."
            )
        return SectionReader(transform, raw_format(transform.recipe))

    def _own_folder(self) -> Path:
        """A folder with a schema of hashed and raw ids, which lives as long as this does."""
        files = list_files(self.path)
        if not files:
            raise DataError(f"{place_text(self.path)} holds no file; check the path.")
        names = [Path(file.name) for file in files]
        if is_remote(files[0].name):
            # What columns there are is looked up in the first file.
            copied = Path(tempfile.mkdtemp(prefix="megalith-first-"))
            weakref.finalize(self, shutil.rmtree, copied, True)
            above, _, first = files[0].name.partition("?")[0].rpartition("/")
            copy_here(above + files[0].name[len(above) + 1 + len(first) :], (first,), copied)
            names = [copied / first]
        options = self._config.prepare_options(names)
        recipe, _ = make_prepare_recipe(options, lambda listing: None)
        source = recipe.open(options.files, options.chunk_bytes)
        id_sources = recipe.id_sources(source.features, options)
        counted = next((each.name for each in id_sources if each.has_vocabulary), None)
        if counted is not None:
            raise ConfigError(
                f"Feature '{counted}' of {place_text(self.path)} would need a vocabulary, which takes a "
                "pass; set data.raw.hash_buckets=N or data.raw.raw_ids=[all], or take the vocabulary of a "
                "prepared data set with data.raw.vocabulary_from=FOLDER."
            )
        ids = ids_by_feature(id_sources, ())
        schema = describe_dataset(options, recipe, source, id_sources, ids, {}, BadRows(0))
        folder = Path(tempfile.mkdtemp(prefix="megalith-schema-"))
        weakref.finalize(self, shutil.rmtree, folder, True)
        write_schema(folder, schema)
        return folder
