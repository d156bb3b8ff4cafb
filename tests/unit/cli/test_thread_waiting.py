"""Threads sleep while they wait where other programs take the cores, unless the user chose otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megalith.cli import thread_waiting
from megalith.cli.thread_waiting import POLICY, choose_waiting, is_busy


@pytest.mark.parametrize(
    ("minute", "others", "busy"),
    [
        (4.0, 3, True),
        (4.0, 2, True),
        # Our own command before this one made the average.
        (4.0, 0, False),
        # A burst of a moment.
        (0.5, 6, False),
        (2.5, 2, False),
    ],
)
def test_a_machine_is_busy_now_and_for_a_minute(minute: float, others: int, busy: bool) -> None:
    assert is_busy(minute, others, cores=2) is busy


@pytest.mark.parametrize("own", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_the_user_chose_stands(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_waiting, "is_busy", lambda *_: True)
    environ = {own: "5"}
    choose_waiting(environ)
    assert environ == {own: "5"}


@pytest.mark.parametrize(("busy", "chosen"), [(True, {POLICY: "passive"}), (False, {})])
def test_the_policy_follows_the_load(busy: bool, chosen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/proc/loadavg").exists():
        pytest.skip("this system does not say how busy it is")
    monkeypatch.setattr(thread_waiting, "is_busy", lambda *_: busy)
    environ: dict[str, str] = {}
    choose_waiting(environ)
    assert environ == chosen


def test_it_is_chosen_before_torch_is_there() -> None:
    """The library of threads reads its policy when it is loaded."""
    code = (
        "import sys\n"
        "from megalith.cli import thread_waiting\n"
        "chosen = thread_waiting.choose_waiting\n"
        "thread_waiting.choose_waiting = lambda: print('torch' in sys.modules) or chosen()\n"
        "sys.argv = ['megalith', '--version']\n"
        "from megalith.cli import main\n"
        "main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[0] == "False"
