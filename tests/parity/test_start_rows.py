"""Rows that begin anywhere in tables: the native core against plain torch, for any 64-bit id."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from megalith.ops.optimizer.steps import PhysicalRows
from megalith.ops.stores.start_rows import BegunRows, StartRows, start_rows_, start_rows_twin
from megalith.ops.stores.start_values import StartValues

IDS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, -1, 2**63 - 1, -(2**63)])


@st.composite
def tables(draw):
    rows, starts = [], []
    for number in range(draw(st.integers(1, 4))):
        dim, slots = draw(st.integers(1, 40)), draw(st.integers(1, 6))
        dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
        states = [
            {"none": torch.zeros(0), "row": torch.ones(slots), "full": torch.ones(slots, dim)}[draw(shape)]
            for shape in [st.sampled_from(["none", "row", "full"])] * 2
        ]
        rows.append(PhysicalRows(torch.ones(slots, dim, dtype=dtype), *states))
        starts.append(StartValues(draw(st.integers(0, 2**40)), f"t{number}", dim, 0.5, dtype))
    begun = [
        (number, slot, draw(IDS))
        for number, own in enumerate(rows)
        for slot in range(len(own.weight))
        if draw(st.booleans())
    ]
    order = draw(st.permutations(begun))
    columns = torch.tensor(order, dtype=torch.int64).view(-1, 3).T
    return rows, starts, BegunRows(*columns)


@given(tables())
def test_native_rows_begin_as_those_of_the_twin(given):
    rows, starts, begun = given
    copies = [PhysicalRows(*(None if part is None else part.clone() for part in own)) for own in rows]
    start_rows_(StartRows(rows, starts), begun)
    start_rows_twin(StartRows(copies, starts), begun)
    for own, other in zip(rows, copies, strict=True):
        assert all(torch.equal(*parts) for parts in zip(own[:3], other[:3], strict=True))


def test_any_number_of_threads_gives_the_same():
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            rows = PhysicalRows(torch.ones(5000, 16), torch.ones(5000), torch.zeros(0))
            start_rows_(
                StartRows([rows], [StartValues(1, "t", 16, 1.0)]),
                BegunRows(
                    torch.zeros(5000, dtype=torch.int64), torch.arange(5000), torch.arange(-2500, 2500)
                ),
            )
            found.append(rows)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0].weight, found[1].weight)
    assert not found[0].first.any()
