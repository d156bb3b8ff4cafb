"""`train` with adaptive tables on several ranks: the same bits under any plan, resumed or not."""

import json
import shutil

import pytest
from processes import on_ranks
from small_runs import losses, make_recipe, outcome, refusal, train, write_plan
from typer.testing import CliRunner

from megalith.cli.app import app
from megalith.core.files import read_jsonl
from megalith.data.dataset import Dataset
from megalith.sharding.plan import read_plan
from megalith.sharding.row_wise_plan import row_wise_plan
from megalith.train.learner.embeddings import place_tables
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer

SHRUNK = (
    "adaptive={ratio: 8, interval: 4, warm_up: 4, chunk: 1, end: 0.5, gamma: 0.95, exempt_share: 0.001}",
    "train.keep_checkpoints=20",
    "train.background_checkpoints=true",
)
DECIDED = ("budget_bytes", "open", "pruned", "grown", "mean_dims", "weights_bytes", "utility_bytes")


def decided(run):
    """What was decided, of each report, and how much lives."""
    lines = [line["adaptive"] for line in read_jsonl(run.metrics) if line["kind"] == "train"]
    return [{key: line[key] for key in DECIDED} for line in lines]


def row_wise(path, recipe, world_size, *overrides):
    """A plan file that cuts all tables by rows, adaptive ones at units."""
    settings = load_recipe(str(recipe), overrides)
    tables = settings.model.tables(Dataset(settings.data.path).schema.categorical)
    placed = place_tables(tables, settings.embeddings.optimizer, None, None, settings.adaptive)
    row_wise_plan(placed.tables, world_size).write(path)
    return path


@pytest.fixture(scope="module")
def pair(tiny_data, tmp_path_factory):
    """A run of two ranks under the automatic plan, with all its checkpoints."""
    folder = tmp_path_factory.mktemp("pair")
    return train(make_recipe(folder / "tiny.yaml", tiny_data), folder / "run", 2, *SHRUNK)


def test_with_all_chunks_live_ranks_learn_the_bits_of_dense_tables(tiny_recipe, tmp_path):
    whole = "adaptive={ratio: 1, interval: 5, exempt_rows: 0}"
    plan = row_wise(tmp_path / "adaptive.json", tiny_recipe, 2, whole)
    chunked = train(tiny_recipe, tmp_path / "chunked", 2, whole, f"sharding.plan={plan}")
    content = json.loads(plan.read_text())
    for placement in content["placements"]:
        placement["store"] = "dense"
    plan.write_text(json.dumps(content))
    dense = train(tiny_recipe, tmp_path / "dense", 2, f"sharding.plan={plan}")
    # Rows that only evaluation looks up have no chunks.
    assert losses(chunked) == losses(dense)


def test_ranks_decide_the_same_under_any_plan_and_depth(pair, tiny_recipe, tmp_path):
    entries = decided(pair)
    assert sum(entry["pruned"] for entry in entries) > 10_000
    assert sum(entry["grown"] for entry in entries) > 1000
    placements = read_plan(pair.plan).placements
    assert {placement.store for placement in placements} == {"adaptive", "dense"}
    plan = row_wise(tmp_path / "plan.json", tiny_recipe, 2, *SHRUNK)
    other = train(tiny_recipe, tmp_path / "run", 2, *SHRUNK, f"sharding.plan={plan}", "train.pipeline=0")
    assert outcome(other) == outcome(pair)
    assert decided(other) == entries


def test_ranks_with_chunks_on_disk_learn_the_same(pair, tiny_recipe, tmp_path):
    run = train(tiny_recipe, tmp_path / "run", 2, *SHRUNK, "memory.dram=64KiB")
    assert outcome(run) == outcome(pair)
    unmoved = [key for key in DECIDED if not key.endswith("_bytes")]
    for found, expected in zip(decided(run), decided(pair), strict=True):
        assert [found[key] for key in unmoved] == [expected[key] for key in unmoved]
    tiers = [line["tiers"] for line in read_jsonl(run.metrics) if line["kind"] == "train"]
    assert sum(entry["reads"] for entry in tiers) > 100


def resume(folder, step):
    trainer = Trainer(load_recipe(str(folder)), RunFolder(folder))
    assert trainer.resume(step) == step
    trainer.train()


# With rankings every 4 steps, the first is between two of them and the second at one.
@pytest.mark.parametrize("step", [10, pytest.param(20, marks=pytest.mark.slow)])
def test_ranks_that_resume_go_on_as_if_uninterrupted(pair, tmp_path, step):
    folder = shutil.copytree(pair.folder, tmp_path / "run")
    on_ranks(2, resume, folder, step)
    assert outcome(RunFolder(folder)) == outcome(pair)
    assert decided(RunFolder(folder))[-1] == decided(pair)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("others", [(1,), (4,), (4, 1, 3)])
def test_other_numbers_of_ranks_go_on_and_learn_nearly_the_same(pair, tmp_path, others):
    folder = shutil.copytree(pair.folder, tmp_path / "run")
    for step, ranks in zip((10, 15, 20), others, strict=False):
        if ranks == 1:
            resume(folder, step)
        else:
            on_ranks(ranks, resume, folder, step)
    # Sums of dense gradients over ranks differ in the last bit; so does a chunk in a thousand.
    run = RunFolder(folder)
    assert losses(run) == pytest.approx(losses(pair), rel=1e-3)
    dims = [sum(decided(each)[-1]["mean_dims"].values()) for each in (run, pair)]
    assert dims[0] == pytest.approx(dims[1], rel=0.02)


def test_a_plan_that_cuts_adaptive_tables_anywhere_is_refused(tiny_recipe, tmp_path):
    plan = write_plan(tmp_path / "plan.json", tiny_recipe, 2, ("row_wise",))
    for said in on_ranks(2, refusal, tiny_recipe, [*SHRUNK, f"sharding.plan={plan}"], tmp_path / "run"):
        assert "table 'C1' cuts an adaptive one otherwise than by rows at multiples of 23" in said


def test_the_command_plans_adaptive_tables(tiny_recipe, tmp_path):
    with tiny_recipe.open("a") as file:
        file.write("adaptive: {ratio: 16}\n")
    out = tmp_path / "plan.json"
    arguments = [str(tiny_recipe), "--world-size", "4", "--hardware", "local", "--out", str(out), "--dry-run"]
    done = CliRunner().invoke(app, ["plan", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    plan = read_plan(out)
    assert plan.runnable.value
    kinds = {placement.kind for placement in plan.placements if placement.store == "adaptive"}
    assert kinds
    assert kinds <= {"table_wise", "row_wise"}
    rows = sum(placement.shards[-1].rows[1] for placement in plan.placements)
    assert plan.estimate is not None
    # Rows of 4 columns and a number of state, a sixteenth of them.
    assert sum(table.bytes for table in plan.estimate.tables) == pytest.approx(rows * 20 / 16, rel=0.01)
