"""Sharded lookups against one process: every kind of placement, pooling and world size."""

import itertools

import pytest
import torch
from sharded_cases import Case, drawn_step, plan_of, run_cases

import megalith as mg
from megalith.sharding.plan import ExchangeConfig

FLAT = ("table_wise", "row_wise", "column_wise", "data_parallel")
IN_NODES = ("table_row", "table_column", "grid")


def tables_of(kind, padding):
    """Tables of odd sizes and every pooling that the kind allows; features a and b are looked up twice."""
    best = "sum" if kind in ("row_wise", "table_row", "grid") else "max"
    return [
        mg.TableSpec(name="t0", rows=11, dim=5, features=("a", "b"), init_scale=1.0, padding_index=padding),
        mg.TableSpec(name="t1", rows=7, dim=4, features=("b",), pooling="mean", init_scale=1.0),
        mg.TableSpec(
            name="t2",
            rows=13,
            dim=8,
            features=("c", "a"),
            pooling="mean",
            init_scale=1.0,
            padding_index=padding,
        ),
        mg.TableSpec(
            name="t3", rows=8, dim=3, features=("d",), pooling=best, init_scale=1.0, padding_index=padding
        ),
    ]


def cases(world_size, kinds, workers_per_node=None):
    generator = torch.Generator().manual_seed(world_size)
    uneven = [3 + rank for rank in range(world_size)]
    empty = [4 if rank == world_size - 1 else 0 for rank in range(world_size)]
    listed = []
    for kind, weighted in itertools.product(kinds, (False, True)):
        tables = tables_of(kind, 2 if weighted else None)
        steps = [
            drawn_step(tables, batches, generator, weighted=weighted, uniform=uniform, max_length=length)
            for batches, uniform, length in (
                (uneven, False, 3),
                (empty, False, 2),
                (uneven, True, 1),
                (uneven[::-1], True, 2),
                ([9] * world_size, False, 4),
                (uneven, False, 1),
            )
        ]
        exchange = ExchangeConfig(deduplicate=weighted)
        plan = plan_of(tables, [kind] * len(tables), world_size, workers_per_node, exchange)
        listed.append(Case(f"{kind} weighted={weighted}", tables, plan, steps, weight_gradients=weighted))
    return listed


@pytest.mark.parametrize(
    ("world_size", "workers_per_node"),
    [(1, 1), (2, 2), pytest.param(3, 2, marks=pytest.mark.slow), (4, 2)],
)
def test_sharded_lookups_and_steps_match_one_process(world_size, workers_per_node):
    kinds = FLAT if world_size == workers_per_node else FLAT + IN_NODES
    run_cases(world_size, cases(world_size, kinds, workers_per_node))


def test_codecs_stay_near_float32_and_take_their_bytes():
    tables = tables_of("row_wise", None)
    generator = torch.Generator().manual_seed(0)
    steps = [drawn_step(tables, [4, 3, 5], generator) for _ in range(4)]
    listed = []
    for codec, tolerance in (("fp16", 5e-3), ("bf16", 4e-2), ("int8", 4e-2)):
        exchange = ExchangeConfig(forward=codec, backward=codec)
        plan = plan_of(tables, ("table_wise", "row_wise", "grid", "column_wise"), 3, 2, exchange)
        listed.append(Case(codec, tables, plan, steps, codec_tolerance=tolerance))
    # Columns on each worker: two vectors of 5 and one of 3, one of 4, two of 8.
    sizes = {
        "fp32": [52, 16, 64],
        "fp16": [4 + 26, 4 + 8, 4 + 32],
        "bf16": [26, 8, 32],
        "int8": [13 + 12, 4 + 4, 16 + 8],
    }
    for codec, row_bytes in sizes.items():
        exchange = ExchangeConfig(forward=codec, backward=codec)
        plan = plan_of(tables, ["table_wise"] * 4, 3, 3, exchange)
        listed.append(
            Case(f"bytes of {codec}", tables, plan, steps, codec_tolerance=0.04, row_bytes=row_bytes)
        )
    run_cases(3, listed)


@pytest.mark.parametrize("separate", [(0, 1, 2), (2,)])
def test_ranks_that_share_no_memory_match_one_process(separate):
    run_cases(3, cases(3, ("table_wise", "row_wise", "data_parallel"), 3), separate)
