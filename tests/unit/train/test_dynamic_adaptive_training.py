"""Runs of dynamic tables over chunks: exact, at every depth, resumed or killed; and the commands for ids."""

import json
import shutil
import signal

import pyarrow.parquet as pq
import pytest
from small_recipes import outcome, trained, write_recipe
from typer.testing import CliRunner

from forked import Forked, signalled_at_call
from megalith.checkpoint.store import CheckpointStore
from megalith.cli.app import app
from megalith.core.files import read_jsonl
from megalith.embeddings.stores.dynamic.chunks import DynamicChunks
from megalith.sharding.plan import read_plan
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer

STORE = {
    "kind": "dynamic",
    "bound": 200,
    "admission": {"kind": "count", "count": 2, "counter_bytes": 8192},
    "eviction": {"kind": "score", "half_life": 20},
    "expiry": {"batches": 8, "interval": 5},
}
SHRUNK = "adaptive={ratio: 4, interval: 4, warm_up: 4, chunk: 4, end: 0.4, gamma: 0.95}"


def stores(over="adaptive", **changed):
    return "embeddings.stores=" + json.dumps({"*": {**STORE, "over": {"kind": over}, **changed}})


LOOP = (
    *("model.dim=16", "train.epochs=1", "train.eval_every=30"),
    *("embeddings.log_evicted=true", "train.keep_checkpoints=20"),
)
PRUNED = (stores(), SHRUNK, *LOOP)


def entries(run, key):
    return [line[key] for line in read_jsonl(run.metrics) if line["kind"] == "train"]


@pytest.fixture(scope="module")
def pruned(small_data, tmp_path_factory):
    """A run whose ids come and go and whose chunks are pruned and grow, with all its checkpoints."""
    folder = tmp_path_factory.mktemp("pruned")
    recipe = write_recipe(folder / "small.yaml", small_data)
    return trained(recipe, folder / "run", *PRUNED, "train.pipeline=0")


def test_both_reports_are_there_and_the_budget_holds(pruned):
    chunks, ids = entries(pruned, "adaptive"), entries(pruned, "dynamic")
    assert sum(entry["pruned"] for entry in chunks) > 500
    assert sum(entry["grown"] for entry in chunks) > 500
    assert sum(entry["evicted"] for entry in ids) > 1000
    assert sum(entry["expired_by_batches"] for entry in ids) > 100
    assert all(entry["ids"] <= entry["bound"] == 26 * 200 for entry in ids)
    assert chunks[-1]["total_bytes"] <= chunks[-1]["budget_bytes"]


def test_with_room_for_all_chunks_losses_are_those_over_dense_rows(recipe, tmp_path):
    runs = [
        trained(recipe, tmp_path / "chunks", stores(), "adaptive={ratio: 1, interval: 5}", *LOOP),
        trained(recipe, tmp_path / "dense", stores("dense"), *LOOP),
    ]
    losses = [[line["loss"] for line in read_jsonl(run.metrics) if line["kind"] == "train"] for run in runs]
    assert losses[0] == losses[1]
    assert read_jsonl(runs[0].evicted) == read_jsonl(runs[1].evicted)
    scores = [json.loads(run.evaluation("valid").read_text()) for run in runs]
    assert scores[0]["log_loss"] == scores[1]["log_loss"]


@pytest.mark.parametrize("depth", [*(pytest.param(depth, marks=pytest.mark.slow) for depth in (1, 2)), 3])
def test_every_depth_of_the_pipeline_gives_the_same_run(recipe, tmp_path, pruned, depth):
    run = trained(recipe, tmp_path / "run", *PRUNED, f"train.pipeline={depth}")
    assert outcome(run) == outcome(pruned)
    assert read_jsonl(run.evicted) == read_jsonl(pruned.evicted)


@pytest.mark.parametrize(("step", "background"), [(10, False), (20, True)])
def test_a_resumed_run_is_an_uninterrupted_one(pruned, tmp_path, step, background):
    folder = shutil.copytree(pruned.folder, tmp_path / "run")
    run = RunFolder(folder)
    trainer = Trainer(load_recipe(str(folder), [f"train.background_checkpoints={background}"]), run)
    assert trainer.resume(step) == step
    trainer.train()
    assert outcome(run) == outcome(pruned)
    assert read_jsonl(run.evicted) == read_jsonl(pruned.evicted)


