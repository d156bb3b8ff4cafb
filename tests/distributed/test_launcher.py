"""The launcher of ranks and commands: fresh processes, failures with a name, nothing left behind."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from processes import on_ranks

from commands import megalith, run, started
from forked import run_forked

seen = []


def test_results_come_by_rank():
    assert on_ranks(3, dist.get_rank) == [0, 1, 2]


def leave_traces():
    before = len(seen), torch.initial_seed(), torch.get_num_threads(), os.environ.get("LEFT")
    seen.append(1)
    torch.manual_seed(dist.get_rank())
    os.environ["LEFT"] = "behind"
    return before


def test_nothing_of_one_call_reaches_the_next():
    first = on_ranks(2, leave_traces)
    assert on_ranks(2, leave_traces) == first == [(0, first[0][1], 1, None)] * 2


def raise_on_one():
    if dist.get_rank() == 1:
        raise KeyError("of rank 1")


def test_a_rank_that_raises_is_named_with_what_it_raised():
    with pytest.raises(AssertionError, match=r"rank 1: Traceback[\s\S]*KeyError: 'of rank 1'"):
        on_ranks(2, raise_on_one)


def die_on_one():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_rank_that_is_killed_is_named_with_its_signal():
    with pytest.raises(AssertionError, match="rank 1 ended without a result, with exit code -9"):
        on_ranks(2, die_on_one)


def surroundings():
    return Path.cwd(), os.environ["A_VALUE"]


def test_processes_are_where_the_test_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_VALUE", "of the test")
    assert run_forked(surroundings) == (tmp_path, "of the test")


def test_a_forked_command_ends_as_a_new_one_does(tmp_path):
    for arguments in (("--version",), ("eval", tmp_path), ("no-such-command",)):
        forked = megalith(*arguments)
        anew = run([sys.executable, "-m", "megalith", *arguments])
        assert (forked.returncode, forked.stdout) == (anew.returncode, anew.stdout)
        assert forked.stderr == anew.stderr.replace("python -m megalith", "megalith")


STARTER = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
from forked import Forked

def wait_for_ever(path):
    with open(path, "w") as file:
        print(os.getppid(), file=file, flush=True)
        signal.pause()

if __name__ == "__main__":
    with Forked(wait_for_ever, sys.argv[1]) as process:
        process.wait()
"""


def test_forked_processes_end_with_the_one_that_asked_for_them(tmp_path):
    pipe, script = tmp_path / "pipe", tmp_path / "starter.py"
    os.mkfifo(pipe)
    script.write_text(STARTER)
    with started([sys.executable, script, pipe, Path(__file__).parents[1]]) as starter, pipe.open() as end:
        assert end.readline()
        starter.kill()
        # The end of the pipe comes when the last process that holds it is gone.
        assert end.read() == ""


def test_what_a_command_has_started_ends_with_it(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with started(["bash", "-c", f"(echo here; exec sleep 86400) > {pipe} & wait"]), pipe.open() as end:
        assert end.readline() == "here\n"
        left = os.dup(end.fileno())
    with os.fdopen(left) as end:
        assert end.read() == ""
