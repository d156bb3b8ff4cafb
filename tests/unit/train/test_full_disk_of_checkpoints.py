"""A disk that fills while a run saves: one sentence, and the last good checkpoint stays."""

import resource
import signal
from functools import partial

import pytest

from commands import megalith
from megalith.checkpoint.store import CheckpointStore

KIB = 1 << 10


def limit_files(size):
    """No file may grow beyond `size`: the system refuses writes as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("background", ["yes", "no"])
def test_a_disk_that_fills_under_checkpoints_is_one_sentence(recipe, tmp_path, background):
    run = tmp_path / "run"
    words = ["train", recipe, "--out", run, f"train.background_checkpoints={background}", "train.trace=no"]
    # How large the largest file of a checkpoint becomes where there is room.
    first = megalith(*words, "train.steps=10")
    assert first.returncode == 0, first.stderr
    size = max(path.stat().st_size for path in run.rglob("*.safetensors"))
    full = megalith(*words, "--overwrite", first=partial(limit_files, size - KIB))
    assert full.returncode == 2, full.stderr
    assert "Traceback" not in full.stderr
    said = [line for line in full.stderr.splitlines() if line.startswith("megalith: ")]
    assert len(said) == 1
    assert "The disk is full" in said[0]
    assert "step-00000010" in said[0]
    assert CheckpointStore(run / "checkpoints").steps() == []
    assert list((run / "checkpoints").glob(".*")) == []
