"""Chunked rows that a map of ids gives out: against their twins, and the same whichever row an id has."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from chunked_worlds import PoolWorld, shapes
from hypothesis import given, settings
from hypothesis import strategies as st
from ranked_worlds import SETTINGS, RankedWorld, decided, prefix_block
from test_candidate_sketch import drawn_norms
from test_chunked_rows import CALLS, check_resolved, check_same_rows, one_call

from megalith.core.errors import NativeError
from megalith.ops.chunks.blocks import ChunkShape
from megalith.ops.chunks.chunked_rows import ChunkedRows
from megalith.ops.chunks.ranking import Ranking, RankingChanges, threshold
from megalith.ops.chunks.ranking_twin import RankingTwin
from megalith.ops.chunks.sketch import UNITS, CandidateSketch, CandidateTable, raw_entries
from megalith.ops.chunks.sketch_twin import CandidateSketchTwin
from megalith.ops.chunks.steps import ChunkStep
from megalith.ops.embedding.descriptors import LAYOUTS, LookupBatch, LookupDescriptor, OutputGradients
from megalith.ops.embedding.native_tables import NativeTables
from megalith.ops.ids.partitions import id_partitions, rows_of_partitions
from megalith.ops.optimizer.steps import OPTIMIZER_KINDS, OptimizerStep
from megalith.ops.stores.start_values import StartValues, start_values_twin
from megalith.ops.stores.tiered_rows import PooledTable


def drawn_raw_ids(count, generator):
    """Distinct ids of any 64 bits, some of them small."""
    ids = torch.randint(-(2**62), 2**62, (4 * count + 8,), generator=generator)
    ids = torch.cat([torch.arange(-2, 3), ids]).unique()
    return ids[torch.randperm(len(ids), generator=generator)[:count]]


@dataclass
class MappedWorld:
    """One table of a bound, of which the last row competes for nothing, and its ids in any rows."""

    shape: ChunkShape
    bound: int
    bytes: int
    settings: object
    few_values: bool
    raw_ids: torch.Tensor

    @property
    def ranked(self):
        return RankedWorld(
            PoolWorld(self.shape, (self.bound + 1,), (-1,)),
            [],
            self.settings,
            (False,),
            None,
            self.few_values,
        )

    def places(self, raw_ids=None):
        """(pool, sketch, ranking), native and as twins."""
        raw_ids = torch.cat([self.raw_ids if raw_ids is None else raw_ids, torch.tensor([0])])
        candidates = [CandidateTable(self.bound, self.bytes, mapped_rows=self.bound)]
        pool, twin = self.ranked.pool.pools()
        for one in (pool, twin):
            one.map_rows(0, raw_ids, self.bound)
        sketch = CandidateSketch(candidates, [raw_ids])
        twin_sketch = CandidateSketchTwin(candidates, [raw_ids])
        given_settings = self.settings, [False]
        return (
            (pool, sketch, Ranking(pool, sketch, *given_settings)),
            (twin, twin_sketch, RankingTwin(twin, twin_sketch, *given_settings)),
        )


@st.composite
def mapped_worlds(draw):
    bound = draw(st.sampled_from([64, 70, 500, 3000]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return MappedWorld(
        *(draw(shapes()), bound, draw(st.sampled_from([0, 1600, 20_000])), draw(st.sampled_from(SETTINGS))),
        *(draw(st.booleans()), drawn_raw_ids(bound, generator)),
    )


def fill(world, places, generator, rows_of=None):
    """The same ids with chunks, and others as candidates; `rows_of` says which row an id's first row is."""
    order = torch.randperm(world.bound, generator=generator)
    count = int(torch.randint(0, min(60, world.bound // 2), (), generator=generator))
    present, absent = order[:count], order[count : 3 * count]
    live = torch.randint(1, world.shape.chunks + 1, (len(present),), generator=generator)
    block = prefix_block(world.ranked, present, live, generator)
    norms = drawn_norms(len(absent), generator)
    for number, (pool, sketch, _) in enumerate(places):
        moved = present if rows_of is None or number == 0 else rows_of[present]
        others = absent if rows_of is None or number == 0 else rows_of[absent]
        pool.load(0, block._replace(ids=moved))
        sketch.add(torch.stack([torch.zeros_like(others), others], dim=1), norms, 1.0)


@given(
    world=mapped_worlds(),
    calls=st.lists(st.sampled_from(("add", "add", "remove", "scale")), max_size=8),
    seed=st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=60)
def test_a_sketch_of_mapped_rows_is_its_twin(world, calls, seed):
    generator = torch.Generator().manual_seed(seed)
    (_, sketch, _), (_, twin, _) = world.places()
    for kind in calls:
        rows = torch.randperm(world.bound, generator=generator)[:300]
        norms = drawn_norms(len(rows), generator)
        for one in (sketch, twin):
            if kind == "add":
                one.add(torch.stack([torch.zeros_like(rows), rows], dim=1), norms, 0.75)
            elif kind == "scale":
                one.scale(0.3)
            else:
                one.remove(0, rows)
    assert torch.equal(sketch.state(0), twin.state(0))
    # What travels, in any rows, is the same again.
    ids, utilities = raw_entries(sketch.raw_state(0))
    where = {int(id_): row for row, id_ in enumerate(world.raw_ids.tolist())}
    rows = torch.tensor([where[id_] for id_ in ids.tolist()], dtype=torch.int64)
    again = world.places()[0][1]
    order = torch.randperm(len(rows), generator=generator)
    again.replace(0, rows[order], utilities[order])
    assert torch.equal(again.state(0), sketch.state(0))


@given(world=mapped_worlds(), cut=st.integers(1, UNITS - 1), seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=30)
def test_partitions_on_two_ranks_hold_the_candidates_of_one(world, cut, seed):
    generator = torch.Generator().manual_seed(seed)
    whole = world.places()[0][1]
    partitions = id_partitions(world.raw_ids)
    parts = []
    for units in ((0, cut), (cut, UNITS)):
        own = ((partitions >= units[0]) & (partitions < units[1])).nonzero().view(-1)
        own = own[torch.randperm(len(own), generator=generator)]
        raw_ids, held = world.raw_ids[own], max(len(own), rows_of_partitions(world.bound, units))
        table = CandidateTable(world.bound, world.bytes, units, mapped_rows=held)
        raw_ids = torch.cat([raw_ids, torch.zeros(held - len(own), dtype=torch.int64)])
        parts.append((CandidateSketch([table], [raw_ids]), own))
    for _ in range(3):
        rows = torch.randperm(world.bound, generator=generator)[:200]
        norms = torch.zeros(world.bound)
        norms[rows] = drawn_norms(len(rows), generator)
        whole.add(torch.stack([torch.zeros_like(rows), rows], dim=1), norms[rows], 1.0)
        for sketch, own in parts:
            here = torch.isin(own, rows).nonzero().view(-1)
            sketch.add(torch.stack([torch.zeros_like(here), here], dim=1), norms[own[here]], 1.0)
    assert torch.equal(torch.cat([sketch.raw_state(0) for sketch, _ in parts]), whole.raw_state(0))


@given(world=mapped_worlds(), share=st.sampled_from([0.0, 0.3, 0.7, 1.5]), seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=40)
def test_a_ranking_of_mapped_rows_is_its_twin_in_any_rows(world, share, seed):
    """Native, twin, and native with the ids in other rows: the same keys, chunks and candidates."""
    generator = torch.Generator().manual_seed(seed)
    rows_of = torch.randperm(world.bound, generator=generator)
    moved_ids = torch.empty_like(world.raw_ids)
    moved_ids[rows_of] = world.raw_ids
    native, twin = world.places()
    other = world.places(moved_ids)[0]
    shared = prefix_block(
        world.ranked, torch.tensor([world.bound]), torch.tensor([world.shape.chunks]), generator
    )
    for place in (native, twin, other):
        place[0].load(0, shared)
    for _ in range(2):
        state = generator.get_state()
        fill(world, [native, other], generator, rows_of)
        generator.set_state(state)
        fill(world, [twin], generator)
        pool, sketch, ranking = native
        row_bytes = pool.statistics().row_bytes
        live = [int(mask).bit_count() for mask in pool.masks(0, pool.ids(0)[:-1]).tolist()]
        budget = int(share * sum(row_bytes[count % (world.shape.chunks + 1)] for count in live))
        sums = ranking.sums()
        assert torch.equal(sums, twin[2].sums())
        norms = ranking.means(sums)
        assert torch.equal(ranking.score(norms), twin[2].score(norms))
        scales = ranking.means(twin[2].score(norms))
        key = threshold(partial(ranking.histogram, scales), budget)
        assert torch.equal(ranking.changes(scales, key), twin[2].changes(scales, key))
        assert RankingChanges(*ranking.changes(scales, key).tolist()).bytes <= budget
        assert [*map(float, decided([other[2]], budget)[0])] == [*map(float, scales)]
        assert decided([other[2]], budget)[1] == key
        for one in (native, twin, other):
            one[2].apply(scales, key)
        check_same_rows(world.ranked.pool, pool, twin[0])
        assert torch.equal(sketch.state(0), twin[1].state(0))
        assert torch.equal(other[1].raw_state(0), sketch.raw_state(0))
        kept = pool.ids(0)[:-1]
        if len(kept):
            found, expected = other[0].read(0, rows_of[kept]), pool.read(0, kept)
            assert all(
                torch.equal(mine, theirs) for mine, theirs in zip(found[1:], expected[1:], strict=True)
            )
        # What competes for nothing is as it was.
        assert int(pool.ids(0)[-1]) == world.bound
        whole = pool.read(0, torch.tensor([world.bound]))
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(whole, shared, strict=True))


@given(world=mapped_worlds(), calls=st.lists(st.sampled_from(CALLS), max_size=8), seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=40)
def test_mapped_rows_begin_by_their_ids(world, calls, seed):
    generator = torch.Generator().manual_seed(seed)
    (pool, *_), (twin, *_) = world.places()
    for kind in calls:
        results, batch = one_call(world.ranked.pool, (pool, twin), kind, generator)
        if results is not None:
            check_resolved(*results, twin, batch[1], batch[0])
    check_same_rows(world.ranked.pool, pool, twin)
    row = int(torch.randint(0, world.bound, (), generator=generator))
    pool.rewrite(0, torch.tensor([row]), torch.tensor([0]))
    pool.rewrite(0, torch.tensor([row]), torch.tensor([world.shape.whole]))
    begun = start_values_twin(pool.tables[0].start, world.raw_ids[row : row + 1])
    assert torch.equal(pool.read(0, torch.tensor([row])).weights, begun.flatten())


@given(shape=shapes())
@settings(deadline=None, max_examples=60)
def test_bytes_of_a_row_are_those_that_the_pool_counts(shape):
    pool = PoolWorld(shape, (5,), (-1,)).pools()[0]
    assert [shape.row_bytes(live) for live in range(shape.chunks + 1)] == list(pool.statistics().row_bytes)


@pytest.mark.parametrize("unscored", [False, True])
def test_a_row_that_is_not_scored_takes_its_step_all_the_same(unscored):
    """Its utilities stay, and no sum counts it."""
    table = PooledTable(3, StartValues(1, "t", 8, 1.0))
    pool = ChunkedRows([table], ChunkShape(8, 2, first_state="row"), 1 << 24)
    rows, whole = torch.arange(3), torch.full((3,), 15)
    pool.rewrite(0, rows, whole, torch.ones(3))
    before = pool.read(0, rows)
    slots = pool.resolve(torch.tensor([[0, 0, 3]]), rows, trains=True).slots
    fields = {"table": 0, "rows": 0, "dim": 8, "pooling": 0, "dtype": 0, "feature": 0, "column": 0}
    fields |= {"sequence": -1, "padding": -1, "layout": LAYOUTS.index("chunked")}
    descriptor = torch.tensor([[fields[name] for name in LookupDescriptor._fields]])
    sums, none = torch.zeros(2, dtype=torch.int64), torch.empty(0)
    tables = NativeTables([torch.empty(0, 8)], [none], [none], None, [pool])
    step = ChunkStep(0.5, sums=sums, norm_scale=16.0, unscored=int(slots[2]) if unscored else 0)
    kind = OPTIMIZER_KINDS.index("rowwise_adagrad")
    steps = torch.tensor([OptimizerStep(**{**OptimizerStep._field_defaults, "kind": kind, "lr": 0.1})])
    batch = LookupBatch(slots, torch.arange(4), None, 1)
    tables.backward_(
        steps, descriptor, batch, OutputGradients(torch.ones(3, 8)), torch.zeros(1, 3).long(), [step]
    )
    after = pool.read(0, rows)
    assert not (after.weights == before.weights).any()
    grown = after.utilities.view(3, 4) > before.utilities.view(3, 4)
    assert grown.all(dim=1).tolist() == [True, True, not unscored]
    assert int(sums[0]) == pytest.approx((2 if unscored else 3) * 16 * 4 * 2**0.5, abs=3)


def test_rows_of_other_partitions_are_refused():
    raw_ids = torch.tensor([5, 7])
    here = int(id_partitions(raw_ids)[0])
    table = CandidateTable(64, 4096, (here, here + 1), mapped_rows=2)
    sketch = CandidateSketch([table], [raw_ids])
    sketch.add(torch.tensor([[0, 0]]), torch.ones(1), 1.0)
    with pytest.raises(NativeError, match="another partition"):
        sketch.add(torch.tensor([[0, 1]]), torch.ones(1), 1.0)
    with pytest.raises(NativeError, match="is not of the units"):
        sketch.add(torch.tensor([[0, 2]]), torch.ones(1), 1.0)
    with pytest.raises(ValueError, match="raw id for each"):
        CandidateSketch([table])
