"""A disk that fills under what a run writes is one sentence that names the file.

`/dev/full` takes no byte, as a full disk does; where a name is not known beforehand a file size limit stands
in.
"""

import subprocess
import sys

import pytest

FULL = "The disk is full (or a quota or file size limit is reached) while writing {}; free space there"


@pytest.mark.parametrize("name", ["metrics.jsonl", "trace.jsonl", "trace.2.jsonl"])
def test_a_log_that_cannot_grow_ends_training_with_one_sentence(command, recipe, tmp_path, name):
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to("/dev/full")
    done = command("train", recipe, "train.log_every=1", "--out", run)
    assert FULL.format(run / name) in done.sentence


def test_a_log_that_cannot_grow_stops_a_resumed_run(command, recipe, tmp_path):
    run = tmp_path / "run"
    assert command("train", recipe, "train.steps=2", "--out", run).code == 0
    # Killed before it wrote how it ended.
    (run / "summary.json").unlink()
    (run / "trace.jsonl").unlink()
    (run / "trace.jsonl").symlink_to("/dev/full")
    assert FULL.format(run / "trace.jsonl") in command("train", run).sentence


def limited(code, most_bytes):
    """Runs code in a process whose files may not grow beyond `most_bytes`."""
    limit = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({most_bytes}, {most_bytes}))\n"
    return subprocess.run([sys.executable, "-c", limit + code], capture_output=True, text=True)


def test_events_that_cannot_grow_are_one_sentence(tmp_path):
    done = limited(
        f"""
from pathlib import Path
from megalith.core.errors import StorageError
from megalith.train.run.tensorboard import EventFile
events = EventFile(Path({str(tmp_path)!r}))
try:
    for step in range(100):
        events.add_scalars([("train/loss", 0.5)], step)
except StorageError as error:
    print(error)
""",
        500,
    )
    (path,) = tmp_path.iterdir()
    assert done.stdout.startswith(FULL.format(path)), done.stderr
    assert done.stderr == ""


def test_tensorboard_reads_the_events_of_every_session(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from megalith.train.run.tensorboard import EventFile

    for session in range(2):
        events = EventFile(tmp_path)
        for step in (10 * session, 10 * session + 5):
            events.add_scalars([("train/loss", step / 4), ("train/window/ne", 1.0)], step)
    found = []
    for path in sorted(tmp_path.iterdir()):
        reader = EventAccumulator(str(path)).Reload()
        assert reader.Tags()["scalars"] == ["train/loss", "train/window/ne"]
        found += [(one.step, one.value) for one in reader.Scalars("train/loss")]
    assert found == [(0, 0.0), (5, 1.25), (10, 2.5), (15, 3.75)]


def test_a_page_and_a_plan_that_cannot_be_written(trained, recipe, tmp_path):
    main = "import sys\nfrom megalith.cli import main\nsys.argv = {!r}\nmain()\n"
    for arguments, target in (
        (["report", str(trained), "--out"], tmp_path / "page.html"),
        (["plan", str(recipe), "--world-size", "2", "--seconds", "0.1", "--out"], tmp_path / "plan.json"),
        (["data", "synth", "criteo", "--rows", "3000", "--threads", "1", "--out"], tmp_path / "data"),
    ):
        done = limited(main.format(["megalith", *arguments, str(target)]), 4000)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("megalith: " + FULL.format(target)), done.stderr
        assert not target.exists()
