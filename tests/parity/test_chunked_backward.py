"""Updates of chunked rows beside whole ones: every optimizer against its twin, and bit for bit."""

import pytest
import torch
from chunked_lookups import ChunkedLookups, chunked_lookups
from hypothesis import given, settings
from hypothesis import strategies as st
from lookup_worlds import World, random_weight
from test_chunked_lookup import same_bits

from megalith.core.schema import TableSpec
from megalith.embeddings.descriptors import CollectionLookups
from megalith.ops.chunks.blocks import ChunkShape
from megalith.ops.chunks.chunked_rows import ChunkedRows
from megalith.ops.chunks.kernels_twin import chunked_backward_twin_
from megalith.ops.chunks.steps import ChunkStep
from megalith.ops.embedding.descriptors import LookupBatch, LookupDescriptor, OutputGradients
from megalith.ops.embedding.native_tables import NativeTables
from megalith.ops.native import SIMD_LEVELS
from megalith.ops.optimizer.steps import OPTIMIZER_KINDS, OptimizerStep
from megalith.ops.simd import use_simd
from megalith.ops.stores.start_values import StartValues
from megalith.ops.stores.tiered_rows import PooledTable

SUM_SCALES = (2.0**20, 2.0**16)


@pytest.fixture(autouse=True)
def widest_again():
    yield
    use_simd(None)


def gradients_of(lookups):
    return OutputGradients(lookups.world.gradient(), lookups.world.sequence_gradients())


def rates_of(pool):
    """Rates that tell every number of live chunks apart."""
    return 1.0 + torch.arange(pool.shape.chunks + 1.0) / 4


def update(lookups, weight=0.5, counts=True, rated=False):
    """One step of all tables; norms of absent rows by table, and sums over those that are there."""
    norms = {table: torch.zeros(len(absent)) for table, absent in lookups.absent.items()}
    sums = {table: torch.zeros(2, dtype=torch.int64) for table in lookups.absent}
    rates = [rates_of(twin) if rated and twin is not None else None for twin in lookups.twins]
    steps = [
        ChunkStep(weight, counts, norms.get(table), sums.get(table), *SUM_SCALES, rates[table])
        for table in range(len(lookups.widths))
    ]
    world = lookups.world
    lookups.tables.backward_(
        world.steps, lookups.descriptors, lookups.batch, gradients_of(lookups), world.rounding, steps
    )
    return norms, sums


def rows_of(pool):
    """All parts of all rows of a pool or a twin of one table."""
    return [part for block in pool.blocks(0) for part in block]


def twin_update(lookups, table, weight, counts, sums=None, rated=False):
    own = lookups.id_descriptors[lookups.id_descriptors[:, 0] == table].clone()
    own[:, 0] = 0
    world = lookups.world
    return chunked_backward_twin_(
        lookups.twins[table],
        world.steps[table : table + 1],
        own,
        lookups.id_batch,
        gradients_of(lookups),
        world.rounding[table : table + 1],
        [
            ChunkStep(
                weight, counts, None, sums, *SUM_SCALES, rates_of(lookups.twins[table]) if rated else None
            )
        ],
        lookups.absent[table],
    )


@pytest.mark.parametrize("kind", OPTIMIZER_KINDS)
def test_matches_the_twin(kind):
    @given(
        chunked_lookups(kinds=(kind,), dtypes=(torch.float32,)),
        st.sampled_from([0.0, 0.5]),
        st.booleans(),
        st.booleans(),
    )
    @settings(deadline=None, max_examples=40)
    def check(lookups, weight, counts, rated):
        norms, sums = update(lookups, weight, counts, rated)
        for table, twin in enumerate(lookups.twins):
            if twin is None:
                continue
            expected_sums = torch.zeros(2, dtype=torch.int64)
            expected = twin_update(lookups, table, weight, counts, expected_sums, rated)
            torch.testing.assert_close(norms[table], expected, rtol=2e-4, atol=2e-5)
            # A row's number may be rounded the other way.
            rows = len(next(twin.blocks(0)).ids) if twin.rows else 0
            torch.testing.assert_close(sums[table].float(), expected_sums.float(), rtol=2e-4, atol=rows)
            compare(rows_of(lookups.pools[table]), rows_of(twin))

    check()


