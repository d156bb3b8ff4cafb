"""The plain Python truth of `megalith.ops.text.keys`: slow, short, and held against it by property tests."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from megalith.ops.text.keys import HASHED_KEY, Keys

_MASK = (1 << 64) - 1


def mix64_twin(value: int) -> int:
    """The finaliser of splitmix64."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def token_key_twin(token: bytes) -> int:
    """One token's key."""
    packed = int.from_bytes(token, "little")
    if not token or (len(token) <= 8 and packed < HASHED_KEY and token[-1] != 0):
        return packed
    state = len(token) * 0x9E3779B97F4A7C15 & _MASK
    for at in range(0, len(token), 8):
        state = mix64_twin(state ^ int.from_bytes(token[at : at + 8], "little"))
    return state | HASHED_KEY


def token_keys_twin(text: bytes, offsets: Sequence[int] | NDArray[np.int64]) -> Keys:
    """The plain truth of `token_keys`."""
    pairs = itertools.pairwise(offsets)
    return np.array([token_key_twin(text[begin:end]) for begin, end in pairs], np.uint64)


def count_keys_twin(
    keys: Iterable[int], min_count: int = 1, max_size: int | None = None
) -> list[tuple[int, int]]:
    """The plain truth of `KeyCounter`: (key, count) by falling count, ties by key, no missing values."""
    counts = Counter(key for key in keys if key)
    kept = [(key, count) for key, count in counts.items() if count >= min_count]
    return sorted(kept, key=lambda entry: (-entry[1], entry[0]))[:max_size]


def map_keys_twin(vocabulary: dict[int, int], keys: Iterable[int]) -> NDArray[np.int32]:
    """The plain truth of `KeyLookup.map`."""
    return np.array([vocabulary.get(key, 1) if key else 0 for key in keys], np.int32)


def hash_keys_twin(keys: Iterable[int], num_buckets: int) -> NDArray[np.int32]:
    """The plain truth of `hash_keys`."""
    return np.array([2 + mix64_twin(key) % num_buckets if key else 0 for key in keys], np.int32)
