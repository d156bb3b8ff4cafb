"""The fused backward pass against its twin: every optimizer, pooling, type and processor variant."""

import pytest
import torch
from hypothesis import given, settings
from lookup_worlds import worlds

from megalith.core.schema import TableSpec
from megalith.embeddings.descriptors import CollectionLookups
from megalith.ops.embedding.descriptors import LookupBatch, OutputGradients
from megalith.ops.embedding.native_tables import NativeTables
from megalith.ops.native import SIMD_LEVELS
from megalith.ops.optimizer.backward import embedding_backward_
from megalith.ops.optimizer.backward_twin import embedding_backward_twin_
from megalith.ops.optimizer.steps import OPTIMIZER_KINDS, OptimizerStep
from megalith.ops.optimizer.stochastic_rounding import (
    RowRounding,
    random_words,
    round_at_random,
    table_rounding_seed,
)
from megalith.ops.simd import use_simd
from megalith.ops.tensors import STORED_DTYPES

SEED = -6226718616143348517
WORDS = [[1334384216, 876197426], [437135223, 2156931421]]


@pytest.fixture(autouse=True)
def widest_again():
    yield
    use_simd(None)


def stepped(world, operator, gradient, sequence_gradients):
    done = world.copy()
    lists = done.weights, done.first, done.second
    gradients = gradient, sequence_gradients
    operator(*lists, done.steps, done.lookups.descriptors, *done.lookup, *gradients, done.rounding)
    return [*done.weights, *done.first, *done.second]


@pytest.mark.parametrize("kind", OPTIMIZER_KINDS)
def test_matches_the_twin(kind):
    @given(worlds(kinds=(kind,), dtypes=(torch.float32,)))
    @settings(deadline=None, max_examples=40)
    def check(world):
        gradients = world.gradient(), world.sequence_gradients()
        found, expected = (
            stepped(world, one, *gradients) for one in (embedding_backward_, embedding_backward_twin_)
        )
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)

    check()


@given(worlds(dtypes=(torch.float16, torch.bfloat16), kinds=("sgd",)))
@settings(deadline=None, max_examples=60)
def test_half_precision_matches_the_twin_to_one_place(world):
    """A sum that differs in its last bit may round to the neighbour; never further."""
    gradients = world.gradient(), world.sequence_gradients()
    found, expected = (
        stepped(world, one, *gradients) for one in (embedding_backward_, embedding_backward_twin_)
    )
    for one, other in zip(found, expected, strict=True):
        # A place is 2^-10 for float16 and 2^-7 for bfloat16, of the number itself.
        place = 2**-10 if one.dtype == torch.float16 else 2**-7
        torch.testing.assert_close(one.float(), other.float(), rtol=place, atol=1e-6)


@given(worlds())
@settings(deadline=None, max_examples=100)
def test_every_processor_variant_gives_the_same_bits(world):
    results = []
    for level in SIMD_LEVELS:
        use_simd(level)
        results.append(stepped(world, embedding_backward_, world.gradient(), world.sequence_gradients()))
    for result in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(result, results[0], strict=True))


