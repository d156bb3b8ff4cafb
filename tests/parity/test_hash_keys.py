"""`hash_keys`: the documented hash, native against the plain twin."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.ops.text.keys import hash_keys
from megalith.ops.text.keys_twin import hash_keys_twin


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=50), st.integers(1, 2**31 - 3))
def test_ids_equal_the_twin(keys: list[int], num_buckets: int) -> None:
    np.testing.assert_array_equal(
        hash_keys(np.array(keys, np.uint64), num_buckets), hash_keys_twin(keys, num_buckets)
    )


def test_the_hash_never_changes() -> None:
    # Models are trained on these ids: a change of the hash would turn them into noise.
    assert hash_keys(np.array([0, 1, 2, 2**63], np.uint64), 1000).tolist() == [0, 791, 732, 52]
