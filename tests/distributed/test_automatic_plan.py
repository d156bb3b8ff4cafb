"""The plan that training makes for itself is the one that `megalith plan` makes for the same ranks."""

import json

import pytest
from small_runs import make_recipe, train
from typer.testing import CliRunner

from megalith.cli.app import app
from megalith.sharding.plan import read_plan


def command(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, result.output


def plan_of(path):
    """All that a plan file holds but how long it took to make, and what only `megalith plan` compares."""
    plan = json.loads(path.read_text())
    assert plan["estimate"].pop("planning_seconds") > 0
    plan["estimate"].pop("one_worker_seconds", None)
    return plan


@pytest.fixture(scope="module")
def multi_hot_data(tmp_path_factory):
    """Criteo-shaped rows with four features that hold several ids."""
    folder = tmp_path_factory.mktemp("multi-hot") / "data"
    rows = ("--rows", 3000, "--valid-rows", 300, "--test-rows", 10, "--threads", 1, "--multi-hot", 4)
    command("data", "synth", "criteo", "--out", folder, *rows)
    return folder


@pytest.mark.parametrize("measured", [False, True])
def test_megalith_plan_makes_the_plan_of_the_run(multi_hot_data, tmp_path, measured):
    statistics = multi_hot_data / "statistics.json"
    statistics.unlink(missing_ok=True)
    if measured:
        command("data", "stats", multi_hot_data, "--save")
    assert statistics.exists() == measured
    recipe = make_recipe(tmp_path / "recipe.yaml", multi_hot_data)
    run = train(recipe, tmp_path / "run", 2, "train.steps=2")
    planned = tmp_path / "plan.json"
    command("plan", recipe, "--hardware", "local", "--world-size", 2, "--out", planned)
    assert plan_of(planned) == plan_of(run.plan)
    lookups = {table.table: table.lookups for table in read_plan(planned).estimate.tables}
    # Features of several ids count as such, measured or not.
    assert all(lookups[f"M{number}"] > 1 for number in range(1, 5))
