"""The two halves of a step on column-sharded rows, against the twin and against the fused pass."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lookup_worlds import worlds

from megalith.core.schema import TableSpec
from megalith.embeddings.descriptors import CollectionLookups
from megalith.ops.embedding.descriptors import LookupBatch, OutputGradients
from megalith.ops.native import SIMD_LEVELS
from megalith.ops.optimizer.backward import embedding_backward_
from megalith.ops.optimizer.column_sharded import ColumnShardedUpdate
from megalith.ops.optimizer.column_sharded_twin import ColumnShardedUpdateTwin
from megalith.ops.optimizer.steps import NUM_ROW_NORMS, OPTIMIZER_KINDS, OptimizerStep
from megalith.ops.simd import use_simd
from megalith.ops.tensors import STORED_DTYPES

ROWS = st.one_of(st.integers(1, 12), st.sampled_from([64, 600, 5000]))
"""Also tables so long that a batch's few rows are sorted, not marked in a bitmap."""


@pytest.fixture(autouse=True)
def widest_again():
    yield
    use_simd(None)


def column_sharded_worlds(kinds=tuple(NUM_ROW_NORMS), dtypes=STORED_DTYPES):
    return worlds(kinds=kinds, dtypes=dtypes, row_counts=ROWS)


@st.composite
def cuts(draw, world):
    """Columns of the whole rows, and each table's rows in one to three sections."""
    columns, sections = [], []
    for number, weight in enumerate(world.weights):
        rows, dim = weight.shape
        columns.append(dim * draw(st.integers(1, 3)))
        edges = sorted({0, rows, *draw(st.lists(st.integers(0, rows), max_size=2))})
        sections += [(number, first, last) for first, last in itertools.pairwise(edges)]
    return columns, sections


def stepped(world, operator, columns, sections, share):
    """What a step gives where `share` of each norm is found here: norms, weights and states."""
    done = world.copy()
    lists = done.weights, done.first, done.second
    update = operator(*lists, done.lookups.descriptors, columns, sections)
    gradients = OutputGradients(world.gradient(), world.sequence_gradients())
    norms = update.begin(done.steps, LookupBatch(*done.lookup), gradients)
    update.finish([part / share for part in norms], world.rounding)
    return [*norms, *done.weights, *done.first, *done.second]


@pytest.mark.parametrize("kind", NUM_ROW_NORMS)
def test_matches_the_twin(kind):
    @given(st.data())
    @settings(deadline=None, max_examples=40)
    def check(data):
        world = data.draw(column_sharded_worlds(kinds=(kind,), dtypes=(torch.float32,)))
        cut = *data.draw(cuts(world)), data.draw(st.sampled_from([1.0, 0.4]))
        found, expected = (
            stepped(world, one, *cut) for one in (ColumnShardedUpdate, ColumnShardedUpdateTwin)
        )
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)

    check()


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_half_precision_matches_the_twin_to_one_place(data):
    """A sum that differs in its last bit may round to the neighbour; never further."""
    world = data.draw(column_sharded_worlds(kinds=("rowwise_adagrad", "lars"), dtypes=STORED_DTYPES[1:]))
    columns, sections = data.draw(cuts(world))
    found, expected = (
        stepped(world, one, columns, sections, 0.5) for one in (ColumnShardedUpdate, ColumnShardedUpdateTwin)
    )
    for one, other in zip(found, expected, strict=True):
        place = {torch.float16: 2**-10, torch.bfloat16: 2**-7}.get(one.dtype, 2e-4)
        torch.testing.assert_close(one.float(), other.float(), rtol=place, atol=2e-5)


@given(column_sharded_worlds())
@settings(deadline=None, max_examples=100)
def test_both_halves_give_the_bits_of_the_fused_pass(world):
    """Where all columns are here, in every type and with every way of rounding."""
    sections = [(number, 0, len(weight)) for number, weight in enumerate(world.weights)]
    columns = [weight.shape[1] for weight in world.weights]
    fused = world.copy()
    lists = fused.weights, fused.first, fused.second
    gradients = world.gradient(), world.sequence_gradients()
    embedding_backward_(
        *lists, fused.steps, fused.lookups.descriptors, *fused.lookup, *gradients, fused.rounding
    )
    found = stepped(world, ColumnShardedUpdate, columns, sections, 1.0)[len(sections) :]
    expected = [*fused.weights, *fused.first, *fused.second]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_every_processor_variant_gives_the_same_bits(data):
    world = data.draw(column_sharded_worlds())
    cut = data.draw(cuts(world))
    results = []
    for level in SIMD_LEVELS:
        use_simd(level)
        results.append(stepped(world, ColumnShardedUpdate, *cut, 0.5))
    for result in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(result, results[0], strict=True))


