"""Vocabularies: from counts to `vocabulary/<feature>.parquet`, and from there to ids. One that several
features share has the name of the first.

A vocabulary file has a row for each value: key (uint64), count, id, and its text. The key holds a short text;
longer ones are added by `texts`, and are null in files of older versions.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from megalith.core.errors import DataError
from megalith.data.dataset import FIRST_ID
from megalith.data.prepare.id_sources import IdSource
from megalith.data.readers.raw_ids import raw_ids
from megalith.ops.text.keys import HASHED_KEY, KeyCounter, KeyLookup, Keys, hash_keys

FOLDER = "vocabulary"
_PIECE_ENTRIES = 1 << 18
_SCHEMA = pa.schema([("key", pa.uint64()), ("count", pa.uint64()), ("id", pa.int32()), ("text", pa.string())])

ToIds = Callable[[Keys], NDArray[np.int32] | NDArray[np.int64]]


class FeatureIds(NamedTuple):
    """The function from keys to ids, and how many ids there are; None where they are raw."""

    to_ids: ToIds
    num_ids: int | None


class CountedIds(NamedTuple):
    """The ids of a new vocabulary."""

    to_ids: ToIds
    num_ids: int
    num_hashed: int
    """Values whose key is a hash, so that it does not hold their text."""


def ids_by_feature(sources: Sequence[IdSource], of_vocabularies: Sequence[FeatureIds]) -> list[FeatureIds]:
    """The ids of all features, in their order, from those of the sources that have a vocabulary."""
    known = iter(of_vocabularies)
    places: dict[int, FeatureIds] = {}
    for source in sources:
        ids = next(known) if source.has_vocabulary else _unmapped_ids(source)
        places |= dict.fromkeys(source.members, ids)
    return [places[place] for place in range(len(places))]


def _unmapped_ids(source: IdSource) -> FeatureIds:
    """Ids that need no vocabulary: raw or hashed ones."""
    if source.is_raw:
        return FeatureIds(raw_ids, None)
    assert source.hash_buckets is not None
    return FeatureIds(partial(hash_keys, num_buckets=source.hash_buckets), FIRST_ID + source.hash_buckets)


def counted_ids(
    counter: KeyCounter,
    sources: Sequence[IdSource],
    folder: Path,
    work_folder: Path,
    memory_bytes: int,
    threads: int,
) -> list[CountedIds]:
    """Writes the vocabulary of each source below `folder` and gives the ids; the counter is closed."""
    paths = [work_folder / f"entries-{number}" for number in range(len(sources))]

    def finish(number: int) -> int:
        source = sources[number]
        return counter.finish(number, paths[number], source.min_count, source.max_vocabulary)

    with ThreadPoolExecutor(threads) as pool:
        sizes = list(pool.map(finish, range(len(sources))))
        counter.close()
        lookups = _lookups(sizes, work_folder, memory_bytes)
        (folder / FOLDER).mkdir()
        targets = [vocabulary_path(folder, source.name) for source in sources]
        num_hashed = list(pool.map(_save, paths, targets, lookups))
    return [
        CountedIds(lookup.map, FIRST_ID + size, hashed)
        for lookup, size, hashed in zip(lookups, sizes, num_hashed, strict=True)
    ]


def loaded_ids(
    origin: Path, names: Sequence[str], folder: Path, work_folder: Path, memory_bytes: int
) -> list[FeatureIds]:
    """The ids of another data set, whose vocabulary files are copied so that this one is complete."""
    (folder / FOLDER).mkdir()
    ids = read_ids(origin, names, work_folder, memory_bytes)
    for name in names:
        shutil.copyfile(vocabulary_path(origin, name), vocabulary_path(folder, name))
    return ids


def read_ids(origin: Path, names: Sequence[str], work_folder: Path, memory_bytes: int) -> list[FeatureIds]:
    """The ids that the vocabulary files of a data set give; tables beyond the budget are in `work_folder`."""
    paths = [vocabulary_path(origin, name) for name in names]
    sizes = []
    for path in paths:
        with _sound(path, origin):
            metadata = pq.read_metadata(path)
            size, kind = metadata.num_rows, metadata.schema.to_arrow_schema().field("key").type
        if kind != pa.uint64():
            raise DataError(f"{path} is no vocabulary (its keys are {kind}); prepare {origin} again.")
        sizes.append(size)
    lookups = _lookups(sizes, work_folder, memory_bytes)
    for path, lookup in zip(paths, lookups, strict=True):
        first_id = FIRST_ID
        with _sound(path, origin), pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_PIECE_ENTRIES, columns=["key"]):
                lookup.insert(batch.column(0).to_numpy(), first_id)
                first_id += batch.num_rows
    return [FeatureIds(lookup.map, FIRST_ID + size) for lookup, size in zip(lookups, sizes, strict=True)]


@contextmanager
def _sound(path: Path, origin: Path) -> Iterator[None]:
    """Errors name the vocabulary file that is damaged, not the folder that is being written."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; prepare {origin} again.") from error
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DataError(f"{path} is damaged; prepare {origin} again.") from error


