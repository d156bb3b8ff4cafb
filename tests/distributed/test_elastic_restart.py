"""`torchrun -m megalith train`: errors, and ranks that are lost in the middle of a step or a save."""

import json

from processes import sentences, torchrun
from small_runs import outcome, train, write_plan

from megalith.data.dataset import Dataset
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder

# Rank 1 is lost within the seventh step, then rank 0 between the files of a checkpoint and its commit.
SABOTAGE = """
import os, signal
from megalith.cli import main

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if (rank, attempt) == (1, 0):
    from megalith.train.learner import learner
    clip, calls = learner.nn.utils.clip_grad_norm_, []
    learner.nn.utils.clip_grad_norm_ = lambda *a: calls.append(0) or (die() if len(calls) == 7 else clip(*a))
if (rank, attempt) == (0, 1):
    from megalith.checkpoint import store
    write, saves = store.write_rank, []
    store.write_rank = lambda *a: saves.append(write(*a)) or (die() if len(saves) == 2 else saves[-1])
main()
"""


def test_lost_ranks_are_started_again_and_end_where_an_undisturbed_run_does(tiny_recipe, tmp_path):
    plan = write_plan(tmp_path / "plan.json", tiny_recipe, 2)
    overrides = (f"sharding.plan={plan}", "model.top={layers: [16], dropout: 0.1}", "train.clip_norm=1.0")
    expected = outcome(train(tiny_recipe, tmp_path / "whole", 2, *overrides))
    script = tmp_path / "sabotage.py"
    script.write_text(SABOTAGE)
    folder = tmp_path / "run"
    result = torchrun(
        "--max-restarts", "2", script, "train", tiny_recipe, *overrides, "--out", folder, "--json"
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["finished"]
    # Of the two ranks that end torchrun names the one that it sees first.
    assert result.stderr.count("exitcode: ") == 2, result.stderr
    assert "Resuming" in result.stderr
    assert "from step 5" in result.stderr
    assert "from step 10" in result.stderr
    # Once for each loss: nobody knows more of it.
    assert [line.split(" because ")[1] for line in sentences(result)] == [
        "another rank was killed or has crashed."
    ] * 2
    assert outcome(RunFolder(folder)) == expected
    assert not list((folder / "checkpoints").glob(".*"))


def test_a_run_that_was_there_before_is_not_resumed_unasked_however_often_torchrun_tries(
    tiny_recipe, tmp_path
):
    run = RunFolder(tmp_path / "run")
    recipe = load_recipe(str(tiny_recipe))
    run.create(recipe, Dataset(recipe.data.path))
    result = torchrun("--max-restarts", "1", "-m", "megalith", "train", tiny_recipe, "--out", run.folder)
    assert result.returncode != 0
    said = sentences(result)
    assert len(said) == 2, result.stderr
    assert all("holds a run already; resume it with" in line for line in said)
    assert sorted(path.name for path in run.folder.iterdir()) == ["config.yaml", "inputs"]


# Ranks 1 and 2 alone meet damaged data, while rank 0 waits for their ids.
DAMAGE = """
import os
from megalith.cli import main
from megalith.core.errors import DataError
from megalith.data.loader import readers

def damaged(*_):
    raise DataError("part.parquet, column 'C3', row 7: the data is damaged.")

if os.environ["RANK"] != "0":
    readers.cut = damaged
main()
"""


def test_an_error_that_only_some_ranks_meet_ends_all_with_one_sentence_and_leaves_no_run(
    tiny_recipe, tmp_path
):
    script = tmp_path / "damage.py"
    script.write_text(DAMAGE)
    result = torchrun(script, "train", tiny_recipe, "--out", tmp_path / "run", processes=3)
    assert result.returncode != 0
    assert sentences(result) == ["megalith: part.parquet, column 'C3', row 7: the data is damaged."]
    # torchrun names what came first, not what followed from it.
    assert "the data is damaged" in result.stderr.split("Root Cause")[1]
    assert "exitcode  : 2" in result.stderr
    assert not (tmp_path / "run").exists()