@pytest.mark.parametrize("rows", [5000, 2_000_000])
@pytest.mark.parametrize("kind", NUM_ROW_NORMS)
def test_the_number_of_threads_does_not_change_a_bit(kind, rows):
    """Large enough that a table is cut into pieces, with rows in a bitmap and with rows that are sorted; one
    handle for several steps, with more pieces and with fewer."""
    generator = torch.Generator().manual_seed(1)
    dims, batch, length = (3, 20), 1000, 20
    tables = [TableSpec(name=f"t{d}", rows=rows, dim=d, features=(f"f{d}",)) for d in dims]
    lookups, count = CollectionLookups(tables), len(dims) * batch * length
    values = torch.randint(0, rows, (count,), generator=generator)
    values[torch.rand(count, generator=generator) < 0.3] = 77
    lookup = values, torch.arange(0, count + 1, length), None, len(dims)
    gradient = torch.randn(batch, lookups.output_dim, generator=generator)
    settings = OptimizerStep(
        kind=OPTIMIZER_KINDS.index(kind), lr=0.1, eps=1e-3, beta1=0.9, beta2=0.99, rest1=0.1, rest2=0.01
    )
    steps = torch.tensor([settings] * len(dims))
    full_first = kind != "rowwise_adagrad"
    sections = [(0, 0, rows // 3), (0, rows // 3, rows), (1, 0, rows)]
    before, results = torch.get_num_threads(), []
    try:
        for threads in ((1, 1), (2, 5), (5, 3)):
            weights = [torch.ones(rows, dim) for dim in dims]
            first = [torch.zeros(rows, dim if full_first else 1) for dim in dims]
            second = [torch.zeros(rows, dim if kind == "lamb" else 1) for dim in dims]
            update = ColumnShardedUpdate(weights, first, second, lookups.descriptors, (8, 64), sections)
            for number in threads:
                torch.set_num_threads(number)
                norms = update.begin(steps, LookupBatch(*lookup), OutputGradients(gradient))
                update.finish([2 * part for part in norms], torch.zeros(2, 3, dtype=torch.int64))
            touched = values.unique()
            results.append([*norms, *(one[touched] for one in (*weights, *first, *second))])
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(result, results[0], strict=True))
    assert len(norms[0]) + len(norms[1]) == NUM_ROW_NORMS[kind] * len(values[: count // 2].unique())


@pytest.mark.parametrize("kind", NUM_ROW_NORMS)
def test_two_halves_of_the_columns_step_as_the_whole_does(kind):
    """Each finds sums over its own columns; both take the step with the same totals."""
    rows, dim, batch = 50, 22, 30
    generator = torch.Generator().manual_seed(2)
    values = torch.randint(0, rows, (3 * batch,), generator=generator)
    lookup = values, torch.arange(0, 3 * batch + 1, 3), None, 1
    gradient, start = (
        torch.randn(batch, dim, generator=generator),
        torch.randn(rows, dim, generator=generator),
    )
    steps = torch.tensor(
        [
            OptimizerStep(
                kind=OPTIMIZER_KINDS.index(kind), lr=0.1, eps=1e-3, beta1=0.9, beta2=0.99,
                rest1=0.1, rest2=0.01, weight_decay=0.1,
            )
        ]
    )  # fmt: skip

    def part(left, right):
        width = right - left
        lookups = CollectionLookups([TableSpec(name="t", rows=rows, dim=width, features=("f",))])
        weight, first = start[:, left:right].clone(), torch.zeros(rows, width)
        second = torch.zeros(rows, width if kind == "lamb" else 1)
        if kind == "rowwise_adagrad":
            first = torch.zeros(rows)
        update = ColumnShardedUpdate([weight], [first], [second], lookups.descriptors, [dim], [(0, 0, rows)])
        gradients = OutputGradients(gradient[:, left:right])
        (norms,) = update.begin(steps, LookupBatch(*lookup), gradients)
        return weight, update, norms

    sides = [part(0, 9), part(9, dim)]
    total = sides[0][2] + sides[1][2]
    for _, update, _ in sides:
        update.finish([total], torch.zeros(1, 3, dtype=torch.int64))
    whole, update, sums = part(0, dim)
    update.finish([sums], torch.zeros(1, 3, dtype=torch.int64))
    torch.testing.assert_close(torch.cat([side[0] for side in sides], dim=1), whole)
    torch.testing.assert_close(total, sums)