def vocabulary_path(folder: Path, feature: str) -> Path:
    """The file of a vocabulary, by the feature that names it."""
    return folder / FOLDER / f"{quote(feature, safe=' ')}.parquet"


def _lookups(sizes: Sequence[int], work_folder: Path, memory_bytes: int) -> list[KeyLookup]:
    """Tables within the budget in memory, smallest first; the others in files that can be evicted."""
    left = memory_bytes
    lookups: dict[int, KeyLookup] = {}
    for number in sorted(range(len(sizes)), key=lambda number: sizes[number]):
        left -= KeyLookup.table_bytes(sizes[number])
        file = None if left >= 0 else work_folder / f"ids-{number}"
        lookups[number] = KeyLookup(sizes[number], file)
    return [lookups[number] for number in range(len(sizes))]


def open_writer(path: Path) -> pq.ParquetWriter:
    """A new vocabulary file."""
    return pq.ParquetWriter(path, _SCHEMA, compression="lz4", use_dictionary=False)


def _save(entries: Path, target: Path, lookup: KeyLookup) -> int:
    """Counted entries, already in the order of their ids, to the vocabulary file and into the table; the
    number of hashed ones."""
    first_id, num_hashed = FIRST_ID, 0
    with open_writer(target) as writer:
        for keys, counts in _pieces(entries):
            lookup.insert(keys, first_id)
            ids = np.arange(first_id, first_id + len(keys), dtype=np.int32)
            writer.write_batch(pa.record_batch([keys, counts, ids, key_texts(keys)], schema=_SCHEMA))
            first_id += len(keys)
            num_hashed += int(np.count_nonzero(keys >= HASHED_KEY))
    entries.unlink()
    return num_hashed


def _pieces(path: Path) -> Iterator[tuple[Keys, NDArray[np.uint64]]]:
    with path.open("rb") as file:
        while len(piece := np.fromfile(file, np.uint64, 2 * _PIECE_ENTRIES)):
            yield np.ascontiguousarray(piece[0::2]), np.ascontiguousarray(piece[1::2])


def key_texts(keys: Keys) -> pa.StringArray:
    """The text of each key: its bytes up to the padding; null where it was hashed."""
    data = np.ascontiguousarray(keys).view(np.uint8).reshape(-1, 8)
    packed = keys < HASHED_KEY
    texts = _unpack(data, packed)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        # Some value is not UTF-8; then only plain ASCII is shown.
        packed &= (data < 128).all(axis=1)
        texts = _unpack(data, packed)
    return pc.if_else(pa.array(packed), texts, None)


def _unpack(data: NDArray[np.uint8], wanted: NDArray[np.bool_]) -> pa.StringArray:
    lengths = np.where(wanted, 8 - np.argmax(data[:, ::-1] != 0, axis=1), 0)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    content = data[np.arange(8) < lengths[:, None]]
    return pa.StringArray.from_buffers(len(data), pa.py_buffer(offsets), pa.py_buffer(content))
