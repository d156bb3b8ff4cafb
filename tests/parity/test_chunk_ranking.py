"""Rankings of chunks against plain numpy: the same scores, thresholds and rows, bit for bit."""

import pytest
import torch
from chunked_worlds import CAPACITY, PoolWorld
from hypothesis import given, settings
from hypothesis import strategies as st
from ranked_worlds import RankedWorld, decided, fill, ranked_bytes, ranked_worlds
from test_chunked_rows import check_same_rows

from megalith.core.errors import ConfigError, NativeError
from megalith.ops.chunks.blocks import ChunkShape
from megalith.ops.chunks.chunked_rows import ChunkedRows
from megalith.ops.chunks.ranking import Ranking, RankingChanges, threshold
from megalith.ops.chunks.ranking_sums import RankingSettings
from megalith.ops.chunks.sketch import UNITS, CandidateSketch, CandidateTable
from megalith.ops.stores.start_values import StartValues
from megalith.ops.stores.tiered_rows import PooledTable

SHARES = (0.0, 0.05, 0.3, 0.7, 1.0, 1.5)


def both_histograms(native, twin, scales):
    """The native one, checked against the twin's whenever it is asked for."""

    def histogram(level, prefix):
        found = native.histogram(scales, level, prefix)
        assert torch.equal(found, twin.histogram(scales, level, prefix))
        return found

    return histogram


@given(world=ranked_worlds(), share=st.sampled_from(SHARES), seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=50)
def test_a_ranking_is_its_twin_bit_for_bit(world, share, seed):
    generator = torch.Generator().manual_seed(seed)
    (pool, sketch, native), (twin_pool, twin_sketch, twin) = places = world.rankings()
    for _ in range(2):
        fill(world, places, generator)
        sums = native.sums()
        assert torch.equal(sums, twin.sums())
        norms, budget = native.means(sums), int(share * ranked_bytes(pool, world.exempt))
        sums = native.score(norms, world.fades)
        assert torch.equal(sums, twin.score(norms, world.fades))
        scales = native.means(sums)
        key = threshold(both_histograms(native, twin, scales), budget)
        counts = native.changes(scales, key)
        assert torch.equal(counts, twin.changes(scales, key))
        assert RankingChanges(*counts.tolist()).bytes <= budget
        native.apply(scales, key)
        twin.apply(scales, key)
        assert ranked_bytes(pool, world.exempt) == int(counts[4])
        check_same_rows(world.pool, pool, twin_pool)
        pool.compact()
        for table in range(len(world.pool.rows)):
            assert torch.equal(sketch.state(table), twin_sketch.state(table))
            if not world.exempt[table]:
                assert not pool.masks(table, sketch.entries(table)[0]).any()


@given(world=ranked_worlds(), share=st.sampled_from(SHARES), seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=40)
def test_a_threshold_leaves_no_room_for_the_next_key(world, share, seed):
    """One key lower would not fit, and an exempt table keeps its rows."""
    generator = torch.Generator().manual_seed(seed)
    place = world.rankings()[0]
    fill(world, [place], generator)
    pool, _, ranking = place
    budget = int(share * ranked_bytes(pool, world.exempt))
    before = [pool.ids(table) for table in range(len(world.exempt))]
    scales, key = decided([ranking], budget, world.fades)
    assert int(ranking.changes(scales, key)[4]) <= budget
    if key > 0:
        assert int(ranking.changes(scales, key - 1)[4]) > budget
    ranking.apply(scales, key)
    for table, is_exempt in enumerate(world.exempt):
        if is_exempt:
            assert torch.equal(pool.ids(table), before[table])


@given(world=ranked_worlds(), share=st.sampled_from(SHARES), seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=15)
def test_threads_change_nothing(world, share, seed):
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            generator = torch.Generator().manual_seed(seed)
            place = pool, sketch, ranking = world.rankings()[0]
            fill(world, [place], generator)
            scales, key = decided([ranking], int(share * ranked_bytes(pool, world.exempt)), world.fades)
            numbers = [scales, ranking.sums(), ranking.changes(scales, key)]
            ranking.apply(scales, key)
            states = [sketch.state(table) for table in range(len(world.exempt))]
            results.append((key, [*numbers, *states], pool.statistics()))
    finally:
        torch.set_num_threads(threads)
    for key, numbers, statistics in results[1:]:
        assert key == results[0][0]
        assert statistics == results[0][2]
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(numbers, results[0][1], strict=True))


