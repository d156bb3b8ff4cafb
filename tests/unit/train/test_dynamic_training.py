"""Runs with dynamic tables: the same at every depth of the pipeline, killed or not; with another bound."""

import json
import random
import re
import signal

import pytest
import torch
from small_recipes import outcome, train_until_call, trained, write_recipe
from typer.testing import CliRunner

from forked import Forked
from megalith.cli.app import app
from megalith.core.errors import CheckpointError
from megalith.core.files import read_jsonl
from megalith.report import write_report
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


def stores(**changed):
    return "embeddings.stores=" + json.dumps({"*": {**STORE, **changed}})


DYNAMIC = (stores(), "train.epochs=1", "train.eval_every=30", "embeddings.log_evicted=true")


SHORT = (stores(), "train.steps=20", "train.eval_every=30")


@pytest.fixture(scope="module")
def whole_dynamic(small_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dynamic")
    return trained(
        write_recipe(folder / "small.yaml", small_data), folder / "run", *DYNAMIC, "train.pipeline=0"
    )


@pytest.mark.parametrize(
    "depth", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 3]
)
def test_every_depth_of_the_pipeline_gives_the_same_run(recipe, tmp_path, whole_dynamic, depth):
    run = trained(recipe, tmp_path / "run", *DYNAMIC, f"train.pipeline={depth}")
    assert outcome(run) == outcome(whole_dynamic)
    assert dynamic_entries(run) == dynamic_entries(whole_dynamic)


def dynamic_entries(run):
    entries = [line["dynamic"] for line in read_jsonl(run.metrics) if line["kind"] == "train"]
    return [{key: value for key, value in entry.items() if key != "map_bytes"} for entry in entries]


def test_ids_come_and_go_within_the_bound(whole_dynamic):
    entries = dynamic_entries(whole_dynamic)
    assert all(entry["ids"] <= entry["bound"] == 26 * 200 for entry in entries)
    assert sum(entry["evicted"] for entry in entries) > 1000
    assert sum(entry["expired_by_batches"] for entry in entries) > 100
    assert sum(entry["refused"] for entry in entries) > 10_000
    assert all(0 < entry["unknown_share"] < 1 for entry in entries)


@pytest.mark.parametrize(
    ("background", "seed"),
    [(True, 1), *(pytest.param(seed % 2 == 0, seed, marks=pytest.mark.slow) for seed in range(2, 22))],
)
def test_a_run_killed_at_any_instant_resumes_bit_identically(
    recipe, tmp_path, whole_dynamic, background, seed
):
    folder = tmp_path / "killed"
    overrides = [f"train.background_checkpoints={background}", *DYNAMIC]
    wanted = random.Random(seed).randint(5_000, 30_000)
    with Forked(train_until_call, recipe, folder, overrides, wanted, "MainThread") as process:
        assert process.wait() == -signal.SIGKILL
    assert outcome(trained(recipe, folder, *overrides)) == outcome(whole_dynamic)


