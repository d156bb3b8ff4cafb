"""A run with row pools is killed in the middle of writes, flushes, compactions and renames, and resumes.

The trace of each run proves what it was killed in: see kill_points.py.
"""

import json
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from commands import run
from kill_points import WRITES, calls_of, compile_shim, environment

DRIVER = Path(__file__).with_name("trained_pool_run.py")
ENGINES = ("io_uring", "threads")
POINTS = {"flush": 5, "compaction": 5, "write of rows": 4, "rename": 4, "checkpoint": 6}
"""How often a run is killed in each kind of work."""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    library = compile_shim(tmp_path_factory.mktemp("shim"))
    if library is None:
        pytest.skip("there is no C compiler")
    return library


def outcomes(shim, folder, points):
    """What came of runs killed at (engine, background, call), and the trace of each."""
    folder.mkdir()
    variables = {**environment(shim, folder, folder / "unused"), "KILL_FOLDER": "", "OMP_NUM_THREADS": "1"}
    done = run([sys.executable, DRIVER, folder, json.dumps(points)], env=variables)
    assert done.returncode == 0, done.stderr
    return [
        (answer, calls_of(folder / f"{number}.trace"))
        for number, answer in enumerate(json.loads(done.stdout))
    ]


@pytest.fixture(scope="module")
def undisturbed(shim, tmp_path_factory):
    """By engine the digest of all rows at the end, and every call."""
    folder = tmp_path_factory.mktemp("undisturbed") / "runs"
    ends = outcomes(shim, folder, [(engine, False, 0) for engine in ENGINES])
    assert all(answer["code"] == 0 for answer, _ in ends)
    assert len({answer["rows"] for answer, _ in ends}) == 1
    return dict(zip(ENGINES, ends, strict=True))


def spread(items, count):
    """So many of them, evenly spread, the first and the last included."""
    return [items[(len(items) - 1) * number // max(1, count - 1)] for number in range(min(count, len(items)))]


def chosen(calls, kind):
    """Calls of a kind to die at, some of every name that there is."""
    by_name = {}
    for call in calls:
        if call.kind == kind:
            by_name.setdefault(call.name, []).append(call.number)
    return [number for same in by_name.values() for number in spread(same, -(-POINTS[kind] // len(by_name)))]


def call_of_death(answer, calls, point, expected):
    """The call at which a run died, whose resumption ended where an undisturbed one does."""
    assert answer["killed"]["code"] == -signal.SIGKILL, (point, answer)
    # Other threads may begin calls until the process is gone.
    last = calls[point[2] - 1]
    assert last.number == point[2]
    resumed = answer["resumed"]
    assert resumed["code"] == 0, (point, last)
    assert resumed["from"] == max(answer["steps"], default=0)
    assert resumed["rows"] == expected["rows"], (point, last)
    assert resumed["left"] == []
    return last


@pytest.mark.parametrize("engine", ["io_uring", pytest.param("threads", marks=pytest.mark.slow)])
def test_a_run_killed_anywhere_resumes_to_the_same_rows(shim, undisturbed, tmp_path, engine):
    expected, calls = undisturbed[engine]
    points = [(engine, False, number) for kind in POINTS for number in chosen(calls, kind)]
    assert len(points) >= 20
    killed_in, cut = Counter(), 0
    for point, (answer, trace) in zip(points, outcomes(shim, tmp_path / "runs", points), strict=True):
        last = call_of_death(answer, trace, point, expected)
        killed_in[last.kind] += 1
        cut += last.name in WRITES
    # Threads finish their writes in any order: which call comes at a number may differ between runs.
    in_order = engine == "io_uring"
    assert all(killed_in[kind] >= (POINTS[kind] if in_order else 1) for kind in POINTS), killed_in
    assert cut >= (5 if in_order else 1)


def test_a_run_that_saves_in_the_background_resumes_as_well(shim, undisturbed, tmp_path):
    expected, calls = undisturbed["io_uring"]
    points = [("io_uring", True, number) for number in spread(range(100, len(calls)), 10)]
    for point, (answer, trace) in zip(points, outcomes(shim, tmp_path / "runs", points), strict=True):
        call_of_death(answer, trace, point, expected)


@pytest.mark.slow
def test_kills_all_along_a_run(shim, undisturbed, tmp_path):
    expected, calls = undisturbed["io_uring"]
    points = [("io_uring", False, number) for number in spread(range(1, len(calls)), 120)]
    for point, (answer, trace) in zip(points, outcomes(shim, tmp_path / "runs", points), strict=True):
        call_of_death(answer, trace, point, expected)