def compare(found, expected):
    """Ids and masks alike, utilities to two places of bfloat16, weights and state closely."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if one.dtype == torch.int64:
            assert torch.equal(one, other)
        elif one.dtype == torch.bfloat16:
            torch.testing.assert_close(one.float(), other.float(), rtol=2**-6, atol=1e-6)
        else:
            torch.testing.assert_close(one, other.view(-1), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_matches_the_twin_to_one_place(dtype):
    """Rounded by logical columns: to the neighbour where sums differ in the last bit, never further."""

    @given(chunked_lookups(kinds=("sgd",), dtypes=(dtype,)))
    @settings(deadline=None, max_examples=40)
    def check(lookups):
        update(lookups)
        place = 2**-10 if dtype == torch.float16 else 2**-7
        for table, twin in enumerate(lookups.twins):
            if twin is None or not twin.rows:
                continue
            twin_update(lookups, table, 0.5, True)
            found, expected = (next(one.blocks(0)).weights for one in (lookups.pools[table], twin))
            torch.testing.assert_close(found.float(), expected.float(), rtol=place, atol=1e-6)

    check()


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_every_processor_variant_gives_the_same_bits(data):
    drawn = data.draw(chunked_lookups())
    seed, results = data.draw(st.integers(0, 2**31)), []
    for level in SIMD_LEVELS:
        use_simd(level)
        lookups = ChunkedLookups(drawn.world.copy(), drawn.widths, seed)
        norms, sums = update(lookups)
        parts = [part for pool in lookups.pools if pool for part in rows_of(pool)]
        results.append([*parts, *norms.values(), *lookups.weights, *sums.values()])
    for result in results[1:]:
        assert all(same_bits(one, other) for one, other in zip(result, results[0], strict=True))


@given(data=st.data())
@settings(deadline=None, max_examples=120)
def test_with_all_chunks_live_updates_are_those_of_whole_rows_bit_for_bit(data):
    """Weights and states, of every optimizer and type, with rounding at random."""
    drawn = data.draw(chunked_lookups(all_live=True))
    whole = drawn.world.copy()
    lookups = ChunkedLookups(drawn.world.copy(), drawn.widths, 1, all_live=True)
    update(lookups, data.draw(st.sampled_from([0.0, 1.0])))
    given_ids = whole.steps, lookups.id_descriptors, lookups.id_batch, gradients_of(lookups), whole.rounding
    NativeTables(whole.weights, whole.first, whole.second).backward_(*given_ids)
    for table, pool in enumerate(lookups.pools):
        if pool is None:
            assert same_bits(lookups.weights[table], whole.weights[table])
            continue
        (block,) = pool.blocks(0)
        expanded = block.expanded(pool.shape)
        assert same_bits(expanded.weight, whole.weights[table])
        for mine, theirs in ((expanded.first, whole.first), (expanded.second, whole.second)):
            assert same_bits(mine, theirs[table])


@pytest.mark.parametrize("all_live", [True, False])
def test_the_number_of_threads_does_not_change_a_bit(all_live):
    """Large enough that a table is cut into pieces, with hot rows, repeated rows and absent ones."""
    world = large_world()
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            lookups = ChunkedLookups(world.copy(), [16, 4], 3, all_live)
            norms, sums = update(lookups)
            parts = [part for pool in lookups.pools for part in rows_of(pool)]
            results.append([*sums.values(), *parts, *norms.values()])
    finally:
        torch.set_num_threads(before)
    assert all_live or len(results[0][-1]) > 100
    for result in results[1:]:
        assert all(same_bits(one, other) for one, other in zip(result, results[0], strict=True))


def large_world():
    generator = torch.Generator().manual_seed(1)
    tables = [TableSpec(name=f"t{n}", rows=5000, dim=64 - 24 * n, features=(f"f{n}",)) for n in range(2)]
    lookups, batch, length = CollectionLookups(tables), 1000, 20
    values = (torch.rand(2 * batch * length, generator=generator) ** 3 * 5000).long()
    steps = [
        OptimizerStep(OPTIMIZER_KINDS.index(kind), lr=0.1, eps=1e-8) for kind in ("rowwise_adagrad", "adam")
    ]
    first = [torch.zeros(5000), torch.zeros(5000, 40)]
    weights = [random_weight(table, generator) for table in tables]
    offsets = torch.arange(0, len(values) + 1, length)
    second = [torch.zeros(0), torch.zeros(5000, 40)]
    return World(lookups, weights, first, second, torch.tensor(steps), values, offsets, None, batch)


def test_utilities_are_right_on_average():
    """A thousand steps of a small gradient on a large utility, each lost if rounded to the nearest."""
    rows, steps = 500, 400
    pool = ChunkedRows([PooledTable(rows, StartValues(1, "t", 8, 1.0))], ChunkShape(8, 2), 1 << 20)
    ids = torch.arange(rows)
    pool.rewrite(0, ids, torch.full((rows,), 0b0111), utilities=torch.full((rows,), 100.0))
    found = pool.resolve(torch.tensor([[0, 0, rows]]), ids, trains=True)
    empty = [torch.zeros(0)]
    tables = NativeTables(empty, empty, empty, pools=[pool])
    lookup = LookupDescriptor(0, rows, 8, 0, 0, 0, 0, -1, -1, 1)
    batch = LookupBatch(found.slots, torch.arange(rows + 1), None, 1)
    gradient = torch.rand(rows, 8, generator=torch.Generator().manual_seed(0)) * 0.02
    for step in range(steps):
        tables.backward_(
            torch.tensor([OptimizerStep(0, lr=0.0)]),
            torch.tensor([lookup]),
            batch,
            OutputGradients(gradient),
            torch.tensor([[step * 7919, 0, 0]]),
            [ChunkStep(1.0)],
        )
    norms = gradient.view(rows, 4, 2).norm(dim=2)
    block = pool.read(0, ids)
    utilities = block.utilities.float().view(rows, 3)
    grown = norms * steps
    # Steps are half a unit wide; a mean of 1,500 chunks over 400 steps is right to a fraction of that.
    assert abs(float((utilities - 100 - grown[:, :3]).mean())) < 0.05
    assert abs(float((block.growth.float() - grown[:, 3]).mean())) < 0.02
