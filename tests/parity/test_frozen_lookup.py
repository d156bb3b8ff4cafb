"""Pooled lookups over frozen tables against the plain-torch twin, bit by bit."""

import pytest
import torch
from frozen_worlds import FORMATS, frozen_worlds
from hypothesis import given, settings

from megalith.core.errors import ConfigError, DataError
from megalith.ops.frozen.encode import encode_rows
from megalith.ops.frozen.lookup import FrozenLookup
from megalith.ops.frozen.lookup_twin import frozen_lookup_twin
from megalith.ops.frozen.memory import resident
from megalith.ops.frozen.table import FrozenTable
from megalith.ops.native import SIMD_LEVELS
from megalith.ops.simd import use_simd


@pytest.fixture(autouse=True)
def widest_again():
    yield
    use_simd(None)


def same_bits(one, other):
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def small_table(form=FORMATS[2], rows=100, dim=32, **settings):
    weights = torch.randn(rows, dim, generator=torch.Generator().manual_seed(dim))
    settings = {"features": (0,), "name": "items", **settings}
    return FrozenTable(rows=encode_rows(weights, form), form=form, dim=dim, **settings)


@given(frozen_worlds())
@settings(deadline=None, max_examples=300)
def test_matches_the_twin(world):
    batch = world.values, world.offsets
    expected = frozen_lookup_twin(world.tables, world.features, *batch, world.sample_weights)
    lookup = FrozenLookup(world.tables, world.features)
    for level in SIMD_LEVELS:
        use_simd(level)
        found = lookup(*batch, sample_weights=world.sample_weights)
        assert same_bits(found, expected), level


@pytest.mark.parametrize("lengths", [[1] * 3000, [0] * 2999 + [50_000], [40] * 1500, [40] * 60, [20_000]])
def test_the_number_of_threads_does_not_change_a_bit(lengths):
    tables = [
        small_table(form, dim=dim) for form, dim in zip(FORMATS, (3, 16, 32, 64, 128, 130), strict=True)
    ]
    lookup = FrozenLookup(tables, ["f"])
    values = torch.randint(0, 100, (sum(lengths),), generator=torch.Generator().manual_seed(0))
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    expected, before = frozen_lookup_twin(tables, ["f"], values, offsets), torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            assert same_bits(lookup(values, offsets), expected)
    finally:
        torch.set_num_threads(before)


def test_many_listed_ids_are_found_and_others_are_not():
    generator = torch.Generator().manual_seed(3)
    ids = torch.unique(torch.randint(-(2**62), 2**62, (50_000,), generator=generator))
    table = small_table(rows=len(ids), dim=16, ids=ids)
    lookup = FrozenLookup([table], ["f"])
    strangers = torch.randint(-(2**62), 2**62, (1000,), generator=generator)
    values = torch.cat([ids, strangers])[torch.randperm(len(ids) + 1000, generator=generator)]
    offsets = torch.arange(len(values) + 1)
    assert same_bits(lookup(values, offsets), frozen_lookup_twin([table], ["f"], values, offsets))
    assert 0 < lookup.index_bytes() < 32 * len(ids)


@pytest.mark.parametrize("settings", [{}, {"padding": 5}])
@pytest.mark.parametrize("bad", [-1, 100, 2**31 - 1, -(2**31)])
def test_ids_that_a_table_does_not_have_are_refused_by_feature(settings, bad):
    tables = [small_table(features=(0,)), small_table(features=(1,), **settings)]
    lookup = FrozenLookup(tables, ["user", "item"])
    values = torch.zeros(40_000, dtype=torch.int32)
    offsets = torch.arange(0, 40_001, 10)
    values[33_333], values[39_999] = bad, -7
    for caller in (lookup, lambda *batch: frozen_lookup_twin(tables, ["user", "item"], *batch)):
        with pytest.raises(
            DataError, match=f"Feature 'item' has id {bad}, and table 'items' has rows 0 to 99"
        ):
            caller(values, offsets)


@pytest.mark.parametrize("offsets", [[0, 3, 2, 4], [1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 5]])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_offsets_that_do_not_rise_are_refused(offsets, dtype):
    lookup = FrozenLookup([small_table()], ["f"])
    with pytest.raises(DataError, match="offsets must rise"):
        lookup(torch.zeros(4, dtype=torch.int64), torch.tensor(offsets, dtype=dtype))


def test_arguments_that_do_not_fit_are_refused():
    lookup = FrozenLookup([small_table(), small_table(features=(1,))], ["a", "b"])
    values, offsets = torch.zeros(4, dtype=torch.int64), torch.arange(5)
    with pytest.raises(ConfigError, match="offsets has 4 entries"):
        lookup(values, offsets[:4])
    with pytest.raises(ConfigError, match="values is float32"):
        lookup(values.float(), offsets)
    with pytest.raises(ConfigError, match="`out` must be"):
        lookup(values, offsets, out=torch.empty(3, 64))
    with pytest.raises(ConfigError, match="sample weight for each"):
        lookup(values, offsets, sample_weights=torch.ones(3))
    with pytest.raises(ConfigError, match="looks feature 3 up"):
        FrozenLookup([small_table(features=(3,))], ["a"])


def test_rows_on_huge_pages_are_the_same_rows():
    table = small_table(rows=70_000)
    own = resident(table.rows)
    assert torch.equal(own, table.rows)
    assert own.data_ptr() % 64 == 0
    given_out = torch.empty(2, 32)
    moved = FrozenLookup([small_table(rows=70_000)], ["f"])
    values, offsets = torch.arange(10), torch.tensor([0, 4, 10])
    assert moved(values, offsets, out=given_out) is given_out
    assert same_bits(given_out, frozen_lookup_twin([table], ["f"], values, offsets))