def part_of(world, units):
    """A place with some units of the world's only table, as a rank has it."""
    whole = world.candidates[0]
    first, last = (min(unit * whole.unit_rows, whole.rows) for unit in units)
    start = StartValues(3, "t0", world.pool.shape.dim, 0.5, world.pool.shape.dtype, first_row=first)
    pool = ChunkedRows([PooledTable(max(last - first, 1), start)], world.pool.shape, CAPACITY)
    sketch = CandidateSketch([CandidateTable(whole.rows, whole.bytes, units, first_row=first)])
    return pool, sketch, Ranking(pool, sketch, world.settings, [False])


@given(
    world=ranked_worlds(),
    share=st.sampled_from(SHARES),
    cut=st.integers(1, UNITS - 1),
    seed=st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=40)
def test_two_pools_of_half_the_rows_decide_as_one(world, share, cut, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = (max(64, world.pool.rows[0]),)
    world = RankedWorld(
        PoolWorld(world.pool.shape, rows, (-1,)),
        [CandidateTable(rows[0], world.candidates[0].bytes)],
        *(world.settings, (False,), None, world.few_values),
    )
    place = pool, sketch, ranking = world.rankings()[0]
    fill(world, [place], generator)
    parts = [part_of(world, units) for units in ((0, cut), (cut, UNITS))]
    for part_pool, part_sketch, _ in parts:
        first = part_pool.tables[0].start.first_row
        ids = pool.ids(0)
        own = ids[(ids >= first) & (ids < first + part_pool.tables[0].rows)]
        if part_sketch.tables[0].units[0] * part_sketch.tables[0].unit_rows < rows[0] and len(own):
            part_pool.load(0, pool.read(0, own)._replace(ids=own - first))
        begin, end = part_sketch.tables[0].units
        part_sketch.load_state(0, sketch.state(0)[begin:end])
    budget = int(share * ranked_bytes(pool, (False,)))
    scales, key = decided([ranking], budget, world.fades)
    part_scales, part_key = decided([one for *_, one in parts], budget)
    assert torch.equal(scales, part_scales)
    assert key == part_key
    counts = sum(one.changes(scales, key) for *_, one in parts)
    assert torch.equal(counts, ranking.changes(scales, key))
    for *_, one in (place, *parts):
        one.apply(scales, key)
    found = [
        (part_pool.ids(0) + part_pool.tables[0].start.first_row, part_pool.read(0, part_pool.ids(0)))
        for part_pool, *_ in parts
        if len(part_pool.ids(0))
    ]
    if found:
        whole = pool.read(0, pool.ids(0))
        assert torch.equal(torch.cat([ids for ids, _ in found]), whole.ids)
        for number in range(1, len(whole)):
            assert torch.equal(torch.cat([block[number] for _, block in found]), whole[number])
    else:
        assert not len(pool.ids(0))
    assert torch.equal(torch.cat([part.state(0) for _, part, _ in parts]), sketch.state(0))


def place_of(rows=1000, dim=8, width=2, **settings_):
    pool = ChunkedRows([PooledTable(rows, StartValues(1, "t", dim, 1.0))], ChunkShape(dim, width), CAPACITY)
    sketch = CandidateSketch([CandidateTable(rows, 4096)])
    return pool, sketch, Ranking(pool, sketch, RankingSettings(**settings_), [False])


@pytest.mark.parametrize(
    ("rows", "form"), [(3_000_000, "hash"), (200_000, "ranked bitmap"), (40_000, "array")]
)
def test_every_form_of_an_index_and_its_pieces_decide_the_same(rows, form):
    """Rows enough for several pieces: hashed as they came, and compacted with some that came later."""
    generator, results = torch.Generator().manual_seed(5), []
    ids = torch.randperm(rows, generator=generator)[:40_000]
    masks = torch.tensor([1, 3, 7, 15])[torch.randint(0, 4, (len(ids),), generator=generator)]
    utilities = torch.rand(len(ids), generator=generator) + 0.01
    for compacts in (False, True):
        pool, sketch, ranking = place_of(rows)
        pool.rewrite(0, ids[500:], masks[500:], utilities[500:])
        if compacts:
            pool.compact()
            assert pool.statistics().index_forms == (form,)
        pool.rewrite(0, ids[:500], masks[:500], utilities[:500])
        before, sums = ranked_bytes(pool, (False,)), ranking.sums()
        assert int(sums[0, 0]) == sum(bin(mask).count("1") for mask in masks.tolist())
        scales, key = decided([ranking], before // 2)
        # No growth utility and no candidate: nothing competes but what lives.
        assert int(ranking.histogram(scales, 0).sum()) == before
        assert ranking.scratch_bytes == 4 * int(sums[0, 0] + (masks != 15).sum() + UNITS * 8)
        counts = ranking.changes(scales, key)
        ranking.apply(scales, key)
        pool.compact()
        assert ranked_bytes(pool, (False,)) == int(counts[4]) <= before // 2
        kept = pool.ids(0)
        results.append((sums, counts, kept, *pool.read(0, kept), sketch.state(0)))
        assert len(kept) == len(ids) - int(counts[3])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*results, strict=True))


