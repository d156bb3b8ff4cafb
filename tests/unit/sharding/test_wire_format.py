"""Bytes that travel: what the planner charges is what the runtime sends."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megalith.core.schema import TableSpec
from megalith.sharding.codecs import row_codec
from megalith.sharding.runtime.input_dist.message import distinct_by_stream
from megalith.sharding.wire_format import CODEC_BYTES, id_bytes, row_bytes


@given(codec=st.sampled_from(sorted(CODEC_BYTES)), widths=st.lists(st.integers(1, 9), max_size=5))
def test_a_row_has_the_bytes_that_its_codec_writes(codec, widths):
    rows = torch.rand(3, sum(widths))
    encoded = row_codec(codec, widths).encode(rows)
    assert encoded.shape == (3, row_bytes(codec, widths))


@pytest.mark.parametrize(("rows", "expected"), [(1 << 31, 4), ((1 << 31) + 1, 8)])
def test_ids_are_as_wide_as_the_largest_table_needs(rows, expected):
    tables = [TableSpec(name="a", rows=rows, dim=1, features=("f",))]
    assert id_bytes(tables) == expected


LARGE = (1 << 63) - 1


@given(
    streams=st.lists(
        st.lists(st.one_of(st.integers(0, 5), st.integers(LARGE - 5, LARGE)), max_size=6),
        min_size=1,
        max_size=4,
    ).filter(lambda some: any(some))
)
def test_ids_of_64_bits_are_deduplicated_without_overflow(streams):
    values = [torch.tensor(stream, dtype=torch.int64) for stream in streams]
    distinct, positions = distinct_by_stream(values)
    assert distinct[positions].tolist() == [value for stream in streams for value in stream]
    assert distinct.tolist() == [value for stream in streams for value in sorted(set(stream))]
