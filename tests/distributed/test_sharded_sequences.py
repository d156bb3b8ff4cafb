"""Tables that do not pool, on several workers: a vector for every id, in the order of the rank that asked."""

import itertools

import pytest
import torch
from processes import on_ranks
from sharded_cases import Case, drawn_step, plan_of, run_cases

import megalith as mg
from megalith.checkpoint.store import CheckpointStore
from megalith.comm.ranks import Ranks
from megalith.sharding.plan import ExchangeConfig
from megalith.sharding.runtime.collection import ShardedEmbeddingCollection

KINDS = ("table_wise", "row_wise", "column_wise", "data_parallel", "table_row", "table_column", "grid")


def tables_of(padding=None):
    """Sequences beside pooled tables, of shared features and shared tables."""
    return [
        mg.TableSpec(
            name="s0",
            rows=11,
            dim=5,
            features=("a", "b"),
            pooling="none",
            init_scale=1.0,
            padding_index=padding,
        ),
        mg.TableSpec(name="p0", rows=7, dim=4, features=("b", "c"), pooling="mean", init_scale=1.0),
        mg.TableSpec(name="s1", rows=9, dim=3, features=("b",), pooling="none", init_scale=1.0),
        mg.TableSpec(name="s2", rows=13, dim=6, features=("d",), pooling="none", init_scale=1.0),
    ]


def steps_of(tables, world_size, weighted=False):
    generator = torch.Generator().manual_seed(world_size)
    uneven = [3 + rank for rank in range(world_size)]
    empty = [4 if rank == world_size - 1 else 0 for rank in range(world_size)]
    return [
        drawn_step(tables, batches, generator, weighted=weighted, uniform=uniform, max_length=length)
        for batches, uniform, length in (
            (uneven, False, 3),
            (empty, False, 2),
            (uneven[::-1], True, 2),
            ([0] * world_size, False, 2),
            ([9] * world_size, False, 4),
        )
    ]


def cases(world_size, workers_per_node):
    listed = []
    optimizers = itertools.cycle((mg.RowWiseAdaGrad(lr=0.1), mg.Adam(lr=0.01), mg.LAMB(lr=0.01)))
    for kind, weighted in itertools.product(KINDS, (False, True)):
        tables = tables_of(2 if weighted else None)
        plan = plan_of(
            tables, [kind] * len(tables), world_size, workers_per_node, ExchangeConfig(deduplicate=weighted)
        )
        steps = steps_of(tables, world_size, weighted)
        name = f"{kind} weighted={weighted}"
        options = {"weight_gradients": weighted, "ahead": weighted}
        listed.append(Case(name, tables, plan, steps, next(optimizers), **options))
    # Nothing is pooled, and on four ranks two hold no table.
    tables = tables_of()[2:]
    plan = plan_of(tables, ["table_wise"] * 2, world_size, workers_per_node)
    listed.append(Case("few tables", tables, plan, steps_of(tables, world_size)))
    return listed


@pytest.mark.parametrize(
    ("world_size", "workers_per_node"),
    [(1, 1), (2, 1), pytest.param(3, 2, marks=pytest.mark.slow), (4, 2)],
)
def test_sequences_of_many_ranks_match_one_process(world_size, workers_per_node):
    run_cases(world_size, cases(world_size, workers_per_node))


def test_every_optimizer_updates_sequences_as_in_one_process():
    """A table of each kind, and steps with the ids of the next one on their way."""
    optimizers = [
        mg.SGD(lr=0.1, weight_decay=0.01),
        mg.AdaGrad(lr=0.1),
        mg.RowWiseAdaGrad(lr=0.1, max_gradient=0.5),
        mg.Adam(lr=0.01, weight_decay=0.01),
        mg.RowWiseAdam(lr=0.01),
        mg.LAMB(lr=0.01, weight_decay=0.01),
        mg.LARS(lr=0.1),
    ]
    tables = [
        mg.TableSpec(
            name=kind,
            rows=9 + number,
            dim=4 + number % 3,
            features=(f"f{number % 4}",),
            pooling="none",
            init_scale=1.0,
        )
        for number, kind in enumerate(KINDS)
    ]
    generator = torch.Generator().manual_seed(0)
    steps = [drawn_step(tables, [5, 4, 6], generator, max_length=3) for _ in range(12)]
    plan = plan_of(tables, KINDS, 3, 2)
    run_cases(
        3, [Case(optimizer.kind, tables, plan, steps, optimizer, ahead=True) for optimizer in optimizers]
    )


