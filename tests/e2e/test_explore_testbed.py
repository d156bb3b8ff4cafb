"""benchmarks/explore_testbed as a user runs it: real steps where that can be, and nothing left behind."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTBED = Path(__file__).parents[2] / "benchmarks" / "explore_testbed"
COMMAND = [sys.executable, str(TESTBED)]


def namespaces() -> str:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return "\n".join(line for line in listed.splitlines() if line.startswith("mltb-"))


@pytest.fixture
def root_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Skips where namespaces cannot be made; otherwise one test at a time has them."""
    if os.geteuid() != 0:
        pytest.skip("The testbed makes network namespaces, which needs root.")
    if shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("The testbed needs ip and tc of iproute2.")
    shared = tmp_path_factory.getbasetemp().parent / "explore-testbed.lock"
    with shared.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(["ip", "netns", "add", "mltb-test"], capture_output=True, check=False)
        if made.returncode:
            pytest.skip("This system refuses new network namespaces.")
        yield


def test_an_unknown_setting_is_one_sentence() -> None:
    done = subprocess.run([*COMMAND, "--only", "by pigeon"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("--only by pigeon is in no setting's name; there are: 1f1b, near; ")


def test_gloo_pays_two_latencies_a_message() -> None:
    check = [sys.executable, "-m", "doctest", str(TESTBED / "gloo_ring.py")]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.stdout == "", done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("root_alone")
def test_steps_run_between_buildings_and_nothing_is_left(tmp_path: Path) -> None:
    out = tmp_path / "testbed.json"
    wanted = ["--only", "zb-h1", "--only", "overlapped", "--only", "hierarchical", "--steps", "1"]
    done = subprocess.run(
        [*COMMAND, *wanted, "--json", "--out", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert json.loads(out.read_text()) == content
    assert list(content["results"]) == ["zb-h1, 20 ms", "overlapped, 5 ms", "hierarchical of 4, 20 ms"]
    for row in content["results"].values():
        # How near they are is for a quiet machine to say; that both are of the same kind can be said here.
        assert row["setting"]["delay_seconds"] < row["measured_seconds"]
        assert row["setting"]["delay_seconds"] < row["predicted_seconds"]
    # The namespace that the fixture made stands for what a killed run leaves: it is gone too.
    assert namespaces() == ""


@pytest.mark.slow
@pytest.mark.usefixtures("root_alone")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_nothing(sent: signal.Signals, code: int) -> None:
    command = [*COMMAND, "--only", "1f1b, near", "--only", "gpipe, near", "--steps", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        # The first setting is through and the second is under way.
        assert process.stderr.readline().startswith("1f1b, near: ")
        assert namespaces() != ""
        process.send_signal(sent)
        assert process.wait() == code
    assert namespaces() == ""
