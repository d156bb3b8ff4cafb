"""The texts of values whose key is a hash, met in the pass that writes rows and added to the vocabularies.

A value is looked for until it was met, which a bit says. Texts wait in memory up to a budget, then go to
disk sorted by id; in the end the sorted runs are merged into the vocabulary file. Workers say what they met,
and of two texts with one hash the first in the order of the input stays: the number of threads changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from megalith.data.dataset import FIRST_ID
from megalith.data.prepare.id_sources import IdSource
from megalith.data.prepare.vocabulary import CountedIds, open_writer, vocabulary_path
from megalith.data.readers import Bag, LogBlock
from megalith.data.readers.key_texts import HashedValues
from megalith.ops.text.keys import HASHED_KEY, Keys

MOST_BYTES = 4096
"""A longer value has no text in the vocabulary: a batch of them must fit in memory."""
_BATCH_ROWS = 1 << 15
_RUN_BATCH_BYTES = 1 << 18
"""What a merge holds of each run."""
_SCHEMA = pa.schema([("id", pa.int32()), ("text", pa.large_string())])

Ids = NDArray[np.int32] | NDArray[np.int64]


class MetTexts(NamedTuple):
    """Texts that a block has of some values of a vocabulary, one for each id."""

    vocabulary: int
    ids: Ids
    texts: pa.Array


class VocabularyTexts:
    """The texts of all vocabularies that have hashed values.

    Workers call `met`; one thread passes what they found to `add`, in the order of the input, then `save`.
    """

    def __init__(
        self, sources: Sequence[IdSource], counted: Sequence[CountedIds], work_folder: Path, budget_bytes: int
    ) -> None:
        self._names = [source.name for source in sources]
        self._texts = {
            number: HashedTexts(ids.num_ids, ids.num_hashed, work_folder / f"texts-{number}")
            for number, ids in enumerate(counted)
            if ids.num_hashed
        }
        self._features = [(place, number) for number in self._texts for place in sources[number].members]
        self._budget_bytes = budget_bytes

    def met(self, block: LogBlock, ids: Sequence[Ids]) -> list[MetTexts]:
        """The texts of a block's values that are not known yet; `ids` are those of its keys, by feature."""
        found = []
        for place, number in self._features:
            column = block.keys[place]
            keys = column.keys if isinstance(column, Bag) else column
            places = self._texts[number].missing(keys, ids[place])
            if len(places) and block.texts_of is not None:
                texts = block.texts_of(HashedValues(place, keys[places], places))
                found.append(MetTexts(number, ids[place][places], texts))
        return found

    def add(self, met: Sequence[MetTexts]) -> None:
        """Keeps texts of values that are still unknown."""
        for vocabulary, ids, texts in met:
            self._texts[vocabulary].add(ids, texts)
        if sum(each.waiting_bytes for each in self._texts.values()) > self._budget_bytes:
            for each in self._texts.values():
                each.flush()

    def save(self, folder: Path, threads: int) -> None:
        """Writes the texts into the vocabulary files below `folder`."""

        def save_one(number: int) -> None:
            self._texts[number].save(vocabulary_path(folder, self._names[number]))

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(save_one, self._texts))


