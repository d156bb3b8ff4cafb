"""Sharded lookups against one process: every kind of placement, pooling and world size."""

import itertools

import pytest
import torch
from sharded_worlds import Case, drawn_step, plan_of, run_cases

import megalith as mg

FLAT = ("table_wise", "row_wise", "column_wise", "data_parallel")
IN_NODES = ("table_row", "table_column", "grid")
POOLINGS = ("sum", "mean", "max")


def tables_of(pooling, **more):
    """Tables of odd sizes; feature b is looked up in two of them."""
    return [
        mg.TableSpec(name="t0", rows=11, dim=5, features=("a", "b"), pooling=pooling, init_scale=1.0, **more),
        mg.TableSpec(name="t1", rows=7, dim=4, features=("b",), pooling=pooling, init_scale=1.0),
        mg.TableSpec(name="t2", rows=13, dim=8, features=("c", "a"), pooling="sum", init_scale=1.0),
    ]


def cases(world_size, kinds, workers_per_node=None):
    generator = torch.Generator().manual_seed(world_size)
    uneven = [3 + rank for rank in range(world_size)]
    empty = [4 if rank == world_size - 1 else 0 for rank in range(world_size)]
    found = []
    for kind, pooling, weighted in itertools.product(kinds, POOLINGS, (False, True)):
        cuts_rows = kind in ("row_wise", "table_row", "grid")
        if pooling == "max" and (weighted or cuts_rows):
            continue
        tables = tables_of(pooling, padding_index=2 if weighted else None)
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
        plan = plan_of(tables, [kind] * len(tables), world_size, workers_per_node)
        found.append(Case(f"{kind} {pooling} weighted={weighted}", tables, plan, steps))
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_sharded_lookups_and_steps_match_one_process(world_size):
    run_cases(world_size, cases(world_size, FLAT))


@pytest.mark.parametrize(("world_size", "workers_per_node"), [(4, 2), (3, 2)])
def test_tables_inside_nodes_match_one_process(world_size, workers_per_node):
    run_cases(world_size, cases(world_size, IN_NODES, workers_per_node))
