"""`mg.ShardedEmbeddingCollection` as a user calls it: its example, and plans in every form it takes."""

import inspect
import re
import textwrap

import pytest
import torch
import torch.distributed as dist
from processes import on_ranks, torchrun
from sharded_cases import Case, drawn_step, plan_of, run_cases

import megalith as mg
from megalith.core.errors import ConfigError, PlanError
from megalith.sharding.row_wise_plan import row_wise_plan

TABLES = [
    mg.TableSpec(name="t0", rows=40, dim=4, features=("a",), init_scale=1.0),
    mg.TableSpec(name="t1", rows=30, dim=8, features=("b", "a"), pooling="mean", init_scale=1.0),
    mg.TableSpec(name="t2", rows=20, dim=3, features=("c",), pooling="max", init_scale=1.0),
    mg.TableSpec(name="t3", rows=1, dim=5, features=("d",), pooling="none", init_scale=1.0),
]


def test_the_example_runs_under_torchrun(tmp_path):
    text = inspect.getdoc(mg.ShardedEmbeddingCollection)
    # The longest indented part, from its first line to its last.
    example = max(re.findall(r"(?:^    .*\n|^\n)+", text, flags=re.MULTILINE), key=len)
    assert "torchrun --nproc-per-node 2 sharded.py" in text
    (tmp_path / "sharded.py").write_text(textwrap.dedent(example), encoding="utf-8")
    result = torchrun(tmp_path / "sharded.py")
    assert result.returncode == 0, result.stderr
    # Both write into one pipe: a line of one may stand inside a line of the other.
    assert sorted(re.findall(r"rank \d: \(2, 8\)", result.stdout)) == ["rank 0: (2, 8)", "rank 1: (2, 8)"]


def test_a_collection_without_a_plan_matches_one_process():
    generator = torch.Generator().manual_seed(0)
    steps = [drawn_step(TABLES, [4, 3], generator) for _ in range(3)]
    run_cases(2, [Case("row-wise", TABLES, row_wise_plan(TABLES, 2), steps, mg.RowWiseAdaGrad(lr=0.1))])


def vectors_by_plan(path):
    """What a rank looks up under the plan without a name, under one in memory and under one in a file."""
    plan = plan_of(TABLES, ("column_wise", "row_wise", "table_wise", "data_parallel"), 2)
    if dist.get_rank() == 0:
        plan.write(path)
    dist.barrier()
    collections = [mg.ShardedEmbeddingCollection(TABLES, given, seed=3) for given in (plan, path, str(path))]
    assert all(collection.plan == plan for collection in collections)
    without = mg.ShardedEmbeddingCollection(TABLES, seed=3)
    assert without.plan == row_wise_plan(TABLES, 2)
    step = drawn_step(TABLES, [5, 2], torch.Generator().manual_seed(1))
    values, offsets = step.of_rank(dist.get_rank())[:2]
    return [collection(values, offsets).tolist() for collection in (*collections, without)]


def test_a_plan_is_an_object_a_file_or_left_out(tmp_path):
    for first, *others in on_ranks(2, vectors_by_plan, tmp_path / "plan.json"):
        for other in others[:2]:
            assert other == first
        torch.testing.assert_close(torch.tensor(others[2]), torch.tensor(first))


def test_what_does_not_fit_is_one_sentence():
    with pytest.raises(PlanError, match="The plan is for 3 workers and there are 1; regenerate it"):
        mg.ShardedEmbeddingCollection(TABLES, row_wise_plan(TABLES, 3))
    with pytest.raises(ConfigError, match="table_optimizers names 'to', which is no table"):
        mg.ShardedEmbeddingCollection(TABLES, table_optimizers={"to": mg.SGD(lr=1.0)})
