"""`torchrun -m megalith`: what a user sees of an evaluation and of mistakes."""

import json

import pytest
from processes import on_ranks, sentences, torchrun
from small_runs import losses, make_recipe, train, write_plan
from typer.testing import CliRunner

from megalith.cli.app import app
from megalith.data.dataset import Dataset
from megalith.sharding.plan import Shard, read_plan
from megalith.train.checkpoints import open_learner
from megalith.train.run.folder import RunFolder


@pytest.fixture(scope="module")
def trained(tiny_data, tmp_path_factory):
    """A run of two ranks under a plan of every kind, named in its recipe."""
    folder = tmp_path_factory.mktemp("trained")
    recipe = make_recipe(folder / "tiny.yaml", tiny_data)
    plan = write_plan(folder / "plan.json", recipe, 2)
    return train(recipe, folder / "run", 2, f"sharding.plan={plan}", "train.epochs=1")


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_score_what_one_process_does_and_one_of_them_says_it(trained, tmp_path, processes):
    out = tmp_path / "scores.csv"
    words = ["eval", str(trained.folder), "--predictions", str(out), "--json"]
    alone = CliRunner().invoke(app, words)
    assert alone.exit_code == 0, alone.output
    trained.evaluation("valid").unlink()
    scores = out.read_text()
    out.unlink()
    together = torchrun("-m", "megalith", *words, processes=processes)
    assert together.returncode == 0, together.stderr
    said = json.loads(alone.stdout)
    assert json.loads(together.stdout) == said
    assert out.read_text() == scores
    assert said.pop("predictions") == str(out)
    assert json.loads(trained.evaluation("valid").read_text()) == said


def held_bytes(folder, data):
    """Bytes of tables that a rank has after it opened a run."""
    learner, _ = open_learner(RunFolder(folder), Dataset(data))
    shards = [shard for table in learner.embeddings.table_states().values() for shard in table.shards]
    return sum(shard.parts["weight"].nbytes for shard in shards), learner.table_bytes


def test_no_rank_of_an_evaluation_holds_all_tables(trained, tiny_data):
    # Three ranks find a run whose own plan is for two.
    found = on_ranks(3, held_bytes, trained.folder, tiny_data)
    assert max(held for held, _ in found) < 0.6 * found[0][1]
    assert sum(held for held, _ in found) >= found[0][1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("train.epoch=3",), "unknown key 'train.epoch'; did you mean 'epochs'?"),
        (
            ("data.path=nowhere",),
            "nowhere is not a prepared data set (schema.json is missing); make one with",
        ),
        (("sharding.plan=PLAN",), "is for 3 workers and 2 ranks run; regenerate it with `megalith plan"),
        (("sharding.plan=ELSEWHERE",), "elsewhere.json is not runnable here: its workers are a100-40g, and"),
        (
            ("publish={uri: LIVE, every_steps: 5}",),
            "publish is for a run of one process, whose rows are all in it; train without torchrun",
        ),
        (
            ("data.growing={}", "data.raw={vocabulary_from: DATA}", "train.steps=3"),
            "data.growing is for a run of one process, which takes files in one order; train without",
        ),
    ],
    ids=[
        "unknown key",
        "no data",
        "a plan for another number",
        "a plan for accelerators",
        "publish",
        "growing",
    ],
)
def test_a_mistake_is_said_once_and_leaves_no_run(tiny_data, tiny_recipe, tmp_path, arguments, sentence):
    plan = write_plan(tmp_path / "plan.json", tiny_recipe, 3)
    elsewhere = tmp_path / "elsewhere.json"
    if "sharding.plan=ELSEWHERE" in arguments:
        planned = ("plan", tiny_recipe, "--hardware", "zionex", "--world-size", 2, "--out", elsewhere)
        assert CliRunner().invoke(app, [*map(str, planned)]).exit_code == 0
    places = {"PLAN": plan, "ELSEWHERE": elsewhere, "LIVE": tmp_path / "live", "DATA": tiny_data}
    for name, place in places.items():
        arguments = [one.replace(name, str(place)) for one in arguments]
    out = tmp_path / "run"
    result = torchrun("-m", "megalith", "train", tiny_recipe, *arguments, "--out", out)
    assert result.returncode != 0
    (said,) = sentences(result)
    assert sentence in said
    assert sentence in result.stderr.split("Root Cause")[1]
    assert "exitcode  : 2" in result.stderr
    assert "new message format" not in result.stderr
    assert not out.exists()
    assert not (tmp_path / "live").exists()


def test_a_run_with_a_plan_of_its_own_resumes_under_another_on_any_number_of_ranks(trained):
    folder = trained.folder
    refused = CliRunner().invoke(app, ["train", str(folder), "train.steps=30"])
    assert (
        "all but sharding.*, ingest, memory, publish, checkpoint, embeddings.stores, train.pipeline and "
        "train.keep_checkpoints; leave train.steps=30 out" in str(refused.exception)
    )
    before = trained.recipe()
    back = ("sharding.plan=auto", "--from-step", "10")
    result = torchrun("-m", "megalith", "train", folder, *back, "--json", processes=3)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["ranks"] == 3
    after = trained.recipe()
    assert after.sharding.plan == "auto"
    assert after.model_copy(update={"sharding": before.sharding}) == before


def test_a_plan_made_by_hand_learns_what_one_process_does(tiny_recipe, tmp_path):
    """Rows over some of the ranks and unevenly, two pieces on one rank, a corner apart, one rank without."""
    written = read_plan(write_plan(tmp_path / "plan.json", tiny_recipe, 3, kinds=("table_wise",)))
    placements = []
    for number, placement in enumerate(written.placements):
        (whole,) = placement.shards
        shards, rows = placement.shards, whole.rows[1]
        if rows > 2:
            pieces = [(0, (0, 1), (0, 4)), (0, (1, rows), (0, 1)), (1, (1, rows), (1, 4))]
            pieces = pieces if number % 2 else [(1, (0, 2), (0, 4)), (1, (2, rows), (0, 4))]
            shards = tuple(Shard(worker=w, rows=r, columns=c) for w, r, c in pieces)
        elif whole.worker == 2:
            shards = (whole.model_copy(update={"worker": 0}),)
        placements.append(placement.model_copy(update={"shards": shards}))
    plan = written.model_copy(update={"placements": tuple(placements)})
    plan.write(tmp_path / "hand.json")
    one = train(tiny_recipe, tmp_path / "one", 1, "train.epochs=1")
    hand = train(
        tiny_recipe, tmp_path / "hand", 3, f"sharding.plan={tmp_path / 'hand.json'}", "train.epochs=1"
    )
    assert losses(hand) == pytest.approx(losses(one), abs=1e-5)
