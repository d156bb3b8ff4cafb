"""Adaptive tables in training: exact where all chunks live, the same at every depth, killed or not."""

import json
import shutil

import pytest
from small_recipes import outcome, trained, write_recipe

from megalith.core.errors import ConfigError
from megalith.core.files import read_jsonl
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer

SHRUNK = ("adaptive={ratio: 8, interval: 4, warm_up: 8, chunk: 1, end: 0.4, gamma: 0.95}",)


def losses(run):
    return [line["loss"] for line in read_jsonl(run.metrics) if line["kind"] == "train"]


def adaptive_entries(run):
    return [line["adaptive"] for line in read_jsonl(run.metrics) if line["kind"] == "train"]


@pytest.fixture(scope="module")
def shrunk(small_data, tmp_path_factory):
    """A run whose chunks are pruned and grow again, with all its checkpoints."""
    folder = tmp_path_factory.mktemp("shrunk")
    recipe = write_recipe(folder / "small.yaml", small_data)
    return trained(recipe, folder / "run", *SHRUNK, "train.keep_checkpoints=20")


@pytest.mark.parametrize("depth", [0, 3, *(pytest.param(depth, marks=pytest.mark.slow) for depth in (1, 2))])
def test_with_all_chunks_live_losses_are_those_of_dense_tables_bit_for_bit(recipe, tmp_path, whole, depth):
    run = trained(recipe, tmp_path / "run", "adaptive={ratio: 1, interval: 5}", f"train.pipeline={depth}")
    assert losses(run) == losses(whole)


@pytest.mark.parametrize("depth", [0, 3])
def test_what_is_pruned_and_grown_does_not_depend_on_the_depth_of_the_pipeline(
    recipe, tmp_path, shrunk, depth
):
    run = trained(recipe, tmp_path / "run", *SHRUNK, f"train.pipeline={depth}", "train.checkpoint_every=99")
    assert outcome(run) == outcome(shrunk)
    dims = [[entry["mean_dims"] for entry in adaptive_entries(each)] for each in (run, shrunk)]
    assert dims[0] == dims[1]


@pytest.mark.parametrize("depth", [0, 3])
def test_chunks_on_disk_are_trained_as_those_in_memory(recipe, tmp_path, shrunk, depth):
    on_disk = "memory={dram: 64KiB}", f"train.pipeline={depth}", "train.keep_checkpoints=20"
    run = trained(recipe, tmp_path / "run", *SHRUNK, *on_disk)
    assert outcome(run) == outcome(shrunk)
    dims = [[entry["mean_dims"] for entry in adaptive_entries(each)] for each in (run, shrunk)]
    assert dims[0] == dims[1]
    tiers = [line["tiers"] for line in read_jsonl(run.metrics) if line["kind"] == "train"]
    assert sum(entry["reads"] for entry in tiers) > 1000
    # From a checkpoint in the middle, with another cache.
    trainer = Trainer(load_recipe(str(run.folder), ["memory.dram=96KiB"]), run)
    assert trainer.resume(30) == 30
    trainer.train()
    assert outcome(run) == outcome(shrunk)


def test_a_run_fits_its_budget_and_says_so(shrunk):
    entries = adaptive_entries(shrunk)
    assert sum(entry["pruned"] for entry in entries) > 1000
    assert sum(entry["grown"] for entry in entries) > 1000
    last = entries[-1]
    assert last["total_bytes"] <= last["budget_bytes"]
    parts = ("weights", "state", "utility", "index", "sketch", "free", "bookkeeping")
    assert last["total_bytes"] == sum(last[f"{part}_bytes"] for part in parts)
    summary = json.loads(shrunk.summary.read_text())
    assert summary["adaptive"]["ratio"] > 7
    assert summary["adaptive"]["resident_bytes"] > last["total_bytes"]


# With rankings every 4 steps, the first is between two of them and the second at one.
@pytest.mark.parametrize(("step", "background"), [(30, False), (40, False), (50, True)])
def test_a_resumed_run_is_an_uninterrupted_one(shrunk, tmp_path, step, background):
    folder = tmp_path / "run"
    shutil.copytree(shrunk.folder, folder)
    overrides = f"train.background_checkpoints={background}"
    run = RunFolder(folder)
    trainer = Trainer(load_recipe(str(folder), [overrides]), run)
    assert trainer.resume(step) == step
    trainer.train()
    assert outcome(run) == outcome(shrunk)
    assert adaptive_entries(run)[-1]["mean_dims"] == adaptive_entries(shrunk)[-1]["mean_dims"]


def test_a_budget_that_whole_tables_do_not_leave_is_refused(recipe, tmp_path):
    settings = load_recipe(str(recipe), ["adaptive={budget: 8KiB, exempt_rows: 1000}"])
    with pytest.raises(ConfigError, match="stay whole"):
        Trainer(settings, tmp_path / "run")