def test_the_report_draws_what_came_and_went(whole_dynamic, tmp_path):
    write_report(whole_dynamic.folder, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', page, re.DOTALL)[1])
    drawn = {chart["key"]: chart["figure"]["data"] for chart in charts}
    entries = dynamic_entries(whole_dynamic)
    ids, bound = drawn["dynamic-ids"]
    assert ids["y"] == [entry["ids"] for entry in entries]
    assert bound["y"] == [entry["bound"] for entry in entries]
    admitted, evicted, expired = drawn["dynamic-turnover"]
    assert admitted["y"][0] == 1000 * entries[0]["admitted"] / (7 * 256)
    assert sum(evicted["y"]) > 0 < sum(expired["y"])
    (unknown,) = drawn["dynamic-unknown"]
    assert unknown["y"] == [entry["unknown_share"] for entry in entries]


@pytest.mark.slow
def test_the_log_of_a_killed_run_is_that_of_an_undisturbed_one(recipe, tmp_path, whole_dynamic):
    folder = tmp_path / "killed"
    with Forked(train_until_call, recipe, folder, DYNAMIC, 15_000, "MainThread") as process:
        assert process.wait() == -signal.SIGKILL
    logged = read_jsonl(trained(recipe, folder, *DYNAMIC).evicted)
    assert logged == read_jsonl(whole_dynamic.evicted)
    counts = dynamic_entries(whole_dynamic)
    left = [reason for line in logged for reason in line["reasons"]]
    last = max(line["step"] for line in read_jsonl(whole_dynamic.metrics) if line["kind"] == "train")
    assert left.count("batches") >= sum(entry["expired_by_batches"] for entry in counts)
    assert sum(len(line["ids"]) for line in logged if line["step"] <= last) == sum(
        entry["evicted"] + entry["expired_by_batches"] for entry in counts
    )


def saved_ids(trainer, table):
    return torch.cat(
        [block.ids for block in trainer.learner.embeddings.table_states()[table].blocks(1 << 20)]
    )


@pytest.mark.parametrize(
    "changed",
    [{"bound": 100}, {"bound": 700}, {"eviction": {"kind": "lru"}, "admission": {}, "unknown": "zeros"}],
    ids=["smaller", "larger", "other policies"],
)
def test_a_run_goes_on_with_another_bound_and_policy(recipe, tmp_path, changed):
    run = trained(recipe, tmp_path / "run", *SHORT)
    before = Trainer(load_recipe(str(recipe), SHORT), run)
    before.resume()
    after = Trainer(
        load_recipe(str(recipe), (stores(**changed), "train.steps=30", "train.eval_every=30")), run
    )
    assert after.resume() == 20
    for table in after.learner.embeddings.tables:
        kept, ids = saved_ids(after, table.name).tolist(), saved_ids(before, table.name).tolist()
        assert len(kept) <= table.rows
        assert set(kept) == set(ids) if table.rows >= 200 else set(kept) <= set(ids)
    after.train()


def test_a_table_that_is_not_dynamic_does_not_load_one_that_is(recipe, tmp_path):
    run = trained(recipe, tmp_path / "run", *SHORT)
    static = Trainer(load_recipe(str(recipe), ("train.steps=30",)), run)
    with pytest.raises(CheckpointError, match="is dynamic there and not dynamic here"):
        static.resume()


@pytest.mark.slow
def test_the_command_goes_on_with_another_bound(recipe, tmp_path):
    """`megalith train RUN` takes what holds rows as it is given, and nothing else."""
    folder = tmp_path / "run"
    changed = ["embeddings.stores.*.bound=90", "embeddings.stores.*.unknown=zeros"]
    with Forked(train_until_call, recipe, folder, SHORT, 8_000, "MainThread") as process:
        assert process.wait() == -signal.SIGKILL
    result = CliRunner().invoke(app, ["train", str(folder), *changed])
    assert result.exit_code == 0, result.output
    store = RunFolder(folder).recipe().embeddings.stores["*"]
    assert (store.bound, store.unknown) == (90, "zeros")
    assert dynamic_entries(RunFolder(folder))[-1]["bound"] == 26 * 90
    refused = CliRunner().invoke(app, ["train", str(folder), "model.dim=8"])
    assert "leave model.dim=8 out" in str(refused.exception)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 2])
def test_rows_on_disk_underneath_give_the_same_run(recipe, tmp_path, whole_dynamic, depth):
    tiered = (stores(over={"kind": "tiered"}), *DYNAMIC[1:], "memory={dram: 48KiB}")
    run = trained(recipe, tmp_path / "run", *tiered, f"train.pipeline={depth}", "data.eval_batch_size=64")
    reference = trained(recipe, tmp_path / "dense", *DYNAMIC, "data.eval_batch_size=64")
    assert outcome(run) == outcome(reference)
    assert dynamic_entries(run) == dynamic_entries(whole_dynamic)
    assert sum(line["tiers"]["reads"] for line in read_jsonl(run.metrics) if line["kind"] == "train") > 100