def test_chunks_take_their_utilities_with_them():
    """What grows, what goes and what begins, by hand."""
    pool, sketch, ranking = place_of(floor=1e6)
    ids, ones = torch.arange(3), torch.ones(1)
    pool.rewrite(0, ids, torch.tensor([1, 3, 15]), torch.tensor([4.0, 4.0, 8.0]), torch.tensor([12.0, 0, 0]))
    sketch.add(torch.tensor([[0, 500]]), torch.tensor([2.0]), 1.0)
    before = pool.read(0, ids[:1])
    sums = ranking.score(ones, [0.0])
    assert int(sums[0, 0]) == 4000
    assert ranking.means(sums).item() == pytest.approx((4 + 12 + 8 + 32 + 2) / 4000)
    # Values 4 and 4 / 1.2 of row 0, 0.5 / 1.2 of the candidate; factors 1, 1.5 ** 1.5, 2 ** 1.5, 2.5 ** 1.5.
    limit = int(torch.tensor(0.4).view(torch.int32)) << 16
    assert RankingChanges(*ranking.changes(ones, limit).tolist())[:4] == (0, 3 + 1, 1, 0)
    limit = int(torch.tensor(1.5).view(torch.int32)) << 16
    assert RankingChanges(*ranking.changes(ones, limit).tolist())[:4] == (0, 1, 0, 0)
    ranking.apply(ones, limit)
    assert pool.masks(0, torch.tensor([0, 1, 2, 500])).tolist() == [3, 3, 15, 0]
    grown = pool.read(0, torch.tensor([0]))
    assert grown.utilities.tolist() == [4.0, 4.0]
    assert grown.growth.item() == 8.0
    assert torch.equal(grown.weights[:2], before.weights)
    # Everything fits: row 1 has nothing that asks, row 2 is whole, the others become it.
    ranking.score(ones, [0.0])
    ranking.apply(ones, 0)
    assert pool.masks(0, torch.tensor([0, 1, 2, 500])).tolist() == [15, 3, 15, 15]
    begun = pool.read(0, torch.tensor([500]))
    assert begun.utilities.tolist() == [0.5] * 4
    assert begun.growth.item() == 0
    assert not len(sketch.entries(0)[0])
    # Nothing fits: all go, with what they are worth.
    ranking.score(ones)
    ranking.apply(ones, 1 << 48)
    assert not len(pool.ids(0))
    ids, utilities = sketch.entries(0)
    assert ids.tolist() == [0, 1, 2, 500]
    assert utilities.tolist() == [16.0, 8.0, 32.0, 2.0]


def test_what_changed_in_between_is_refused():
    pool, _, ranking = place_of()
    pool.rewrite(0, torch.arange(5), torch.full((5,), 3), torch.ones(5))
    with pytest.raises(NativeError, match="have changed"):
        ranking.histogram(torch.ones(1), 0)
    scales, _ = decided([ranking], 100)
    pool.rewrite(0, torch.tensor([9]), torch.tensor([1]))
    with pytest.raises(NativeError, match="have changed"):
        ranking.apply(scales, 0)
    pool.rewrite(0, torch.tensor([9]), torch.tensor([6]))
    with pytest.raises(NativeError, match="others than its first"):
        ranking.score(scales)
    for odd in (torch.zeros(1), torch.ones(2), torch.tensor([torch.nan])):
        with pytest.raises(ValueError, match="above 0"):
            ranking.score(odd)
    with pytest.raises(ValueError, match="fades"):
        ranking.score(scales, [1.5])
    with pytest.raises(ConfigError, match="is not of the table t"):
        Ranking(pool, CandidateSketch([CandidateTable(2000, 4096)]), RankingSettings(), [False])
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        ranking.sums()