def train_until_ids_leave(recipe, folder, overrides, times):
    trainer = Trainer(load_recipe(recipe, overrides), folder)
    trainer.create()
    signalled_at_call(signal.SIGKILL, times, "MainThread", DynamicChunks.leave)
    trainer.train()


def test_a_run_that_was_killed_while_ids_left_goes_on_to_the_same_end(recipe, tmp_path, pruned):
    """Once a batch and once a look at what has expired: some steps after the checkpoint of step 10."""
    folder = tmp_path / "killed"
    overrides = ["train.background_checkpoints=false", *PRUNED]
    with Forked(train_until_ids_leave, str(recipe), folder, overrides, 18) as process:
        assert process.wait() == -signal.SIGKILL
    assert CheckpointStore(RunFolder(folder).checkpoints).latest() == 10
    run = trained(recipe, folder, *PRUNED)
    assert outcome(run) == outcome(pruned)
    assert read_jsonl(run.evicted) == read_jsonl(pruned.evicted)


def test_a_run_goes_on_with_another_bound_and_over_dense_rows(pruned, tmp_path):
    for name, changed in (("bound", stores(bound=90)), ("dense", stores("dense"))):
        folder = shutil.copytree(pruned.folder, tmp_path / name)
        trainer = Trainer(load_recipe(str(folder), [changed]), RunFolder(folder))
        assert trainer.resume(20) == 20
        trainer.train()
        assert entries(RunFolder(folder), "dynamic")[-1]["bound"] == 26 * (90 if name == "bound" else 200)


def test_the_commands_train_export_import_and_count(recipe, tmp_path):
    run, out = tmp_path / "run", tmp_path / "C3.parquet"
    given = [stores(), SHRUNK, "model.dim=16", "train.epochs=null", "train.steps=16"]

    def call(*words):
        done = CliRunner().invoke(app, [*map(str, words)])
        assert done.exit_code == 0, done.output
        return done

    done = call("train", recipe, *given, "--out", run)
    # 26 tables of 200 rows of 16 columns and a number of state.
    assert "dense ones would take 345.3 KiB" in done.output.replace("\n", " ")
    exported = json.loads(call("ids", "export", run, "C3", "--state", "--out", out, "--json").output)
    counts = json.loads(call("ids", "stats", run, "--json").output)
    assert exported["ids"] == counts["tables"]["C3"]["ids"] == pq.read_table(out).num_rows > 30
    vectors = pq.read_table(out)["vector"].to_pylist()
    assert {len(vector) for vector in vectors} == {16}
    assert any(vector[15] == 0 for vector in vectors)
    again = json.loads(
        call("ids", "import", recipe, "C3", out, *given, "--out", tmp_path / "warm", "--json").output
    )
    assert 0 < again["kept"] <= again["ids"] == exported["ids"]
    call("train", tmp_path / "warm")
    call("eval", tmp_path / "warm")


def test_the_command_plans_their_memory(recipe, tmp_path):
    """Rows at their share of the budget, the map of ids, and which id each row has."""
    held = []
    for over, more in (("dense", ""), ("adaptive", "adaptive: {ratio: 4, end_step: 10}\n")):
        path, out = tmp_path / f"{over}.yaml", tmp_path / f"{over}.json"
        given = json.dumps({"*": {**STORE, "bound": 100_000, "over": {"kind": over}}})
        path.write_text(recipe.read_text() + more + f"embeddings: {{stores: {given}}}\n")
        arguments = [path, "--world-size", "4", "--hardware", "local", "--out", out, "--dry-run", "--json"]
        done = CliRunner().invoke(app, ["plan", *map(str, arguments)])
        assert done.exit_code == 0, done.output
        plan = read_plan(out)
        assert plan.runnable.value
        assert {placement.store for placement in plan.placements} == {"dynamic"}
        held.append(sum(sum(worker.memory_bytes.values()) for worker in plan.estimate.workers))
    rows = 26 * 100_000
    assert held[0] - held[1] == pytest.approx(rows * (20 * 3 / 4 - 8), rel=0.02)
