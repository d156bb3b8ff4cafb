"""Rows that keep a prefix of their columns."""

import pytest
import torch

from megalith.core.errors import ConfigError, DataError
from megalith.ops.frozen.decode import decode_rows
from megalith.ops.frozen.encode_twin import encode_rows_twin
from megalith.ops.frozen.formats import RowFormat
from megalith.ops.frozen.prefix import PrefixFormat, decode_prefix_rows, encode_prefix_rows, stored_starts

FORMS = [
    RowFormat("int8", "float16"),
    RowFormat("int4", "float32"),
    RowFormat("float16"),
    RowFormat("float32"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dim", "chunk"), [(32, 8), (10, 4), (13, 4), (6, 6), (5, 5)])
def test_columns_that_are_kept_read_as_whole_rows_do_and_the_rest_as_zeros(form, dim, chunk):
    layout = PrefixFormat(form, dim, chunk)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(40, dim, generator=generator)
    chunks = torch.randint(0, layout.num_chunks + 1, (40,), generator=generator)
    data, starts = encode_prefix_rows(weights, chunks, layout)
    back = decode_prefix_rows(data, stored_starts(starts), layout)
    for row, count in enumerate(chunks.tolist()):
        width = layout.width(count)
        assert not back[row, width:].any()
        if count:
            whole = decode_rows(encode_rows_twin(weights[row : row + 1, :width], form), form, width)
            assert torch.equal(back[row, :width], whole[0])


def test_a_row_without_chunks_takes_no_byte():
    layout = PrefixFormat(RowFormat("int8", "float16"), 16, 4)
    data, starts = encode_prefix_rows(torch.ones(3, 16), torch.tensor([0, 1, 0]), layout)
    assert len(data) == 4 + 4
    assert starts.tolist() == [0, 0, 2, 2]


def test_blocks_of_rows_can_be_put_together():
    layout = PrefixFormat(RowFormat("int4", "float16"), 16, 4)
    weights = torch.randn(20, 16, generator=torch.Generator().manual_seed(2))
    chunks = torch.arange(20) % 5
    data, starts = encode_prefix_rows(weights, chunks, layout)
    parts = [encode_prefix_rows(weights[part], chunks[part], layout) for part in (slice(0, 7), slice(7, 20))]
    assert torch.equal(torch.cat([part for part, _ in parts]), data)
    assert torch.equal(torch.cat([parts[0][1], parts[1][1][1:] + parts[0][1][-1]]), starts)


def test_chunks_that_there_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="do not fit"):
        PrefixFormat(RowFormat("float32"), 4, 5)
    with pytest.raises(ConfigError, match="within a byte"):
        PrefixFormat(RowFormat("int4", "float16"), 9, 3)
    layout = PrefixFormat(RowFormat("float32"), 8, 4)
    with pytest.raises(DataError, match="chunks below 0 or above 2"):
        encode_prefix_rows(torch.ones(1, 8), torch.tensor([3]), layout)
    with pytest.raises(DataError, match="larger chunks"):
        stored_starts(torch.tensor([0, 2**32]))
