"""Random pools of rows that keep a prefix of their chunks, with candidates beside them."""

from dataclasses import dataclass

import torch
from chunked_worlds import PoolWorld, drawn_ids, shapes
from hypothesis import strategies as st

from megalith.ops.chunks.blocks import ChunkedBlock
from megalith.ops.chunks.ranking import Ranking, threshold
from megalith.ops.chunks.ranking_sums import RankingSettings
from megalith.ops.chunks.ranking_twin import RankingTwin
from megalith.ops.chunks.sketch import CandidateSketch, CandidateTable
from megalith.ops.chunks.sketch_twin import CandidateSketchTwin

SETTINGS = (
    RankingSettings(),
    RankingSettings(floor=1.0, columns=1.0, power=1.0, hysteresis=1.0),
    RankingSettings(floor=100.0, power=0.0, hysteresis=1.0),
)
"""The last has many ties."""


@dataclass
class RankedWorld:
    """Tables of one shape, their candidates and how chunks are scored."""

    pool: PoolWorld
    candidates: list[CandidateTable]
    settings: RankingSettings
    exempt: tuple[bool, ...]
    fades: tuple[float, ...] | None
    few_values: bool
    """Whether utilities and weights are few numbers, so that many scores are equal."""

    def rankings(self):
        """(pool, sketch, ranking), native and as twins."""
        pool, twin = self.pool.pools()
        sketches = CandidateSketch(self.candidates), CandidateSketchTwin(self.candidates)
        given = self.settings, self.exempt
        return (
            (pool, sketches[0], Ranking(pool, sketches[0], *given)),
            (twin, sketches[1], RankingTwin(twin, sketches[1], *given)),
        )


@st.composite
def ranked_worlds(draw, shape=None):
    rows = tuple(draw(st.lists(st.sampled_from([1, 7, 100, 3000, 200_000]), min_size=1, max_size=3)))
    pool = PoolWorld(shape or draw(shapes()), rows, (-1,) * len(rows))
    candidates = [CandidateTable(count, draw(st.sampled_from([0, 10_000]))) for count in rows]
    exempt = tuple(draw(st.booleans()) and draw(st.booleans()) for _ in rows)
    steps = st.sampled_from([0.0, 0.07, 0.5, 0.8, 1.0])
    fades = draw(st.none() | st.tuples(*(steps for _ in rows)))
    return RankedWorld(pool, candidates, draw(st.sampled_from(SETTINGS)), exempt, fades, draw(st.booleans()))


def drawn_numbers(world, count, generator):
    """From 0 on; few of them where many should be equal."""
    if world.few_values:
        return torch.randint(0, 3, (count,), generator=generator).float()
    powers = torch.randint(-8, 8, (count,), generator=generator)
    spread = torch.rand(count, generator=generator) * powers.exp2()
    return torch.where(torch.rand(count, generator=generator) < 0.1, 0.0, spread)


def prefix_block(world, ids, live, generator):
    """Rows with their first chunks, one number of chunks for each."""
    shape = world.pool.shape
    masks = torch.tensor([shape.first_chunks(count) for count in live.tolist()], dtype=torch.int64)
    chunks = int(live.sum())
    numbers = {"none": 0, "row": len(ids), "full": chunks * shape.width}
    growth, utilities = (drawn_numbers(world, count, generator).bfloat16() for count in (len(ids), chunks))
    weights = (drawn_numbers(world, chunks * shape.width, generator) * 0.1).to(shape.dtype)
    kinds = shape.first_state, shape.second_state
    states = (torch.rand(numbers[kind], generator=generator) for kind in kinds)
    return ChunkedBlock(ids, masks, growth, utilities, weights, *states)


def fill(world, places, generator, most=40):
    """The same rows and candidates in every (pool, sketch, ...)."""
    shape = world.pool.shape
    for table, rows in enumerate(world.pool.rows):
        count = int(torch.randint(0, most, (), generator=generator))
        ids = drawn_ids(rows, count, generator).unique()
        live = torch.randint(1, shape.chunks + 1, (len(ids),), generator=generator)
        block = prefix_block(world, ids, live, generator)
        absent = drawn_ids(rows, count, generator).unique()
        # Some of the candidates have a record by now.
        absent = absent[~torch.isin(absent, ids) | (torch.rand(len(absent), generator=generator) < 0.1)]
        listed = torch.stack([torch.full_like(absent, table), absent], dim=1)
        norms = drawn_numbers(world, len(absent), generator)
        for pool, sketch, _ in places:
            pool.load(table, block)
            sketch.add(listed, norms, 1.0)


def ranked_bytes(pool, exempt):
    """What rows of tables that compete count as."""
    row_bytes, total = pool.statistics().row_bytes, 0
    for table, is_exempt in enumerate(exempt):
        for block in pool.blocks(table) if not is_exempt else ():
            live = (block.masks[:, None] >> torch.arange(pool.shape.chunks) & 1).sum(dim=1)
            total += sum(row_bytes[count] for count in live.tolist())
    return total


def decided(rankings, budget, fades=None):
    """Scales and the threshold of several rankings together, as ranks decide."""
    norms = rankings[0].means(sum(one.sums() for one in rankings))
    scales = rankings[0].means(sum(one.score(norms, fades) for one in rankings))
    key = threshold(
        lambda level, prefix: sum(one.histogram(scales, level, prefix) for one in rankings), budget
    )
    return scales, key
