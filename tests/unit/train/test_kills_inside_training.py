"""`megalith train` with tables on disk, killed inside writes, flushes, compactions and renames: the run that
unlimited memory gives. The traces prove what each run was killed in."""

import json
import signal
from collections import Counter
from pathlib import Path

import pytest
from small_recipes import outcome, trained

from kill_points import compile_shim, some_calls, spread
from killed_runs import killed_runs

RUN = Path(__file__).with_name("killed_training.py")
POINTS = {"flush": 6, "compaction": 6, "write of rows": 4, "rename": 6, "checkpoint": 4}
TIGHT = "memory={dram: 192KiB}"


@pytest.fixture
def shim(tmp_path):
    library = compile_shim(tmp_path)
    if library is None:
        pytest.skip("there is no C compiler")
    return library


def ends(shim, folder, points):
    """The calls at which runs died, or None, and what they and those that went on reported."""
    found = []
    for (at, *_), (answer, calls) in zip(points, killed_runs(shim, RUN, folder, points), strict=True):
        assert answer["first"]["code"] == (-signal.SIGKILL if at else 0)
        last = answer["second"] if at else answer["first"]
        assert last["code"] == 0
        found.append((calls[at - 1] if at else None, last["result"], calls))
    return found


@pytest.mark.slow
def test_training_killed_inside_calls_reports_what_unlimited_memory_does(shim, recipe, tmp_path, whole):
    expected = json.loads(json.dumps(outcome(whole)))
    settings = str(recipe), TIGHT, "train.pipeline=0"
    ((_, result, calls),) = ends(shim, tmp_path / "undisturbed", [(0, *settings)])
    assert result == expected
    points = [
        (number, *settings) for kind, count in POINTS.items() for number in some_calls(calls, kind, count)
    ]
    assert len(points) >= 20
    killed_in = Counter()
    for call, result, _ in ends(shim, tmp_path / "runs", points):
        assert result == expected, call
        killed_in[call.kind] += 1
    in_order = any(call.name == "io_uring" for call in calls)
    assert all(killed_in[kind] >= (count if in_order else 1) for kind, count in POINTS.items()), killed_in


@pytest.mark.slow
def test_training_with_batches_ahead_and_saves_in_the_background_is_killed_as_well(
    shim, recipe, tmp_path, whole
):
    expected = json.loads(json.dumps(outcome(whole)))
    settings = str(recipe), TIGHT, "train.pipeline=2", "train.background_checkpoints=true"
    points = [(number, *settings) for number in spread(range(50, 6000), 8)]
    for call, result, _ in ends(shim, tmp_path / "runs", points):
        assert result == expected, call


@pytest.mark.slow
def test_training_with_adaptive_chunks_on_disk_is_killed_as_well(shim, recipe, tmp_path):
    shrunk = "adaptive={ratio: 4, interval: 4, warm_up: 8, chunk: 1, end: 0.4, gamma: 0.95}"
    expected = json.loads(json.dumps(outcome(trained(recipe, tmp_path / "in-memory", shrunk))))
    settings = str(recipe), shrunk, "memory={dram: 48KiB}", "train.pipeline=2"
    ((_, result, calls),) = ends(shim, tmp_path / "undisturbed", [(0, *settings)])
    assert result == expected
    written = [number for number, call in enumerate(calls, start=1) if call.path.endswith(".rows")]
    assert len(written) > 50
    points = [(number, *settings) for number in (*spread(written, 6), *some_calls(calls, "checkpoint", 2))]
    for call, result, _ in ends(shim, tmp_path / "runs", points):
        assert result == expected, call
