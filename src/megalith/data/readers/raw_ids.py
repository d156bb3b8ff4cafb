"""Raw ids: a 64-bit number for every value, without a vocabulary, for tables whose ids have no bound.

    integers of tables    their own value; unsigned ones of 2 ** 63 and above keep their bits
    texts to 8 bytes      their bytes, little-endian, minus 2 ** 63: exact, no two texts share an id
    longer texts          a fixed 63-bit hash: of n distinct ones two share an id with odds of n^2 / 2^64,
                          which is 1 in 1,800 for 100 million
    missing values        -2 ** 63

That is the key of a value (`ops.text.keys`) with its highest bit turned; keys of integers are made so that it
gives the integer. An integer of -2 ** 63 counts as missing. None of it may ever change: ids are what tables
and checkpoints know rows by.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megalith.ops.text.keys import Keys

_TOP = np.uint64(1 << 63)


def raw_ids(keys: Keys) -> NDArray[np.int64]:
    """The raw id of each key; 0, a missing value, becomes `MISSING_RAW_ID`.

    >>> raw_ids(np.array([0, 97], dtype=np.uint64)).tolist()
    [-9223372036854775808, -9223372036854775711]
    """
    return (keys ^ _TOP).view(np.int64)


def integer_keys(values: NDArray[np.int64] | NDArray[np.uint64]) -> Keys:
    """The keys whose raw ids are these integers.

    >>> raw_ids(integer_keys(np.array([-1, 0, 7]))).tolist()
    [-1, 0, 7]
    """
    return values.view(np.uint64) ^ _TOP
