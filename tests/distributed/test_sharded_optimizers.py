"""Every optimizer over every kind of placement: fifty steps on many ranks end where one process ends."""

import pytest
import torch
from sharded_cases import Case, drawn_step, plan_of, run_cases

import megalith as mg

OPTIMIZERS = [
    mg.SGD(lr=0.1, weight_decay=0.01),
    mg.AdaGrad(lr=0.1),
    mg.RowWiseAdaGrad(lr=0.1, max_gradient=0.5),
    mg.Adam(lr=0.01, weight_decay=0.01),
    mg.RowWiseAdam(lr=0.01),
    mg.LAMB(lr=0.01, weight_decay=0.01),
    mg.LARS(lr=0.1),
]
KINDS = ("table_wise", "row_wise", "column_wise", "data_parallel", "table_row", "table_column", "grid")
NUM_STEPS = 50


def case(optimizer, world_size, workers_per_node):
    """A table of each kind; steps of several shapes over and over."""
    tables = [
        mg.TableSpec(
            name=kind,
            rows=9 + number,
            dim=4 + number % 3,
            features=(f"f{number % 4}",),
            pooling=("sum", "mean")[number % 2],
            init_scale=1.0,
        )
        for number, kind in enumerate(KINDS)
    ]
    generator = torch.Generator().manual_seed(0)
    batches = [4 + rank for rank in range(world_size)]
    shapes = [(batches, True), (batches[::-1], False), ([5] * world_size, True)]
    steps = [
        drawn_step(tables, *shapes[number % 3][:1], generator, uniform=shapes[number % 3][1], max_length=2)
        for number in range(NUM_STEPS)
    ]
    plan = plan_of(tables, KINDS, world_size, workers_per_node)
    return Case(optimizer.kind, tables, plan, steps, optimizer)


@pytest.mark.parametrize(
    ("world_size", "workers_per_node"),
    [(3, 2), *(pytest.param(*world, marks=pytest.mark.slow) for world in ((2, 1), (4, 2)))],
)
def test_fifty_steps_of_every_optimizer_match_one_process(world_size, workers_per_node):
    run_cases(world_size, [case(optimizer, world_size, workers_per_node) for optimizer in OPTIMIZERS])
