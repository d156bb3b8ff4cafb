"""The texts behind hashed keys, found again in the rows that the keys came from.

Only `data prepare` asks, and only for values that it has not met before, so blocks hold no texts. Tables know
where a value stands. Lines of text are cut into tokens and hashed once more, and those whose key is asked for
are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megalith.ops.text.keys import HASHED_KEY, Keys, token_keys


class HashedValues(NamedTuple):
    """Some hashed keys of a feature in a block."""

    feature: int
    """Its place among the features of the source."""
    keys: Keys
    """Distinct, ascending."""
    places: NDArray[np.int64]
    """Where each stands in the block's column of keys."""


TextsOf = Callable[[HashedValues], pa.Array]
"""The text of each key, as bytes."""

_LINE_FEED, _RETURN = 10, 13


class _Tokens(NamedTuple):
    """_Tokens data[begins[i] : ends[i]] and the key of each."""

    data: NDArray[np.uint8]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    keys: Keys

    def texts(self, wanted: Keys) -> pa.Array:
        """The first token of each wanted key, null where there is none; `wanted` ascends."""
        places = np.minimum(np.searchsorted(wanted, self.keys), len(wanted) - 1)
        hits = np.flatnonzero(wanted[places] == self.keys)[::-1]
        first = np.full(len(wanted), -1, np.int64)
        # Of several tokens with one key the last that is written stays: backwards, it is the first.
        first[places[hits]] = hits
        found = [
            None if at < 0 else self.data[self.begins[at] : self.ends[at]].tobytes() for at in first.tolist()
        ]
        return pa.array(found, pa.large_binary())


def line_texts(text: memoryview | bytes | bytearray, separators: bytes) -> TextsOf:
    """Finds texts in a chunk of lines, whatever feature they belong to."""
    tokens: list[_Tokens] = []

    def texts_of(values: HashedValues) -> pa.Array:
        if not tokens:
            tokens.append(_hashed_tokens(text, separators))
        return tokens[0].texts(values.keys)

    return texts_of


def _hashed_tokens(text: memoryview | bytes | bytearray, separators: bytes) -> _Tokens:
    """The tokens of some lines that have a hashed key."""
    data = np.frombuffer(text, np.uint8)
    splits = data == _LINE_FEED
    for separator in separators:
        splits |= data == separator
    ends = np.append(np.flatnonzero(splits), len(data))
    lengths = np.diff(ends, prepend=-1) - 1
    # Most tokens fit a key and are left out early: up to 8 bytes, of which the last is plain ASCII.
    last = data[ends - 1]
    maybe = (lengths > 8) | (last >= 128) | (last == 0) | (last == _RETURN)
    ends, begins, last = ends[maybe], (ends - lengths)[maybe], last[maybe]
    # A carriage return before the line feed is no part of a token.
    at_line_end = (ends == len(data)) | (data[np.minimum(ends, len(data) - 1)] == _LINE_FEED)
    ends = ends - (at_line_end & (last == _RETURN) & (ends > begins))
    # Keys of the tokens and of what stands between them, in one call.
    bounds = np.append(np.stack([begins, ends], axis=1).ravel(), len(data))
    keys = token_keys(memoryview(text), bounds)[0::2]
    hashed = keys >= HASHED_KEY
    return _Tokens(data, begins[hashed], ends[hashed], keys[hashed])
