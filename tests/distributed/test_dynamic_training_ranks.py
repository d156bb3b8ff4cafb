"""`train` with dynamic tables on several ranks: the same ids come and go as in one process; killed or not."""

import json
import re
import shutil

import pytest
from processes import on_ranks, torchrun
from small_runs import losses, make_recipe, outcome, refusal, train
from typer.testing import CliRunner

from megalith.cli.app import app
from megalith.core.files import read_jsonl
from megalith.data.dataset import Dataset
from megalith.sharding.plan import read_plan
from megalith.sharding.row_wise_plan import row_wise_plan
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer

STORE = {
    "kind": "dynamic",
    "bound": 150,
    "admission": {"kind": "count", "count": 2, "counter_bytes": 8192},
    "eviction": {"kind": "score", "half_life": 6},
    "expiry": {"batches": 5, "interval": 3},
}


def settings(**changed):
    stores = {"C2": {"kind": "dense"}, "*": {**STORE, **changed}}
    return (
        "embeddings.stores=" + json.dumps(stores),
        "embeddings.log_evicted=true",
        "train.keep_checkpoints=20",
        "train.background_checkpoints=true",
    )


SHARED, ZEROS = settings(), settings(unknown="zeros")


def row_wise(path, recipe, world_size, *overrides):
    """A plan file that cuts all tables by rows, dynamic ones at partitions."""
    given = load_recipe(str(recipe), overrides)
    tables = given.model.tables(Dataset(given.data.path).schema.categorical)
    row_wise_plan(given.embeddings.with_stores(tables), world_size).write(path)
    return path


def came_and_went(run):
    """Of each report; the map's memory depends on how it is cut."""
    lines = [line["dynamic"] for line in read_jsonl(run.metrics) if line["kind"] == "train"]
    return [{key: value for key, value in line.items() if key != "map_bytes"} for line in lines]


def left(run):
    """The log of ids that lost their row, by step and table, in any order."""
    lines = [(line["step"], line["table"], line["ids"], line["reasons"]) for line in read_jsonl(run.evicted)]
    return sorted((step, table, *each) for step, table, *both in lines for each in zip(*both, strict=True))


@pytest.fixture(scope="module")
def pair(tiny_data, tmp_path_factory):
    """A run of two ranks, all of whose tables are cut, with all its checkpoints."""
    folder = tmp_path_factory.mktemp("pair")
    recipe = make_recipe(folder / "tiny.yaml", tiny_data)
    plan = row_wise(folder / "plan.json", recipe, 2, *SHARED)
    return train(recipe, folder / "run", 2, *SHARED, f"sharding.plan={plan}")


def test_the_ids_of_one_process_come_and_go_on_ranks(pair, tiny_recipe, tmp_path):
    alone = train(tiny_recipe, tmp_path / "alone", 1, *SHARED)
    entries = came_and_went(pair)
    assert entries == came_and_went(alone)
    assert all(entry["bound"] == 25 * 150 for entry in entries)
    assert (
        min(sum(entry[key] for entry in entries) for key in ("evicted", "expired_by_batches", "refused"))
        > 100
    )
    assert left(pair) == left(alone)
    # Gradients of the dense part and of shared rows are summed in another order.
    assert losses(pair) == pytest.approx(losses(alone), rel=1e-4)
    scored = [outcome(run)[1]["log_loss"] for run in (pair, alone)]
    assert scored[0] == pytest.approx(scored[1], rel=1e-4)


def test_ranks_learn_the_same_bits_under_any_plan_and_depth(tiny_recipe, tmp_path):
    """Of ids without a row that read zeros: sums of shared rows depend on who adds up first."""
    plan = row_wise(tmp_path / "plan.json", tiny_recipe, 2, *ZEROS)
    cut = train(tiny_recipe, tmp_path / "cut", 2, *ZEROS, f"sharding.plan={plan}", "train.pipeline=0")
    planned = train(tiny_recipe, tmp_path / "planned", 2, *ZEROS)
    placements = read_plan(planned.plan).placements
    assert {placement.store for placement in placements} == {"dense", "dynamic"}
    assert outcome(planned) == outcome(cut)
    assert came_and_went(planned) == came_and_went(cut)
    assert left(planned) == left(cut)


@pytest.mark.slow
def test_rows_on_disk_underneath_and_a_bound_in_bytes_give_the_same_run(tiny_recipe, tmp_path):
    sized = {"bound": None, "bound_bytes": "64KiB", "unknown": "zeros"}
    dense, tiered = settings(**sized), settings(**sized, over={"kind": "tiered"})
    short = "train.epochs=null", "train.steps=14"
    reference = train(tiny_recipe, tmp_path / "dense", 2, *dense, *short)
    run = train(tiny_recipe, tmp_path / "tiered", 2, *tiered, *short, "memory={dram: 80KiB}")
    assert outcome(run) == outcome(reference)
    assert came_and_went(run) == came_and_went(reference)
    assert all(64 * 25 < entry["bound"] < 1000 * 25 for entry in came_and_went(run))
    reads = [line["tiers"]["new_rows"] for line in read_jsonl(run.metrics) if line["kind"] == "train"]
    assert sum(reads) > 100


