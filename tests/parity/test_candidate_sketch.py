"""The sketch of candidates against dictionaries: the same entries after any sequence of calls."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.core.errors import ConfigError, NativeError
from megalith.ops.chunks.sketch import UNITS, CandidateSketch, CandidateTable
from megalith.ops.chunks.sketch_twin import CandidateSketchTwin

CALLS = ("add", "add", "add", "remove", "scale")


@st.composite
def candidate_tables(draw):
    rows = draw(st.sampled_from([1, 5, 64, 65, 1000, 4097, 300_000]))
    unit = -(-rows // UNITS)
    first = draw(st.integers(0, min(UNITS, -(-rows // unit)) - 1))
    units = draw(st.sampled_from([(0, UNITS), (first, draw(st.integers(first + 1, UNITS)))]))
    first_row = draw(st.sampled_from([0, units[0] * unit]))
    return CandidateTable(rows, draw(st.sampled_from([0, 1600, 5000, 20_000])), units, first_row)


def drawn_rows(tables, generator, most=120):
    """(table, id) of rows that are here, each once, in any order; many share a bucket."""
    table = int(torch.randint(0, len(tables), (), generator=generator))
    own = tables[table]
    first, last = own.units[0] * own.unit_rows, min(own.rows, own.units[1] * own.unit_rows)
    count = int(torch.randint(0, most, (), generator=generator))
    spread = torch.rand(count, generator=generator) ** 3
    rows = (first + (spread * (last - first)).long()).unique() - own.first_row
    rows = rows[torch.randperm(len(rows), generator=generator)]
    return torch.stack([torch.full_like(rows, table), rows], dim=1)


def drawn_norms(count, generator):
    """Some equal, some nothing."""
    norms = torch.rand(count, generator=generator)
    norms[torch.rand(count, generator=generator) < 0.3] = 0.5
    norms[torch.rand(count, generator=generator) < 0.1] = 0.0
    return norms


def one_call(tables, sketches, kind, generator):
    rows = drawn_rows(tables, generator)
    norms = drawn_norms(len(rows), generator)
    for sketch in sketches:
        if kind == "add":
            sketch.add(rows, norms, 0.75)
        elif kind == "scale":
            sketch.scale(0.3)
        elif len(rows):
            sketch.remove(int(rows[0, 0]), rows[:, 1])


def check_same(tables, one, other):
    for table in range(len(tables)):
        assert torch.equal(one.state(table), other.state(table))
        for mine, theirs in zip(one.entries(table), other.entries(table), strict=True):
            assert torch.equal(mine, theirs)


@given(
    tables=st.lists(candidate_tables(), min_size=1, max_size=3),
    calls=st.lists(st.sampled_from(CALLS), max_size=10),
    seed=st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=120)
def test_any_sequence_of_calls_leaves_the_same_candidates(tables, calls, seed):
    generator = torch.Generator().manual_seed(seed)
    sketch, twin = CandidateSketch(tables), CandidateSketchTwin(tables)
    for kind in calls:
        one_call(tables, (sketch, twin), kind, generator)
    check_same(tables, sketch, twin)


@given(table=candidate_tables(), seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=60)
def test_the_order_of_rows_in_one_call_does_not_matter(table, seed):
    generator = torch.Generator().manual_seed(seed)
    one, other = CandidateSketch([table]), CandidateSketch([table])
    for _ in range(4):
        rows = drawn_rows([table], generator, most=400)
        norms, order = drawn_norms(len(rows), generator), torch.randperm(len(rows), generator=generator)
        one.add(rows, norms, 1.0)
        other.add(rows[order], norms[order], 1.0)
    check_same([table], one, other)


@given(seed=st.integers(0, 2**31), cut=st.integers(0, UNITS), rows=st.sampled_from([64, 1000, 50_000]))
@settings(deadline=None, max_examples=40)
def test_two_halves_hold_what_the_whole_holds(seed, cut, rows):
    """Units are of one rank or another; their states put together are the whole's."""
    generator = torch.Generator().manual_seed(seed)
    whole = CandidateTable(rows, 5000)
    halves = [
        CandidateTable(rows, 5000, units, units[0] * whole.unit_rows) for units in ((0, cut), (cut, UNITS))
    ]
    sketch, parts = CandidateSketch([whole]), [CandidateSketch([half]) for half in halves]
    for _ in range(3):
        given_rows = drawn_rows([whole], generator, most=300)
        norms = drawn_norms(len(given_rows), generator)
        sketch.add(given_rows, norms, 1.0)
        units = given_rows[:, 1] // whole.unit_rows
        for half, part in zip(halves, parts, strict=True):
            own = (units >= half.units[0]) & (units < half.units[1])
            shifted = given_rows[own] - torch.tensor([0, half.first_row])
            part.add(shifted, norms[own], 1.0)
    states = [part.state(0) for part in parts]
    assert torch.equal(torch.cat(states), sketch.state(0))
    again = CandidateSketch([whole])
    for half, state in zip(halves, states, strict=True):
        again.load_state(0, state, half.units[0])
    check_same([whole], again, sketch)


def test_a_full_bucket_keeps_the_highest_utilities():
    table = CandidateTable(rows=64 * 100, bytes=4096)
    sketch = CandidateSketch([table])
    rows = torch.stack([torch.zeros(12, dtype=torch.int64), torch.arange(12)], dim=1)
    sketch.add(rows, torch.tensor([5, 1, 1, 9, 9, 9, 9, 9, 9, 1, 5, 0.5]), 1.0)
    assert sketch.entries(0)[0].tolist() == [0, 3, 4, 5, 6, 7, 8, 10]
    # One that is here is added to before another might take its place.
    sketch.add(torch.tensor([[0, 50], [0, 10]]), torch.tensor([5.5, 1.0]), 1.0)
    ids, utilities = sketch.entries(0)
    assert ids.tolist() == [3, 4, 5, 6, 7, 8, 10, 50]
    assert utilities.tolist() == [9, 9, 9, 9, 9, 9, 6, 5.5]


def test_numbers_that_are_not_finite_are_not_kept():
    sketch = CandidateSketch([CandidateTable(rows=1000, bytes=4096)])
    rows = torch.tensor([[0, 1], [0, 2], [0, 3]])
    sketch.add(rows, torch.tensor([float("nan"), float("inf"), 3e38]), 1.0)
    sketch.add(rows, torch.tensor([1.0, 2.0, 3e38]), 1.0)
    assert sketch.entries(0)[1].tolist() == pytest.approx([1.0, 2.0, 3e38])


def test_memory_is_what_was_asked_for():
    for asked in (1 << 20, 4096, 1600, 512):
        for rows in (64, 10_000, 10_000_000):
            table = CandidateTable(rows, asked)
            taken = CandidateSketch([table]).bytes()
            assert taken <= asked + 80
            assert taken >= min(asked * 0.9, rows * 8) - UNITS * 8


def test_odd_arguments_are_refused():
    table = CandidateTable(1000, 0, (2, 4), first_row=32)
    sketch = CandidateSketch([table])
    for row in ([0, 32], [0, -1], [1, 0]):
        with pytest.raises(NativeError):
            sketch.add(torch.tensor([row]), torch.ones(1), 1.0)
    with pytest.raises(ConfigError, match="do not fit"):
        sketch.load_state(0, sketch.state(0), 3)
    sketch.add(torch.tensor([[0, 3], [0, 5]]), torch.ones(2), 1.0)
    with pytest.raises(ConfigError, match="out of place"):
        sketch.load_state(0, sketch.state(0).flip(0))
    with pytest.raises(ConfigError, match="Units"):
        CandidateTable(10, 0, (3, 2))
