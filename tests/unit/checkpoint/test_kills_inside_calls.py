"""A run with row pools is killed in the middle of writes, flushes, compactions and renames, and resumes.

The trace of each run proves what it was killed in: see kill_points.py.
"""

import signal
from collections import Counter
from pathlib import Path

import pytest

from kill_points import WRITES, compile_shim, some_calls, spread
from killed_runs import killed_runs

RUN = Path(__file__).with_name("trained_pool_run.py")
ENGINES = ("io_uring", "threads")
POINTS = {"flush": 5, "compaction": 5, "write of rows": 4, "rename": 4, "checkpoint": 6}
"""How often a run is killed in each kind of work."""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    library = compile_shim(tmp_path_factory.mktemp("shim"))
    if library is None:
        pytest.skip("there is no C compiler")
    return library


@pytest.fixture(scope="module")
def undisturbed(shim, tmp_path_factory):
    """By engine the digest of all rows at the end, and every call."""
    folder = tmp_path_factory.mktemp("undisturbed") / "runs"
    ends = killed_runs(shim, RUN, folder, [(0, engine, False) for engine in ENGINES])
    results = [answer["first"]["result"]["rows"] for answer, _ in ends]
    assert len(set(results)) == 1
    return {engine: (results[0], calls) for engine, (_, calls) in zip(ENGINES, ends, strict=True)}


def call_of_death(answer, calls, point, expected):
    """The call at which a run died, whose resumption ended where an undisturbed one does."""
    assert answer["first"]["code"] == -signal.SIGKILL, (point, answer)
    # Other threads may begin calls until the process is gone.
    last = calls[point[0] - 1]
    assert last.number == point[0]
    assert answer["second"]["code"] == 0, (point, last)
    resumed = answer["second"]["result"]
    assert resumed == {"rows": expected, "from": max(answer["steps"], default=0), "left": []}, (point, last)
    return last


@pytest.mark.parametrize("engine", ["io_uring", pytest.param("threads", marks=pytest.mark.slow)])
def test_a_run_killed_anywhere_resumes_to_the_same_rows(shim, undisturbed, tmp_path, engine):
    expected, calls = undisturbed[engine]
    points = [(number, engine, False) for kind in POINTS for number in some_calls(calls, kind, POINTS[kind])]
    assert len(points) >= 20
    killed_in, cut = Counter(), 0
    for point, (answer, trace) in zip(points, killed_runs(shim, RUN, tmp_path / "runs", points), strict=True):
        last = call_of_death(answer, trace, point, expected)
        killed_in[last.kind] += 1
        cut += last.name in WRITES
    # Threads finish their writes in any order: which call comes at a number may differ between runs.
    in_order = any(call.name == "io_uring" for call in calls)
    assert all(killed_in[kind] >= (POINTS[kind] if in_order else 1) for kind in POINTS), killed_in
    assert cut >= (5 if in_order else 1)


def test_a_run_that_saves_in_the_background_resumes_as_well(shim, undisturbed, tmp_path):
    expected, calls = undisturbed["io_uring"]
    points = [(number, "io_uring", True) for number in spread(range(100, len(calls)), 10)]
    for point, (answer, trace) in zip(points, killed_runs(shim, RUN, tmp_path / "runs", points), strict=True):
        call_of_death(answer, trace, point, expected)


@pytest.mark.slow
def test_kills_all_along_a_run(shim, undisturbed, tmp_path):
    expected, calls = undisturbed["io_uring"]
    points = [(number, "io_uring", False) for number in spread(range(1, len(calls)), 120)]
    for point, (answer, trace) in zip(points, killed_runs(shim, RUN, tmp_path / "runs", points), strict=True):
        call_of_death(answer, trace, point, expected)