def test_outputs_that_no_rank_uses_leave_their_tables_alone():
    tables = tables_of()
    outputs = ["pooled", ("s0", "a"), ("s0", "b"), ("s1", "b"), ("s2", "d")]
    listed = []
    for kind, optimizer in (
        ("row_wise", mg.Adam()),
        ("column_wise", mg.LAMB()),
        ("data_parallel", mg.Adam()),
    ):
        steps = steps_of(tables, 2, weighted=True)
        for number, step in enumerate(steps):
            # One that neither uses, and one that only the first does.
            nobody, second = outputs[number], outputs[number - 1]
            step.unused = [{nobody}, {nobody, second}]
        plan = plan_of(tables, [kind] * len(tables), 2)
        listed.append(Case(kind, tables, plan, steps, optimizer, weight_gradients=True))
    run_cases(2, listed)


def test_codecs_keep_sequences_near_float32():
    tables = tables_of()
    listed = []
    for codec, tolerance in (("fp16", 5e-3), ("bf16", 4e-2), ("int8", 4e-2)):
        exchange = ExchangeConfig(forward=codec, backward=codec)
        plan = plan_of(tables, ("row_wise", "table_wise", "column_wise", "grid"), 2, 1, exchange)
        listed.append(Case(codec, tables, plan, steps_of(tables, 2), codec_tolerance=tolerance))
    run_cases(2, listed)


def test_ranks_that_share_no_memory_match_one_process(monkeypatch):
    monkeypatch.setenv("MEGALITH_SHARED_MEMORY", "0")
    run_cases(2, cases(2, 1)[2:8])


def looked_up(collection, ranks):
    """The sequences of every rank's part of a batch; the first rank has it all."""
    batches = [6] + [0] * (ranks.world_size - 1)
    step = drawn_step(collection.tables, batches, torch.Generator().manual_seed(9))
    with torch.no_grad():
        sequences = collection.lookup(*step.of_rank(ranks.rank)[:2]).sequences
    return {name: vectors.tolist() for name, vectors in sequences.items()}


def save(folder, kinds):
    ranks, tables = Ranks.all(), tables_of()
    collection = ShardedEmbeddingCollection(tables, plan_of(tables, kinds, 3), mg.LAMB(lr=0.1), seed=3)
    for step in steps_of(tables, 3):
        lookup = collection.lookup(*step.of_rank(ranks.rank)[:2])
        outputs = {"pooled": lookup.pooled, **lookup.sequences}
        torch.autograd.backward(*zip(*step.gradients(outputs, ranks.rank), strict=True))
    CheckpointStore(folder, ranks=ranks.with_own_group()).save(1, collection.table_states(), {})
    return looked_up(collection, ranks)


def load(folder, kinds):
    ranks, tables = Ranks.all(), tables_of()
    plan = plan_of(tables, kinds, ranks.world_size)
    collection = ShardedEmbeddingCollection(tables, plan, mg.LAMB(lr=0.1), seed=4)
    CheckpointStore(folder, ranks=ranks.with_own_group()).load(1, collection.table_states())
    return looked_up(collection, ranks)


def test_sequences_are_saved_under_one_plan_and_loaded_under_another(tmp_path):
    saved = on_ranks(3, save, tmp_path, ("column_wise", "row_wise", "row_wise", "data_parallel"))[0]
    loaded = on_ranks(2, load, tmp_path, ("row_wise", "table_wise", "data_parallel", "column_wise"))[0]
    assert saved == loaded
    assert all(saved.values())
