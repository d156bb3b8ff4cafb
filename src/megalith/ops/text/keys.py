"""Tokens to keys, keys to counts and ids.

A key stands for a categorical value in 64 bits: a token of at most 8 bytes packed as it is, or a 63-bit hash
with the top bit set; 0 is a missing value. `keys_twin.py` holds the plain Python truth of each function here.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from megalith.ops import native

Keys = NDArray[np.uint64]
HASHED_KEY = 1 << 63


def token_keys(text: bytes | memoryview, offsets: NDArray[np.int64]) -> Keys:
    """The key of each token text[offsets[i] : offsets[i + 1]]."""
    data = np.frombuffer(text, np.uint8)
    offsets = np.ascontiguousarray(offsets, np.int64)
    keys = np.empty(len(offsets) - 1, np.uint64)
    native.library().mg_token_keys(data.ctypes.data, offsets.ctypes.data, len(keys), keys.ctypes.data)
    return keys


def hash_keys(keys: Keys, num_buckets: int) -> NDArray[np.int32]:
    """Ids without a vocabulary: 2 + mix64(key) mod num_buckets; 0 for a missing value."""
    keys = np.ascontiguousarray(keys)
    ids = np.empty(len(keys), np.int32)
    native.library().mg_hash_keys(keys.ctypes.data, len(keys), num_buckets, ids.ctypes.data)
    return ids


class KeyCounter:
    """Counts the keys of several features within a byte budget; what does not fit is spilled to `folder`.

    Any number of threads may add at once. The memory is given back by `close` or at the end of a `with`.
    """

    def __init__(self, num_features: int, budget_bytes: int, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        handle = ctypes.c_void_p()
        native.library().mg_count_create(
            num_features, budget_bytes, os.fsencode(folder), ctypes.addressof(handle)
        )
        self._handle: int | None = handle.value

    def add(self, feature: int, keys: Keys, chosen: NDArray[np.bool_] | None = None) -> None:
        """Counts the keys, or those `chosen`; missing values are not counted."""
        keys = np.ascontiguousarray(keys)
        mask = None if chosen is None else np.ascontiguousarray(chosen)
        native.library().mg_count_add(
            self._handle, feature, keys.ctypes.data, None if mask is None else mask.ctypes.data, len(keys)
        )

    def finish(self, feature: int, path: Path, min_count: int = 1, max_size: int | None = None) -> int:
        """Writes (key, count) pairs of uint64 by falling count, ties by key; the number of them."""
        written = ctypes.c_int64(0)
        native.library().mg_count_finish(
            self._handle, feature, min_count, max_size or 0, os.fsencode(path), ctypes.addressof(written)
        )
        return written.value

    @property
    def num_spills(self) -> int:
        """How often a table was written to disk for want of memory."""
        return native.library().mg_count_num_spills(self._handle)

    def close(self) -> None:
        """Gives the memory back; once is enough."""
        if self._handle is not None:
            native.library().mg_count_destroy(self._handle)
            self._handle = None

    def __enter__(self) -> KeyCounter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class KeyLookup:
    """A vocabulary as a hash table: known keys map to the ids they were inserted with, others to 1, 0 to 0.

    With `file` the table is in a mapped file (unlinked at once), which the kernel may evict from memory.
    """

    def __init__(self, num_entries: int, file: Path | None = None) -> None:
        handle = ctypes.c_void_p()
        native.library().mg_lookup_create(
            num_entries, None if file is None else os.fsencode(file), ctypes.addressof(handle)
        )
        self._handle: int | None = handle.value

    @staticmethod
    def table_bytes(num_entries: int) -> int:
        """Memory of a vocabulary of so many keys."""
        return native.library().mg_lookup_bytes(num_entries)

    def insert(self, keys: Keys, first_id: int) -> None:
        """Gives the keys the ids first_id, first_id + 1, ...; no more keys in all than were announced."""
        keys = np.ascontiguousarray(keys)
        native.library().mg_lookup_insert(self._handle, keys.ctypes.data, len(keys), first_id)

    def map(self, keys: Keys) -> NDArray[np.int32]:
        """The id of each key."""
        keys = np.ascontiguousarray(keys)
        ids = np.empty(len(keys), np.int32)
        native.library().mg_lookup_map(self._handle, keys.ctypes.data, len(keys), ids.ctypes.data)
        return ids

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            native.library().mg_lookup_destroy(self._handle)
            self._handle = None
