"""A disk that fills under a row pool, wherever the run is: one sentence, and with room it goes on."""

from collections import Counter
from pathlib import Path

import pytest
from small_disk import CannotMountError, small_disk

from kill_points import WRITES, compile_shim
from killed_runs import killed_runs

HERE = Path(__file__).parent
POOL_RUN = HERE.parent / "unit" / "checkpoint" / "trained_pool_run.py"
SIZES = range(160 << 10, 1200 << 10, 20 << 10)


@pytest.mark.parametrize("engine", ["io_uring", pytest.param("threads", marks=pytest.mark.slow)])
def test_a_full_disk_is_one_sentence_and_with_room_the_run_goes_on(tmp_path, engine, monkeypatch):
    shim = compile_shim(tmp_path)
    if shim is None:
        pytest.skip("there is no C compiler")
    monkeypatch.setenv("PYTHONPATH", str(POOL_RUN.parent))
    ((undisturbed, _),) = killed_runs(shim, POOL_RUN, tmp_path / "undisturbed", [(0, engine, False)])
    expected = undisturbed["first"]["result"]["rows"]
    try:
        with small_disk(tmp_path / "disk", 1 << 30) as disk:
            wrapper = "nsenter", f"--mount=/proc/{disk.namespace}/ns/mnt"
            points = [(-1, str(disk.folder), size, engine) for size in SIZES]
            module = HERE / "full_disk_run.py"
            answers = killed_runs(shim, module, tmp_path / "runs", points, wrapper, disk.folder)
    except CannotMountError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    full_in = Counter()
    for (_, _, size, _), (answer, calls) in zip(points, answers, strict=True):
        first, second = answer["first"]["result"], answer["second"]["result"]
        assert answer["first"]["code"] == answer["second"]["code"] == 0, size
        assert second["rows"] == expected, size
        assert second["from"] == max(answer["steps"], default=0)
        assert second["left"] == []
        if "error" in first:
            assert first["kind"] == "StorageError", first
            assert "\n" not in first["error"]
            assert str(disk.folder) in first["error"]
            assert "No space left on device" in first["error"] or "The disk is full" in first["error"]
            full_in[failed_in(first["error"], calls)] += 1
        else:
            assert first["rows"] == expected
            full_in["nothing"] += 1
    # Threads write in any order: what is on disk when it is full differs between runs.
    in_order = any(call.name == "io_uring" for _, calls in answers for call in calls)
    kinds = ("write of rows", "flush", "compaction", "checkpoint", "nothing") if in_order else ("nothing",)
    assert all(full_in[kind] for kind in kinds), full_in


def failed_in(error, calls):
    """What the run was doing when it began the write that failed."""
    name = error.partition(" could not be written")[0].rpartition("/")[2]
    of_rows = [call.kind for call in calls if call.path.endswith(name) and call.name in WRITES]
    return of_rows[-1] if name.endswith(".rows") else "checkpoint"