@pytest.mark.parametrize("hot", [0.0, 0.9])
@pytest.mark.parametrize("num_tables", [1, 5])
def test_the_number_of_threads_does_not_change_a_bit(hot, num_tables):
    """Large enough that one table is sorted in parts, and a hot row added up by columns on all threads."""
    generator = torch.Generator().manual_seed(1)
    names = [f"f{i}" for i in range(num_tables)]
    tables = [TableSpec(name=n, rows=5000, dim=20 + i, features=(n,)) for i, n in enumerate(names)]
    lookups, batch, length = CollectionLookups(tables), 4000, 50
    count = num_tables * batch * length
    values = torch.randint(0, 5000, (count,), generator=generator)
    values[torch.rand(count, generator=generator) < hot] = 77
    offsets = torch.arange(0, count + 1, length)
    gradient = torch.randn(batch, lookups.output_dim, generator=generator)
    steps = torch.tensor(
        [OptimizerStep(kind=OPTIMIZER_KINDS.index("rowwise_adagrad"), lr=0.1, eps=1e-8)] * num_tables
    )
    start = [torch.randn(5000, table.dim, generator=generator) for table in tables]
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            weights, first = [one.clone() for one in start], [torch.zeros(5000) for _ in tables]
            second = [torch.zeros(0) for _ in tables]
            lookup = values, offsets, None, num_tables
            rounding = torch.zeros(num_tables, 3, dtype=torch.int64)
            lists = weights, first, second
            embedding_backward_(*lists, steps, lookups.descriptors, *lookup, gradient, [], rounding)
            results.append([*weights, *first])
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(result, results[0], strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_stochastic_rounding_is_right_on_average(dtype):
    value = torch.tensor([1.0 + 0.3 * (2**-10 if dtype == torch.float16 else 2**-7), -1e-7, 3e-5, 0.0])
    rows = torch.arange(20_000)
    rounded = round_at_random(value.repeat(20_000, 1), dtype, rows, RowRounding(3)).double()
    spacing = (rounded.amax(0) - rounded.amin(0)).clamp(min=1e-30)
    assert bool(((rounded.mean(0) - value.double()).abs() <= 0.02 * spacing).all())


@pytest.mark.parametrize("dtype", STORED_DTYPES[1:])
def test_native_rounding_draws_the_twins_numbers(dtype):
    """Rows of a zero-gradient SGD step with decay: the result is rounding alone, and equal bit for bit."""
    table = TableSpec(name="t", rows=64, dim=21, features=("f",), dtype=str(dtype).removeprefix("torch."))
    lookups = CollectionLookups([table])
    step = OptimizerStep(kind=0, lr=0.125, stochastic_rounding=1.0)
    start = torch.randn(64, 21, generator=torch.Generator().manual_seed(0)).to(dtype)
    start[0] = start[0] * 1e-6
    gradient = torch.randn(64, 21, generator=torch.Generator().manual_seed(1))
    results = []
    for operator in (embedding_backward_, embedding_backward_twin_):
        weight, empty = start.clone(), [torch.zeros(0)]
        lookup = torch.arange(64), torch.arange(65), None, 1
        arguments = torch.tensor([step]), lookups.descriptors, *lookup, gradient, []
        operator([weight], empty, empty, *arguments, torch.tensor([RowRounding(-9, 2**35, 7)]))
        results.append(weight)
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", STORED_DTYPES[1:])
def test_rounding_depends_on_ids_and_not_on_where_rows_and_columns_lie(dtype):
    """A table, and the same rows in another order, of which two ranges of columns are updated apart."""
    rows, dim, cut = 40, 37, 13
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(rows, dim, generator=generator).to(dtype)
    gradient = torch.randn(rows, dim, generator=generator)
    step = torch.tensor([OptimizerStep(kind=0, lr=0.125, stochastic_rounding=1.0)])
    order = torch.randperm(rows, generator=generator)

    def updated(weight, values, gradient, rounding, slot_ids=None):
        table = TableSpec(name="t", rows=rows, dim=weight.shape[1], features=("f",), dtype=str(dtype)[6:])
        weight, empty = weight.clone(), [torch.zeros(0)]
        batch = LookupBatch(values, torch.arange(rows + 1), None, 1)
        gradients = OutputGradients(gradient.contiguous(), [])
        tables = NativeTables([weight], empty, empty, [slot_ids])
        descriptors = CollectionLookups([table]).descriptors
        tables.backward_(step, descriptors, batch, gradients, torch.tensor([rounding]))
        return weight

    expected = updated(start, torch.arange(rows), gradient, RowRounding(5, 100, 0))
    # Slot i holds the row of id order[i].
    slots = order.argsort()
    found = updated(start[order], slots, gradient, RowRounding(5, 100, 0), order)
    assert torch.equal(found[slots], expected)
    parts = [
        updated(start[:, columns], torch.arange(rows), gradient[:, columns], RowRounding(5, 100, first))
        for first, columns in ((0, slice(0, cut)), (cut, slice(cut, dim)))
    ]
    assert torch.equal(torch.cat(parts, dim=1), expected)
    ids = torch.arange(rows)
    twin = round_at_random(start.float() - gradient * 0.125, dtype, ids, RowRounding(5, 100, 0))
    assert torch.equal(twin, expected)


def test_rounding_is_what_it_always_was():
    """Frozen: runs of half-precision tables would not resume if these changed."""
    assert table_rounding_seed("t0") == SEED
    assert random_words(torch.tensor([0, 2**40]), 2, RowRounding(SEED, 3, 1)).tolist() == WORDS


def test_torch_knows_the_operator():
    lookups = CollectionLookups([TableSpec(name="t", rows=5, dim=3, features=("f",))])
    values, offsets = torch.tensor([1, 2, 4]), torch.tensor([0, 2, 3])
    lists = [torch.randn(5, 3)], [torch.zeros(5)], [torch.zeros(0)]
    steps = torch.tensor([OptimizerStep(kind=OPTIMIZER_KINDS.index("rowwise_adagrad"), lr=0.1, eps=1e-8)])
    arguments = *lists, steps, lookups.descriptors, values, offsets, None, 1, torch.randn(2, 3), []
    torch.library.opcheck(
        torch.ops.megalith.embedding_backward_.default, (*arguments, torch.zeros(1, 3, dtype=torch.int64))
    )
