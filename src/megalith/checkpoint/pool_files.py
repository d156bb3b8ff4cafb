"""Segment files of row pools in a checkpoint: kept by links, so that a checkpoint costs what changed.

    segments-00001-0/0000000000000007.rows   a segment file of the pool, the same file as the pool's own
    segments-00001-0.safetensors             number, size and live records of every segment

Segment files never change and their records carry checksums, so they are not read when they are saved: the
list holds their sizes, and has a checksum in the manifest. A name is made of a number, so none leads out of
its folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from megalith.checkpoint.manifest import FileRecord, PoolRecord
from megalith.checkpoint.tensor_file import TensorFile, write_tensors
from megalith.core.errors import CheckpointError
from megalith.core.files import sync_file
from megalith.embeddings.stores.row_files import (
    SEGMENT_VERSION,
    AdoptedFiles,
    RowPool,
    SegmentRows,
    linked,
)
from megalith.ops.stores.tiered_rows import SegmentRecords

_LISTS = ("numbers", "bytes", "words", "live")


class SavedSegments:
    """The segment files of this process' pools that a checkpoint has: they are on disk for good.

    A file is known by its pool and its name, which a pool never uses twice; of files that another process
    wrote under the same name nothing is assumed.
    """

    def __init__(self) -> None:
        self._files: WeakKeyDictionary[RowPool, AdoptedFiles] = WeakKeyDictionary()

    def has(self, pool: RowPool, name: str) -> bool:
        """Whether a file of a pool needs no sync any more."""
        return name in self._files.get(pool, {})

    def copy_of(self, pool: RowPool, name: str) -> Path | None:
        """A copy of a pool's file in a checkpoint on another file system that still exists, or None."""
        path = self._files.get(pool, {}).get(name)
        return path if path is not None and path.is_file() else None

    def remember(self, pool: RowPool, files: AdoptedFiles) -> None:
        """Replaces what was known of a pool."""
        self._files[pool] = files

    def moved(self, before: Path, after: Path) -> None:
        """A folder with copies has got another name."""
        for files in self._files.values():
            for name, path in files.items():
                if path is not None and path.is_relative_to(before):
                    files[name] = after / path.relative_to(before)


def write_pool(
    folder: Path, record: PoolRecord, pool: RowPool, held: SegmentRows, saved: SavedSegments
) -> FileRecord:
    """Links the held files into the checkpoint, and forces to disk those that no checkpoint had; returns the
    record of the file that lists them."""
    target = folder / record.name
    target.mkdir()
    files: AdoptedFiles = {}
    for segment in held.segments:
        source, path = held.folder / segment.name, target / segment.name
        files[segment.name] = None
        if linked(source, path):
            if not saved.has(pool, segment.name):
                sync_file(path)
            continue
        files[segment.name] = path
        copy = saved.copy_of(pool, segment.name)
        if copy is None or not linked(copy, path):
            shutil.copyfile(source, path)
            sync_file(path)
    saved.remember(pool, files)
    words = np.concatenate([np.zeros(0, dtype=np.uint64), *(segment.live for segment in held.segments)])
    lists = {
        "numbers": [int(segment.name.removesuffix(".rows"), 16) for segment in held.segments],
        "bytes": [(target / segment.name).stat().st_size for segment in held.segments],
        "words": [len(segment.live) for segment in held.segments],
    }
    tensors = {name: torch.tensor(numbers, dtype=torch.int64) for name, numbers in lists.items()}
    tensors["live"] = torch.from_numpy(words.view(np.int64))
    return write_tensors(folder / record.list_file, tensors)


def read_pool(folder: Path, record: PoolRecord, fix: str) -> SegmentRows:
    """The segments of a pool, after a look at the files: those that are listed, whole, and no others."""
    within, path = folder / record.name, folder / record.list_file
    if record.layout.version != SEGMENT_VERSION:
        raise CheckpointError(
            f"{within} has segment files of version {record.layout.version}, this package reads "
            f"{SEGMENT_VERSION}; use the release that wrote it."
        )
    numbers, sizes, words, live = _lists(path, fix)
    names = [f"{number:016x}.rows" for number in numbers.tolist()]
    if within.is_symlink() or not within.is_dir():
        raise CheckpointError(f"Checkpoint folder {within} is missing; {fix}.")
    for entry in sorted(within.iterdir()):
        if entry.name not in names:
            raise CheckpointError(f"{entry} is not listed in {path.name}; remove it or {fix}.")
    for name, size in zip(names, sizes.tolist(), strict=True):
        file = within / name
        if file.is_symlink() or not file.is_file() or file.stat().st_size != size:
            raise CheckpointError(f"Checkpoint file {file} is damaged or missing; {fix}.")
    parts = live.numpy().view(np.uint64)
    by_segment = np.split(parts, words.cumsum(0).numpy())
    segments = tuple(SegmentRecords(*pair) for pair in zip(names, by_segment, strict=False))
    return SegmentRows(within, record.layout, segments)


def _lists(path: Path, fix: str) -> list[Tensor]:
    file = TensorFile(path)
    lists = [file.tensor(name) for name in _LISTS]
    numbers, sizes, words, live = lists
    fits = all(each.dtype == torch.int64 and each.dim() == 1 for each in lists)
    fits = fits and len(numbers) == len(sizes) == len(words) == len(numbers.unique())
    fits = fits and not bool((numbers < 0).any() | (words < 0).any()) and int(words.sum()) == len(live)
    if not fits:
        raise CheckpointError(f"Checkpoint file {path} is damaged: it lists no segments; {fix}.")
    return lists
