"""Tiered tables on several ranks: the bits of the same ranks with all rows in memory, saved and resumed."""

import json

import pytest
from processes import on_ranks
from small_runs import losses, outcome, train, write_plan

import megalith as mg
from megalith.checkpoint.store import CheckpointStore
from megalith.core.errors import PlanError
from megalith.core.files import read_jsonl
from megalith.data.dataset import Dataset
from megalith.sharding.plan import read_plan
from megalith.train.checkpoints import load_learner
from megalith.train.learner.learner import Learner
from megalith.train.recipe import load_recipe

# The tables of the small recipe hold 350 kB with their state; each rank keeps a part.
TIGHT = ("memory={dram: 80KiB, engine: threads}", "data.eval_batch_size=50")


def tiered_plan(path, recipe, world_size, turn=0):
    """Table-wise and row-wise placements, all of them on disk."""
    plan = read_plan(write_plan(path, recipe, world_size, ("table_wise", "row_wise"), turn))
    placements = [
        placement.model_copy(update={"store": "tiered", "tier": "ssd"}) for placement in plan.placements
    ]
    plan.model_copy(update={"placements": tuple(placements)}).write(path)
    return path


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_with_tiered_tables_learn_the_bits_of_dense_ones(tiny_recipe, tmp_path, world_size):
    dense = write_plan(tmp_path / "dense.json", tiny_recipe, world_size, ("table_wise", "row_wise"))
    tiered = tiered_plan(tmp_path / "tiered.json", tiny_recipe, world_size)
    small = "data.eval_batch_size=50"
    expected = train(tiny_recipe, tmp_path / "one", world_size, f"sharding.plan={dense}", small)
    found = train(tiny_recipe, tmp_path / "two", world_size, f"sharding.plan={tiered}", *TIGHT)
    assert outcome(found) == outcome(expected)
    tiers = [line["tiers"] for line in read_jsonl(found.metrics) if line["kind"] == "train"]
    assert sum(entry["reads"] for entry in tiers) > 1000


def loaded(run, recipe, *overrides):
    """All rows of a run's last checkpoint, loaded in one process under the recipe with these overrides."""
    settings = load_recipe(str(recipe), overrides)
    learner = Learner(settings.learner_config(run.folder / "loaded"), Dataset(settings.data.path).schema)
    store = CheckpointStore(run.checkpoints)
    load_learner(store, store.latest(), learner)
    rows = {}
    for name, state in learner.state_dict()["tables"].items():
        for block in state.blocks(1 << 20):
            for row, one in enumerate(block.ids):
                rows[name, int(one)] = [part[row].tolist() for part in block.parts.values()]
    return rows


def test_what_ranks_saved_loads_in_one_process_into_either_store(tiny_recipe, tmp_path):
    dense = write_plan(tmp_path / "dense.json", tiny_recipe, 2, ("table_wise", "row_wise"))
    tiered = tiered_plan(tmp_path / "tiered.json", tiny_recipe, 2)
    runs = {
        "dense": train(tiny_recipe, tmp_path / "one", 2, f"sharding.plan={dense}"),
        "tiered": train(tiny_recipe, tmp_path / "two", 2, f"sharding.plan={tiered}", *TIGHT),
    }
    expected = loaded(runs["dense"], tiny_recipe)
    assert loaded(runs["tiered"], tiny_recipe) == expected
    for run in runs.values():
        trained = loaded(run, tiny_recipe, *TIGHT)
        # A tiered table leaves out rows that are as they began.
        assert 0 < len(trained) < len(expected)
        assert all(expected[key] == row for key, row in trained.items())


def test_the_automatic_plan_keeps_tables_on_disk_where_the_recipe_gives_memory(tiny_recipe, tmp_path):
    run = train(tiny_recipe, tmp_path / "run", 2, *TIGHT)
    plan = json.loads(run.plan.read_text())
    stores = {placement["store"] for placement in plan["placements"]}
    assert stores == {"dense", "tiered"}
    assert plan["runnable"]["value"]
    expected = train(tiny_recipe, tmp_path / "dense", 2, f"sharding.plan={run.plan}", *TIGHT)
    assert losses(run) == losses(expected)


def make_column_sharded(folder):
    table = mg.TableSpec(name="t", rows=10, dim=8, features=("f",), store="tiered")
    memory = mg.TieredMemory(dram="64KiB", path=folder)
    halves = [{"worker": one, "rows": (0, 10), "columns": (4 * one, 4 * one + 4)} for one in range(2)]
    plan = mg.ShardingPlan(
        world_size=2,
        workers_per_node=2,
        placements=[{"table": "t", "kind": "column_wise", "shards": halves}],
    )
    try:
        mg.ShardedEmbeddingCollection([table], plan, memory=memory)
    except PlanError as error:
        return str(error)
    return "no error"


def test_tiered_tables_cut_by_columns_are_refused(tmp_path):
    for said in on_ranks(2, make_column_sharded, tmp_path):
        assert "cut it by rows" in said
