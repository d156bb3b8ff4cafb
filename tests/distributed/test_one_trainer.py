"""One trainer a run: a second one is refused by name, ranks end with torchrun, and an end is an end."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import torchrun_command
from small_runs import outcome, train, write_plan

from commands import megalith
from megalith.train.run.folder import RunFolder

# Stops in front of the eighth step until it is told to go on, by the end of a pipe.
WAITS = """
import os, sys
from megalith.cli import main
from megalith.train.learner.learner import Learner

ready, go = int(sys.argv.pop(1)), int(sys.argv.pop(1))
take, steps = Learner.step, []

def step(*given):
    steps.append(0)
    if len(steps) == 8:
        os.write(ready, b"x")
        os.read(go, 1)
    return take(*given)

Learner.step = step
main()
"""


def content(folder):
    """Every file of a run, but for the lock that its trainer holds."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.fixture
def half_way(tiny_recipe, tmp_path):
    """A trainer that waits in the middle of its run, with a checkpoint; and what lets it go on."""
    script, folder = tmp_path / "waits.py", tmp_path / "run"
    script.write_text(WAITS)
    ready, ready_end = os.pipe()
    go_end, go = os.pipe()
    trainer = subprocess.Popen(
        [sys.executable, script, str(ready_end), str(go_end), "train", tiny_recipe, "--out", folder],
        pass_fds=(ready_end, go_end),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(ready_end)
    os.close(go_end)
    assert os.read(ready, 1) == b"x", trainer.communicate()

    def finish():
        os.write(go, b"x")
        printed, errors = trainer.communicate()
        assert trainer.returncode == 0, errors
        return printed

    yield trainer, folder, finish
    trainer.kill()
    trainer.communicate()
    os.close(ready)
    os.close(go)


def test_a_second_trainer_is_refused_and_changes_nothing(half_way, tiny_recipe, tmp_path):
    trainer, folder, finish = half_way
    before = content(folder)
    second = [("train", folder), ("train", tiny_recipe, "--out", folder, "--overwrite")]
    second.append(("train", tiny_recipe, "--out", folder, "--resume"))
    for arguments in second:
        refused = megalith(*arguments)
        assert refused.returncode == 2, refused.stderr
        assert refused.stderr == (
            f"megalith: {folder} is being trained by process {trainer.pid}; wait until it ends, or stop it.\n"
        )
        assert content(folder) == before
    finish()
    assert outcome(RunFolder(folder)) == outcome(train(tiny_recipe, tmp_path / "alone", 1))
    assert not (folder / ".lock").exists()


def test_a_killed_trainer_leaves_no_lock(half_way, tiny_recipe, tmp_path):
    trainer, folder, _ = half_way
    trainer.kill()
    trainer.wait()
    train(tiny_recipe, folder, 1)
    assert outcome(RunFolder(folder)) == outcome(train(tiny_recipe, tmp_path / "alone", 1))


def test_a_finished_run_that_is_trained_again_writes_nothing(tiny_recipe, tmp_path):
    run = train(tiny_recipe, tmp_path / "run", 1)
    before, changed = content(run.folder), run.folder.stat().st_mtime_ns
    again = megalith("train", run.folder, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == json.loads(run.summary.read_text())
    assert content(run.folder) == before
    assert run.folder.stat().st_mtime_ns == changed
    train(tiny_recipe, run.folder, 1)
    assert content(run.folder) == before
    assert content(train(tiny_recipe, run.folder, 2).folder) == before


@pytest.mark.parametrize("damage", ["file", "manifest"])
def test_a_run_goes_back_to_an_older_checkpoint_where_the_newest_is_damaged(tiny_recipe, tmp_path, damage):
    run = train(tiny_recipe, tmp_path / "run", 1)
    expected = outcome(run)
    run.summary.unlink()
    name = "dense.safetensors" if damage == "file" else "manifest.json"
    (run.checkpoints / "step-00000024" / name).write_bytes(b"")
    refused = megalith("train", run.folder)
    assert refused.returncode == 2
    assert f"{name} is damaged" in refused.stderr
    assert f"go back to step 20 with `megalith train {run.folder} --from-step 20`" in refused.stderr
    unknown = megalith("train", run.folder, "--from-step", 19)
    assert "has no checkpoint of step 19; it has: 20, 24." in unknown.stderr
    again = megalith("train", run.folder, "--from-step", 20, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["finished"]
    assert outcome(run) == expected


# Every rank says who it is, in a pipe that it then keeps open for as long as it lives.
LASTS = """
import os, signal
from megalith.cli import main
from megalith.train.learner.learner import Learner

take, steps = Learner.step, []

def step(*given):
    steps.append(0)
    if len(steps) == 8:
        pipe = os.open(os.environ["SAY_TO"], os.O_WRONLY)
        os.write(pipe, f"{os.getpid()}\\n".encode())
        signal.pause()
    return take(*given)

Learner.step = step
main()
"""


def test_ranks_end_with_a_killed_torchrun(tiny_recipe, tmp_path):
    script, folder, fifo = tmp_path / "lasts.py", tmp_path / "run", tmp_path / "fifo"
    script.write_text(LASTS)
    plan = f"sharding.plan={write_plan(tmp_path / 'plan.json', tiny_recipe, 2)}"
    os.mkfifo(fifo)
    pipe = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    launcher = subprocess.Popen(
        torchrun_command(2, script, "train", tiny_recipe, plan, "--out", folder),
        env={**os.environ, "OMP_NUM_THREADS": "1", "SAY_TO": str(fifo)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ended = os.pidfd_open(launcher.pid)
    ranks = []
    try:
        while len(ranks) < 2:
            found, _, _ = select.select([pipe, ended], [], [])
            assert pipe in found, "torchrun has ended before its ranks trained"
            ranks += os.read(pipe, 1000).decode().split()
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        # The end of the pipe comes when the last rank is gone; the limit only bounds a failure.
        found, _, _ = select.select([pipe], [], [], 600)
        assert found
        assert os.read(pipe, 1) == b"", "ranks live on"
    finally:
        launcher.kill()
        for rank in ranks:
            if Path(f"/proc/{rank}").exists():
                os.kill(int(rank), signal.SIGKILL)
        os.close(pipe)
        os.close(ended)
    undisturbed = train(tiny_recipe, tmp_path / "undisturbed", 2, plan)
    assert outcome(train(tiny_recipe, folder, 2, plan)) == outcome(undisturbed)
