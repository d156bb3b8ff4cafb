"""Row digests: a row that differs in one bit is found, whatever its parts, and so is one that is gone."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from megalith.embeddings.changes.row_digests import RowDigests, row_digests
from megalith.embeddings.row_block import RowBlock


def block(ids, dim=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    parts = {
        "weight": torch.randn(len(ids), dim, generator=generator).bfloat16(),
        "first": torch.rand(len(ids), generator=generator),
        "last": torch.arange(len(ids)),
    }
    return RowBlock(torch.tensor(ids), (0, dim), parts)


@given(st.integers(0, 4), st.integers(1, 9), st.sampled_from(["weight", "first", "last"]), st.data())
def test_one_bit_of_a_row_makes_another_digest(row, dim, name, data):
    own = block(range(5), dim)
    before = row_digests(own)
    part = own.parts[name][row : row + 1].view(-1).view(torch.uint8)
    at = data.draw(st.integers(0, len(part) - 1))
    part[at] ^= 1 << data.draw(st.integers(0, 7))
    assert (row_digests(own) != before).nonzero().view(-1).tolist() == [row]


def test_two_rows_of_opposite_signs_differ():
    weight = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    both = RowBlock(range(2), (0, 4), {"weight": torch.cat([weight, -weight])})
    assert len(set(row_digests(both).tolist())) == 2


def test_what_changed_came_and_went_is_told():
    digests = RowDigests()
    assert [b.ids.tolist() for b in digests.changed([block([7, 9]), block([1])])] == [[7, 9], [1]]
    digests.keep()
    again = block([7, 9])
    again.parts["first"][1] += 1
    (found,) = digests.changed([again, block([2], seed=3)][:1])
    assert found.ids.tolist() == [9]
    assert torch.equal(found.parts["weight"], again.parts["weight"][1:])
    assert digests.gone.tolist() == [1]
    # Not kept: the same again.
    assert [b.ids.tolist() for b in digests.changed([again])] == [[9]]
    digests.keep()
    assert list(digests.changed([again])) == []
    digests.keep()
    assert list(digests.changed([])) == []
    assert digests.gone.tolist() == [7, 9]