class HashedTexts:
    """The texts of one vocabulary's hashed values."""

    def __init__(self, num_ids: int, num_hashed: int, file: Path) -> None:
        self._known = np.zeros(num_ids // 8 + 1, np.uint8)
        self._num_unknown = num_hashed
        self._file = file
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        """Memory of the texts that are not on disk."""
        self._writer: pa.RecordBatchFileWriter | None = None
        self._run_ends: list[int] = []

    def missing(self, keys: Keys, ids: Ids) -> NDArray[np.int64]:
        """Where hashed keys that have an id and were not met stand first, by ascending key."""
        if self._num_unknown == 0:
            return np.empty(0, np.int64)
        places = np.flatnonzero((keys >= HASHED_KEY) & (ids >= FIRST_ID))
        places = places[~self._is_known(ids[places])]
        return places[np.unique(keys[places], return_index=True)[1]]

    def add(self, ids: Ids, texts: pa.Array) -> None:
        """Takes the texts, as bytes, of ids that were not met before; one that is not UTF-8 is dropped."""
        fresh = ~self._is_known(ids)
        if not fresh.any():
            return
        ids, texts = ids[fresh], texts.filter(pa.array(fresh))
        np.bitwise_or.at(self._known, ids >> 3, np.uint8(1) << (ids & 7).astype(np.uint8))
        self._num_unknown -= len(ids)
        readable = _readable(texts)
        batch = pa.record_batch([pa.array(ids, pa.int32()), readable], schema=_SCHEMA)
        batch = batch.filter(readable.is_valid())
        if batch.num_rows:
            self._waiting.append(batch)
            self.waiting_bytes += batch.nbytes

    def flush(self) -> None:
        """Writes what waits to disk as one more sorted run."""
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting).sort_by("id")
        if self._writer is None:
            self._writer = pa.ipc.new_file(self._file, _SCHEMA)
        batches = table.to_batches(max(1, table.num_rows * _RUN_BATCH_BYTES // table.nbytes))
        for batch in batches:
            self._writer.write_batch(batch)
        self._run_ends.append(sum(self._run_ends[-1:]) + len(batches))
        self._waiting, self.waiting_bytes = [], 0

    def save(self, path: Path) -> None:
        """Rewrites a vocabulary file with the texts that were met."""
        self.flush()
        if self._writer is None:
            return
        self._writer.close()
        target = self._file.with_suffix(".parquet")
        with pa.OSFile(str(self._file)) as spilled, pq.ParquetFile(path) as file:
            reader = pa.ipc.open_file(spilled)
            runs = [
                _Run(reader, first, end)
                for first, end in zip([0, *self._run_ends], self._run_ends, strict=False)
            ]
            with open_writer(target) as writer:
                for batch in file.iter_batches(_BATCH_ROWS):
                    writer.write_batch(_with_texts(batch, runs))
        target.replace(path)
        self._file.unlink()

    def _is_known(self, ids: Ids) -> NDArray[np.bool_]:
        return (self._known[ids >> 3] >> (ids & 7).astype(np.uint8) & 1).astype(bool)


class _Run:
    """Batches of texts, sorted by id, that are read from front to back."""

    def __init__(self, reader: pa.RecordBatchFileReader, first: int, end: int) -> None:
        self._reader, self._at, self._end = reader, first, end
        self._batch, self._row = reader.get_batch(first), 0

    def until(self, end_id: int) -> Iterator[pa.RecordBatch]:
        """What is left of ids below the end."""
        while True:
            stop = int(np.searchsorted(self._batch.column(0).to_numpy(), end_id))
            yield self._batch.slice(self._row, stop - self._row)
            self._row = stop
            if stop < self._batch.num_rows or self._at + 1 == self._end:
                return
            self._at += 1
            self._batch, self._row = self._reader.get_batch(self._at), 0


def _with_texts(batch: pa.RecordBatch, runs: Sequence[_Run]) -> pa.RecordBatch:
    """Rows of a vocabulary, in the order of their ids, with the texts that the runs have of them."""
    first_id = batch.column("id")[0].as_py()
    parts = [part for run in runs for part in run.until(first_id + batch.num_rows)]
    found = pa.Table.from_batches(parts, _SCHEMA)
    places = np.full(batch.num_rows, -1, np.int64)
    places[found["id"].to_numpy() - first_id] = np.arange(found.num_rows)
    texts = found["text"].combine_chunks().take(pa.array(places, mask=places < 0)).cast(pa.string())
    place = batch.schema.get_field_index("text")
    return batch.set_column(place, batch.schema.field(place), pc.coalesce(batch.column(place), texts))


def _readable(texts: pa.Array) -> pa.Array:
    """Bytes as text; null where they are too long or not UTF-8."""
    short = pc.if_else(pc.less_equal(pc.binary_length(texts), MOST_BYTES), texts, None)
    try:
        return short.cast(pa.large_string())
    except pa.ArrowInvalid:
        return pa.array([_decoded(value) for value in short.to_pylist()], pa.large_string())


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