def test_ranks_evaluate_what_one_process_does(pair, tmp_path):
    folder = shutil.copytree(pair.folder, tmp_path / "run")
    alone = CliRunner().invoke(app, ["eval", str(folder), "--json"])
    assert alone.exit_code == 0, alone.output
    ranks = torchrun("-m", "megalith", "eval", folder, "--json")
    assert ranks.returncode == 0, ranks.stderr
    one, two = json.loads(alone.output), json.loads(ranks.stdout)
    assert two["log_loss"] == pytest.approx(one["log_loss"], rel=1e-9)
    assert two["samples"] == one["samples"]


def resume(folder, step, *overrides):
    trainer = Trainer(load_recipe(str(folder), overrides), RunFolder(folder))
    assert trainer.resume(step) == step
    trainer.train()


# A rank is lost within a step, some steps after a checkpoint.
SABOTAGE = """
import os, signal
from megalith.cli import main
from megalith.train.learner.learner import Learner

take, victim = Learner.step, os.environ["VICTIM"]

def step(learner, *given):
    if learner.embeddings.num_steps == 13 and os.environ["RANK"] == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return take(learner, *given)

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    Learner.step = step
main()
"""


@pytest.mark.parametrize("victim", ["1", pytest.param("0", marks=pytest.mark.slow)])
def test_killed_ranks_under_torchrun_end_where_undisturbed_ones_do(
    pair, tiny_recipe, tmp_path, monkeypatch, victim
):
    plan = row_wise(tmp_path / "plan.json", tiny_recipe, 2, *SHARED)
    script = tmp_path / "sabotage.py"
    script.write_text(SABOTAGE)
    monkeypatch.setenv("VICTIM", victim)
    run = RunFolder(tmp_path / "run")
    arguments = "train", tiny_recipe, *SHARED, f"sharding.plan={plan}", "--out", run.folder, "--json"
    result = torchrun("--max-restarts", "1", script, *arguments)
    assert result.returncode == 0, result.stderr
    # The checkpoint of step 10 is written in the background and may not have been done.
    assert re.search(r"from step (5|10)\.", result.stderr)
    assert outcome(run) == outcome(pair)
    assert left(run) == left(pair)


@pytest.mark.parametrize("others", [(1,), pytest.param((4, 1, 3), marks=pytest.mark.slow)])
def test_other_numbers_of_ranks_go_on_with_the_same_ids(pair, tmp_path, others):
    folder = shutil.copytree(pair.folder, tmp_path / "run")
    for step, ranks in zip((10, 15, 20), others, strict=False):
        if ranks == 1:
            resume(folder, step, "sharding.plan=auto")
        else:
            on_ranks(ranks, resume, folder, step, "sharding.plan=auto")
    run = RunFolder(folder)
    assert left(run) == left(pair)
    assert losses(run) == pytest.approx(losses(pair), rel=1e-4)


def test_a_run_goes_on_with_another_bound_on_other_ranks(pair, tmp_path):
    changed = settings(bound=90)[:1]
    alone = shutil.copytree(pair.folder, tmp_path / "alone")
    resume(alone, 10, "sharding.plan=auto", *changed)
    ranks = shutil.copytree(pair.folder, tmp_path / "ranks")
    on_ranks(3, resume, ranks, 10, "sharding.plan=auto", *changed)
    assert left(RunFolder(ranks)) == left(RunFolder(alone)) != left(pair)
    assert came_and_went(RunFolder(ranks))[-1]["bound"] == 25 * 90


def test_a_plan_that_cuts_dynamic_tables_anywhere_is_refused(tiny_recipe, tmp_path):
    plan = row_wise(tmp_path / "plan.json", tiny_recipe, 2, *SHARED)
    content = json.loads(plan.read_text())
    first, second = content["placements"][0]["shards"]
    first["rows"][1] = second["rows"][0] = second["rows"][0] + 1
    plan.write_text(json.dumps(content))
    for said in on_ranks(2, refusal, tiny_recipe, [*SHARED, f"sharding.plan={plan}"], tmp_path / "run"):
        assert "table 'C1' cuts a dynamic one otherwise than by rows where one of the 64 partitions" in said


@pytest.mark.parametrize("over", ["dense", "tiered"])
def test_the_command_plans_dynamic_tables(tiny_recipe, tmp_path, over):
    store = {**STORE, "bound": 100_000, "over": {"kind": over}}
    text = tiny_recipe.read_text().replace(
        "embeddings: {", f'embeddings: {{stores: {{"*": {json.dumps(store)}}}, '
    )
    memory = "memory: {dram: 4MiB}\n" if over == "tiered" else ""
    tiny_recipe.write_text(text + memory)
    out = tmp_path / "plan.json"
    arguments = [str(tiny_recipe), "--world-size", "4", "--hardware", "local", "--out", str(out), "--dry-run"]
    done = CliRunner().invoke(app, ["plan", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    plan = read_plan(out)
    assert plan.runnable.value
    assert {placement.store for placement in plan.placements} == {"dynamic"}
    assert {placement.kind for placement in plan.placements} <= {"table_wise", "row_wise"}
    assert plan.estimate is not None
    held = sum(sum(worker.memory_bytes.values()) for worker in plan.estimate.workers)
    cached = sum(placement.cache_bytes for placement in plan.placements)
    # Rows of 4 columns and a number of state; 23 bytes of map and what is counted of ids without a row.
    assert held - cached == pytest.approx(26 * 100_000 * (20 + 23), rel=0.1)
    assert (cached > 0) == (over == "tiered")
