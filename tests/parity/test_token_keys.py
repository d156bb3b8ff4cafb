"""`token_keys`: packing and hashing against the plain twin."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.ops.text.keys import token_keys
from megalith.ops.text.keys_twin import token_key_twin, token_keys_twin

_tokens = st.lists(st.binary(max_size=20), min_size=1, max_size=20)


@settings(deadline=None)
@given(_tokens)
def test_native_keys_equal_the_twin(tokens: list[bytes]) -> None:
    joined = b"".join(tokens)
    offsets = np.cumsum([0, *map(len, tokens)])
    keys = token_keys(joined, offsets)
    np.testing.assert_array_equal(keys, token_keys_twin(joined, offsets))


@settings(deadline=None)
@given(_tokens)
def test_different_tokens_have_different_keys_and_only_the_empty_one_has_zero(tokens: list[bytes]) -> None:
    keys = [token_key_twin(token) for token in tokens]
    assert len(set(keys)) == len(set(tokens))
    assert all((key == 0) == (token == b"") for key, token in zip(keys, tokens, strict=True))
