"""`megalith checkpoint`: what is kept is listed, damage is named, and pruning leaves what is needed."""

import json
import re
import shutil

import pytest
from command_runs import run_command

from megalith.core.files import read_jsonl
from megalith.core.lock import FolderLock
from megalith.train.run.reporter import CLOCK_KEYS

SETTINGS = (
    *("train.epochs=2", "train.keep_checkpoints=10", "train.eval_every=100"),
    "checkpoint={differential: yes, bits: 8, compact_at: 0.9}",
)


@pytest.fixture(scope="module")
def differential(recipe_text, tmp_path_factory):
    """A finished run with a baseline, two deltas of 8 bits, and a baseline at its end: steps 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("differential")
    (folder / "small.yaml").write_text(recipe_text)
    done = run_command("train", folder / "small.yaml", *SETTINGS, "--out", folder / "run")
    assert done.code == 0, done.err
    return folder / "run"


@pytest.fixture
def run(differential, tmp_path):
    return shutil.copytree(differential, tmp_path / "run")


def listed(run):
    done = run_command("checkpoint", "list", run, "--json")
    assert done.code == 0, done.err
    return {each["step"]: each for each in json.loads(done.out)["checkpoints"]}


def rows_file(run, step):
    files = (run / "checkpoints" / f"step-{step:08d}").glob("rows-*")
    return max(files, key=lambda path: path.stat().st_size)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_list_says_what_each_step_is_and_needs(run):
    steps = listed(run)
    assert sorted(steps) == [2, 4, 6, 8, 10, 12]
    assert steps[2]["kind"] == "baseline"
    assert steps[2]["bits"] is None
    assert steps[12]["kind"] == "baseline"
    deltas = {step: each for step, each in steps.items() if each["kind"] == "delta"}
    assert deltas
    for step, each in deltas.items():
        assert each["bits"] == 8
        assert each["needs"][0] == step - 2
        assert steps[each["needs"][-1]]["kind"] == "baseline"
        assert each["bytes"] < steps[2]["bytes"]
    assert all(each["samples"] == 200 * step for step, each in steps.items())
    assert all(each["error"] is None for each in steps.values())


def test_the_table_has_a_line_for_each_step(run):
    done = run_command("checkpoint", "list", run)
    assert (done.code, done.err) == (0, "")
    lines = [line for line in done.out.splitlines() if re.search(r"baseline|delta", line)]
    assert len(lines) == 6
    assert "8 bits" in lines[1]
    assert "exact" in lines[0]


def test_verify_reads_every_file(run):
    done = run_command("checkpoint", "verify", run, "--json")
    assert done.code == 0
    steps = json.loads(done.out)["checkpoints"]
    assert [each["step"] for each in steps] == [2, 4, 6, 8, 10, 12]
    for each in steps:
        folder = run / "checkpoints" / f"step-{each['step']:08d}"
        files = [path for path in folder.iterdir() if path.name != "manifest.json"]
        assert each["files"] == len(files)
        assert each["bytes"] == sum(path.stat().st_size for path in files)
        assert (each["damaged"], each["error"]) == ([], None)


@pytest.mark.parametrize("harm", [flip, lambda path: path.unlink()], ids=["flipped", "removed"])
def test_verify_names_the_damaged_file_and_the_way_out(run, harm):
    path = rows_file(run, 4)
    harm(path)
    done = run_command("checkpoint", "verify", run)
    assert done.code == 2
    lost = [step for step, each in listed(run).items() if step == 4 or 4 in each["needs"]]
    assert done.err.splitlines()[-1] == (
        f"megalith: Checkpoint file {path} is damaged or missing, {len(lost)} of 6 checkpoints cannot be "
        f"restored; the newest is whole, `megalith train {run}` goes on from it."
    )
    machine = run_command("checkpoint", "verify", run, "--json")
    assert machine.code == 2
    answer = json.loads(machine.out)
    assert f"megalith: {answer['error']}" == done.err.splitlines()[-1]
    assert [each["step"] for each in answer["checkpoints"] if each["error"]] == lost
    assert [each["damaged"] for each in answer["checkpoints"] if each["damaged"]] == [[str(path)]]


def test_a_step_is_verified_with_what_it_is_over_alone(run):
    flip(rows_file(run, 12))
    assert run_command("checkpoint", "verify", run, "--step", 4).code == 0
    assert "go back to step 10" in run_command("checkpoint", "verify", run).err
    flip(rows_file(run, 2))
    done = run_command("checkpoint", "verify", run, "--step", 4)
    assert done.code == 2
    assert str(rows_file(run, 2)) in done.err
    assert "has no checkpoint of step 5" in run_command("checkpoint", "verify", run, "--step", 5).sentence


def test_a_damaged_manifest_is_listed_as_such(run):
    manifest = run / "checkpoints" / "step-00000002" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 2', '"step": 3'))
    steps = listed(run)
    assert steps[2]["kind"] == "damaged"
    assert str(manifest) in steps[2]["error"]
    assert str(manifest) in steps[4]["error"]
    assert steps[12]["error"] is None
    done = run_command("checkpoint", "verify", run)
    assert done.code == 2
    assert str(manifest) in done.err


def test_prune_keeps_what_is_asked_for_and_what_that_needs(run):
    needs = {step: each["needs"] for step, each in listed(run).items()}
    asked = max(step for step in needs if needs[step])
    expected = {asked, *needs[asked], 12}
    dry = run_command("checkpoint", "prune", run, "--keep", 1, "--keep-step", asked, "--dry-run", "--json")
    assert len(listed(run)) == 6
    done = run_command("checkpoint", "prune", run, "--keep", 1, "--keep-step", asked, "--json")
    assert {**json.loads(done.out), "dry_run": True} == json.loads(dry.out)
    answer = json.loads(done.out)
    assert set(listed(run)) == expected == {each["step"] for each in answer["kept"]}
    assert set(answer["removed"]) == set(needs) - expected
    assert {each["step"]: each["why"] for each in answer["kept"]}[needs[asked][0]].endswith("needs it")
    assert run_command("checkpoint", "verify", run).code == 0


def test_prune_keeps_the_best_evaluation(recipe_text, tmp_path):
    (tmp_path / "small.yaml").write_text(recipe_text)
    settings = ("train.keep_checkpoints=10", "train.eval_every=2", "train.early_stopping={patience: 9}")
    assert run_command("train", tmp_path / "small.yaml", *settings, "--out", tmp_path / "run").code == 0
    best = json.loads((tmp_path / "run" / "summary.json").read_text())["best_step"]
    other = next(step for step in listed(tmp_path / "run") if step != best)
    # The final evaluation came after the last checkpoint: only the summary knows of it.
    assert best == 6
    done = run_command("checkpoint", "prune", tmp_path / "run", "--keep-step", other)
    assert done.code == 0
    assert {other, best} <= set(listed(tmp_path / "run")) <= {other, best, 4}
    assert "best evaluation" in done.out


def test_a_run_goes_back_to_any_step_that_was_kept(run, tmp_path):
    """An exact delta restored in the middle leads to the same losses, whatever is tracked from there on."""
    kept = run_command("train", run, "--from-step", 2, "checkpoint.bits=32", "train.keep_checkpoints=20")
    assert kept.code == 0, kept.err
    before = losses(run)
    deltas = [step for step, each in listed(run).items() if each["kind"] == "delta"]
    assert len(deltas) >= 2
    done = run_command("train", run, "--from-step", deltas[0])
    assert done.code == 0, done.err
    assert losses(run) == before


def losses(run):
    lines = read_jsonl(run / "metrics.jsonl")
    return [{key: value for key, value in line.items() if key not in CLOCK_KEYS} for line in lines]


def test_a_run_that_is_being_trained_is_not_pruned(run):
    lock = FolderLock(run, "is being trained")
    lock.acquire()
    try:
        assert "is being trained" in run_command("checkpoint", "prune", run, "--keep", 1).sentence
    finally:
        lock.release()
    assert len(listed(run)) == 6


@pytest.mark.parametrize("command", ["list", "verify", "prune"])
def test_what_is_no_run_is_refused(tmp_path, command):
    (tmp_path / "empty").mkdir()
    done = run_command(
        "checkpoint", command, tmp_path / "empty", *(["--keep", 1] if command == "prune" else [])
    )
    assert "is not a run" in done.sentence
    assert not list((tmp_path / "empty").iterdir())


def test_who_does_not_say_what_to_keep_is_asked(run):
    assert "give --keep N for the newest" in run_command("checkpoint", "prune", run).sentence
    assert "has no checkpoint of step 3" in run_command("checkpoint", "prune", run, "--keep-step", 3).sentence
    assert len(listed(run)) == 6


def test_a_run_without_a_checkpoint_says_so(run):
    shutil.rmtree(run / "checkpoints")
    assert "has no checkpoint yet" in run_command("checkpoint", "list", run).sentence
