from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from megalith import __version__
from megalith.bench.runner import Timing, interleave, result, run_process, save_result, versions
from megalith.core.errors import MegalithError


def test_candidates_take_turns_and_every_second_round_goes_backwards() -> None:
    calls: list[str] = []
    candidates = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    timings = interleave(candidates, repeats=2, warmup=1)
    assert "".join(calls) == "abc" + "cba" + "abc"
    assert {name: len(timing.seconds) for name, timing in timings.items()} == {"a": 2, "b": 2, "c": 2}
    assert {len(timing.cpu_seconds) for timing in timings.values()} == {2}


def test_a_timing_gives_median_spread_and_rate() -> None:
    timing = Timing((1.0, 4.0, 2.0))
    assert timing.median == 2.0
    assert timing.spread == 1.5
    assert timing.rate(10) == 5.0
    assert json.loads(json.dumps(timing.to_dict()))["seconds"] == [1.0, 4.0, 2.0]


def test_a_process_reports_its_own_memory_and_output() -> None:
    ballast = bytearray(b"x") * (200 << 20)
    small = run_process([sys.executable, "-S", "-c", "print('done')"])
    large = run_process([sys.executable, "-S", "-c", "x = bytearray(b'x') * (100 << 20)"])
    assert small.stdout == "done\n"
    assert small.seconds > 0
    assert small.cpu_seconds > 0
    # Ours, which is larger, must not be counted.
    assert small.max_resident_bytes < 60 << 20 < 100 << 20 < large.max_resident_bytes < len(ballast)


def test_a_process_that_fails_is_named() -> None:
    with pytest.raises(MegalithError, match="ended with code 3"):
        run_process([sys.executable, "-c", "raise SystemExit(3)"])


def test_a_result_holds_machine_and_versions(tmp_path: Path) -> None:
    content = result("suite", {"rows": 5}, {"rate": 1.5}, tmp_path)
    save_result(tmp_path / "results" / "one.json", content)
    loaded = json.loads((tmp_path / "results" / "one.json").read_text())
    assert loaded == content
    assert loaded["machine"]["cores"] >= 1
    assert loaded["versions"]["megalith"] == versions()["megalith"] == __version__
    assert loaded["versions"]["torch"]
