"""Messages of ids: what is packed is read again, for ids of four and of eight bytes."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from megalith.sharding.runtime.input_dist.jagged_ids import JaggedIds, RoutedIds, UniformOffsets, id_dtype
from megalith.sharding.runtime.input_dist.message import InputMessageFormat
from megalith.sharding.wire_format import HEADER_WORDS

WIDE = 1 << 40


@st.composite
def messages(draw):
    """Streams of one batch as a router gives them, and whether ids have eight bytes."""
    wide_ids = draw(st.booleans())
    num_streams, batch = draw(st.integers(0, 3)), draw(st.integers(0, 4))
    uniform_length = draw(st.sampled_from([-1, 0, 1, 3]))
    largest = WIDE if wide_ids else 9
    lengths, values, weights = [], [], []
    for _ in range(num_streams):
        bags = [draw(st.integers(0, 3)) if uniform_length < 0 else uniform_length for _ in range(batch)]
        # Those of dynamic tables may be any 64 bits.
        drawn = st.integers(largest - 9, largest)
        if wide_ids:
            drawn |= st.sampled_from([-1, -(2**63), 2**63 - 1])
        ids = draw(st.lists(drawn, min_size=sum(bags), max_size=sum(bags)))
        lengths.append(torch.tensor(bags, dtype=torch.int32))
        values.append(torch.tensor(ids, dtype=id_dtype(wide_ids)))
        weights.append(torch.arange(sum(bags), dtype=torch.float32) + 0.5)
    weight_flag = draw(st.integers(0, 2))
    given_weights = None if not weight_flag else torch.zeros(1, requires_grad=weight_flag == 2)
    ids = JaggedIds(torch.zeros(0), torch.zeros(1), given_weights, batch, uniform_length)
    routed = RoutedIds(lengths if uniform_length < 0 else [], values, weights if weight_flag else [])
    return wide_ids, num_streams, weight_flag, ids, routed, lengths


@given(messages(), st.booleans())
def test_a_message_is_read_as_it_was_packed(message, deduplicate):
    wide_ids, num_streams, weight_flag, ids, routed, lengths = message
    made = InputMessageFormat(num_streams, wide_ids=wide_ids, deduplicate=deduplicate)
    packed = torch.cat(made.pack(ids, routed))
    header = packed[:HEADER_WORDS].tolist()
    assert made.num_words(header) == len(packed)
    for read in (made.unpack(header, packed), made.unsent(ids, routed)):
        assert (read.batch, read.weight_flag) == (ids.batch, weight_flag)
        assert [part.tolist() for part in read.values] == [part.tolist() for part in routed.values]
        assert all(part.dtype == id_dtype(wide_ids) for part in read.values)
        if weight_flag:
            expected = [part.tolist() for part in routed.sample_weights]
            assert [part.tolist() for part in read.sample_weights] == expected
        if num_streams:
            assert made.lengths(read).tolist() == [part.tolist() for part in lengths]


def test_positions_among_many_distinct_ids_take_four_bytes():
    made = InputMessageFormat(1, wide_ids=True, deduplicate=True)
    for num_distinct in (1 << 16, (1 << 16) + 1):
        values = torch.arange(num_distinct).repeat(3)
        ids = JaggedIds(values, torch.tensor([0, len(values)]), None, 1, len(values))
        packed = torch.cat(made.pack(ids, RoutedIds([], [values], [])))
        header = packed[:HEADER_WORDS].tolist()
        assert header[3] == num_distinct
        assert torch.equal(made.unpack(header, packed).values[0], values)


def test_uniform_offsets_are_those_of_the_length_that_is_asked_for():
    offsets = UniformOffsets()
    for num_bags, length in ((3, 2), (2, 2), (5, 2), (2, 1), (0, 0), (2, 0), (4, 3)):
        assert offsets(num_bags, length).tolist() == [length * bag for bag in range(num_bags + 1)]
