"""Tables that no memory holds are refused by `train` and `eval` before any of it is taken."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from commands import unwrapped
from megalith.cli.app import app
from megalith.comm.ranks import Ranks
from megalith.core.errors import PlanError
from megalith.core.schema import TableSpec
from megalith.embeddings.optimizers import SGD, RowWiseAdaGrad
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy
from megalith.sharding.plan import Placement, Shard, ShardingPlan
from megalith.train.learner.memory import check_memory, host_bytes


@pytest.fixture
def huge_data(small_data, tmp_path):
    """The data with 4 billion ids declared for every feature."""
    folder = shutil.copytree(small_data, tmp_path / "huge")
    schema = json.loads((folder / "schema.json").read_text())
    for feature in schema["categorical"]:
        feature["num_ids"] = 4_000_000_000
    (folder / "schema.json").write_text(json.dumps(schema))
    return folder


def test_training_tables_of_a_hundred_terabytes_is_refused_and_leaves_no_run(recipe, huge_data, tmp_path):
    arguments = ["train", str(recipe), f"data.path={huge_data}", "model.dim=256"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run")])
    assert isinstance(result.exception, PlanError)
    assert "The tables need 97.2 TiB (96.9 TiB of rows, 387.4 GiB of optimizer state)" in str(
        result.exception
    )
    assert "machines with as much memory" in str(result.exception)
    assert not (tmp_path / "run").exists()


def test_background_checkpoints_need_a_second_copy(recipe, huge_data, tmp_path):
    settings = [f"data.path={huge_data}", "model.dim=256", "train.background_checkpoints=true"]
    result = CliRunner().invoke(app, ["train", str(recipe), *settings, "--out", str(tmp_path / "run")])
    assert "The tables need 194.5 TiB" in str(result.exception)


def test_evaluating_them_is_refused_too(recipe, tmp_path):
    run = tmp_path / "run"
    assert CliRunner().invoke(app, ["train", str(recipe), "train.steps=2", "--out", str(run)]).exit_code == 0
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("dim: 4", "dim: 1000000000"))
    result = CliRunner().invoke(app, ["eval", str(run)])
    assert isinstance(result.exception, PlanError)
    assert "The tables need" in str(result.exception)


def plan_of(shards, kind, world_size):
    placement = Placement(table="t", kind=kind, shards=shards)
    return ShardingPlan(world_size=world_size, workers_per_node=2, placements=(placement,))


def test_ranks_of_one_machine_share_its_memory():
    table = TableSpec(name="t", rows=100, dim=8, features=("f",))
    rows = [Shard(worker=rank, rows=(25 * rank, 25 * rank + 25), columns=(0, 8)) for rank in range(4)]
    plan = plan_of(rows, "row_wise", 4)
    assert host_bytes([table], SGD(), plan, 2) == [1600, 1600]
    assert host_bytes([table], RowWiseAdaGrad(), plan, 4) == [3600]
    whole = [Shard(worker=rank, rows=(0, 100), columns=(0, 8)) for rank in range(4)]
    assert host_bytes([table], SGD(), plan_of(whole, "data_parallel", 4), 2) == [6400, 6400]


def test_a_plan_is_refused_by_what_one_machine_would_hold():
    table = TableSpec(name="t", rows=4_000_000_000, dim=4096, features=("f",))
    half = 2_000_000_000
    shards = [
        Shard(worker=rank, rows=(half * rank, half * rank + half), columns=(0, 4096)) for rank in (0, 1)
    ]
    with pytest.raises(PlanError, match=r"The tables need 59\.6 TiB"):
        check_memory([table], SGD(), plan_of(shards, "row_wise", 2), Ranks())


def test_of_adaptive_tables_it_is_their_budget_that_has_to_fit():
    table = TableSpec(name="t", rows=2_000_000_000, dim=4096, features=("f",), store="adaptive")
    shards = [
        Shard(worker=rank, rows=(10**9 * rank, 10**9 * (rank + 1)), columns=(0, 4096)) for rank in (0, 1)
    ]
    plan = plan_of(shards, "row_wise", 2)
    for given in (None, plan):
        check_memory([table], SGD(), given, Ranks(), adaptive=AdaptivePolicy(ratio=1_000_000))
        with pytest.raises(
            PlanError, match=r"Adaptive tables may take 29\.8 TiB on one machine.*adaptive\.ratio"
        ):
            check_memory([table], SGD(), given, Ranks(), adaptive=AdaptivePolicy(ratio=1))
    with pytest.raises(PlanError, match=r"may take 59\.6 TiB"):
        check_memory([table], SGD(), plan, Ranks(), second_copy=True, adaptive=AdaptivePolicy(ratio=1))


def test_adaptive_tables_that_begin_beyond_memory_name_the_ratio_to_begin_with(monkeypatch):
    """A final budget that fits is not enough: the peak is known from settings, and so is what fits."""
    monkeypatch.setattr("megalith.train.learner.memory.available_bytes", lambda: 1 << 30)
    table = TableSpec(name="t", rows=10_000_000, dim=256, features=("f",), store="adaptive")
    policy = AdaptivePolicy(ratio=100, warm_up=50, end_step=1000)
    dense, many = 10_240_000_000, {"t": 1_000_000}

    def check(given, **settings):
        return check_memory([table], SGD(), None, Ranks(), adaptive=given, **settings)

    with pytest.raises(PlanError, match=r"before they are pruned to 97\.7 MiB.*adaptive\.begin_ratio=9\.6"):
        check(policy, lookups=many)
    taken = check(policy.model_copy(update={"begin_ratio": 9.6}), lookups=many)
    assert taken.budget == dense // 100 < taken.peak <= 1 << 30
    # Few lookups bring few rows by the time at which the budget falls.
    assert check(policy, lookups={"t": 1000}).peak < 1 << 30
    # What is not trained has its final size.
    assert check(policy).peak == dense // 100


def test_a_run_says_what_adaptive_tables_take_at_first_and_at_the_end(recipe, tmp_path):
    arguments = ["train.steps=20", "adaptive={ratio: 8, interval: 4, warm_up: 4, chunk: 1}"]
    result = CliRunner().invoke(app, ["train", str(recipe), *arguments, "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    said = unwrapped(result.output + result.stderr)
    assert "while they begin (adaptive.begin_ratio)" in said
    assert "from step 10 on; dense ones would take" in said
