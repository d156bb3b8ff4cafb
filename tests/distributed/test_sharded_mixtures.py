"""Random mixtures of placements, rectangles cut anywhere included, against one process."""

import itertools

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sharded_cases import Case, drawn_step, placement, run_cases, split

import megalith as mg
from megalith.sharding.plan import ExchangeConfig, Placement, Shard, ShardingPlan

KINDS = ("table_wise", "row_wise", "column_wise", "data_parallel", "table_row", "table_column", "grid")
OPTIMIZERS = (
    mg.SGD(lr=0.1),
    mg.AdaGrad(lr=0.1),
    mg.RowWiseAdaGrad(lr=0.1),
    mg.Adam(lr=0.01),
    mg.RowWiseAdam(lr=0.01),
    mg.LAMB(lr=0.01),
    mg.LARS(lr=0.1),
)


@st.composite
def free_rectangles(draw, table, world_size):
    """Cut anywhere by rows and then each part by columns, or the other way round; workers as they come."""
    by_rows = draw(st.booleans())
    size, other = (table.rows, table.dim) if by_rows else (table.dim, table.rows)
    cuts = draw(st.lists(st.integers(1, size - 1), max_size=2)) if size > 1 else []
    shards = []
    for part in itertools.pairwise(sorted({0, size, *cuts})):
        for piece in split(other, draw(st.integers(1, 3))):
            worker = draw(st.integers(0, world_size - 1))
            rows, columns = (part, piece) if by_rows else (piece, part)
            shards.append(Shard(worker=worker, rows=rows, columns=columns))
    return Placement(table=table.name, kind="grid", shards=tuple(shards))


@st.composite
def mixtures(draw, world_size):
    features = ("a", "b", "c", "d")
    workers_per_node = draw(st.integers(1, world_size))
    tables, placements = [], []
    for number in range(draw(st.integers(1, 5))):
        pooling = draw(st.sampled_from(["sum", "mean", "max", "none"]))
        chosen = draw(st.lists(st.sampled_from(features), min_size=1, max_size=3, unique=True))
        table = mg.TableSpec(
            name=f"t{number}",
            rows=draw(st.integers(2, 12)),
            dim=draw(st.integers(1, 6)),
            features=tuple(chosen),
            pooling=pooling,
            padding_index=draw(st.sampled_from([None, None, 1])),
            init_scale=1.0,
        )
        whole_rows = ("table_wise", "column_wise", "data_parallel", "table_column")
        kind = draw(st.sampled_from(whole_rows if pooling == "max" else (*KINDS, "free")))
        tables.append(table)
        if kind == "free":
            placements.append(draw(free_rectangles(table, world_size)))
        else:
            first = draw(st.integers(0, world_size - 1))
            placements.append(placement(table, kind, world_size, workers_per_node, first))
    plan = ShardingPlan(
        world_size=world_size,
        workers_per_node=workers_per_node,
        placements=tuple(draw(st.permutations(placements))),
        exchange=ExchangeConfig(deduplicate=draw(st.booleans())),
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    batch = st.lists(st.integers(0, 6), min_size=world_size, max_size=world_size)
    weighted = draw(st.booleans())
    steps = [
        drawn_step(
            tables,
            draw(batch),
            generator,
            max_length=draw(st.integers(0, 3)),
            uniform=draw(st.booleans()),
            weighted=weighted,
        )
        for _ in range(3)
    ]
    optimizer = draw(st.sampled_from(OPTIMIZERS))
    return Case(repr(plan), tables, plan, steps, optimizer, weight_gradients=draw(st.booleans()))


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.slow), 4])
def test_random_mixtures_match_one_process(world_size):
    cases = []

    @settings(max_examples=16, deadline=None, phases=[Phase.generate], database=None)
    @given(mixtures(world_size))
    def draw(case):
        cases.append(case)

    draw()
    run_cases(world_size, cases)
