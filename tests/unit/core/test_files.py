"""Writes that are seen whole or not at all."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from megalith.core.errors import StorageError
from megalith.core.files import check_target, new_folder, remove_partials, write_atomic


def fill_and_fail(path):
    with new_folder(path, overwrite=True) as folder:
        (folder / "file").write_text("new")
        raise RuntimeError


def test_a_failing_block_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError):
        fill_and_fail(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_failing_block_keeps_the_old_folder(tmp_path):
    with new_folder(tmp_path / "out") as folder:
        (folder / "file").write_text("old")
    with pytest.raises(RuntimeError):
        fill_and_fail(tmp_path / "out")
    assert (tmp_path / "out" / "file").read_text() == "old"


def test_overwrite_replaces_the_folder(tmp_path):
    for text in ("old", "new"):
        with new_folder(tmp_path / "out", overwrite=True) as folder:
            (folder / text).write_text(text)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_existing_folder_is_refused(tmp_path):
    with pytest.raises(StorageError, match="exists already"), new_folder(tmp_path):
        pass


def test_a_full_disk_is_one_sentence_and_leaves_no_file(tmp_path):
    """A file size limit stands in for a full disk: the same failing write, with no disk to fill."""
    target = tmp_path / "file"
    code = f"""
import resource
from pathlib import Path
from megalith.core import files
from megalith.core.errors import StorageError
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    files.write_atomic(Path({str(target)!r}), b"x" * 100_000)
except StorageError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "The disk is full" in result.stdout
    assert str(target) in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_kill_while_filling_leaves_only_what_the_next_run_clears(tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from megalith.core.files import new_folder
with new_folder(Path({str(tmp_path / "out")!r})) as folder:
    (folder / "half").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert result.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    remove_partials(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_device_or_a_pipe_is_written_to_and_never_replaced(tmp_path):
    # A link, so that a mistake here would replace that and not the device itself.
    device, pipe = tmp_path / "device", tmp_path / "pipe"
    device.symlink_to("/dev/null")
    write_atomic(device, "one")
    assert device.is_symlink()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(pipe, "one")
    check_target(pipe)
    assert os.read(reader, 100) == b"one"
    os.close(reader)
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["device", "pipe"]


def test_a_folder_never_replaces_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageError, match="is a file"):
        fill_and_fail(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_error_about_a_file_that_is_read_does_not_blame_the_one_that_is_written(tmp_path):
    with pytest.raises(FileNotFoundError), new_folder(tmp_path / "out"):
        (tmp_path / "input").read_text()
    with pytest.raises(StorageError, match="out"), new_folder(tmp_path / "out") as folder:
        (folder / "missing" / "file").write_text("")


def test_what_cannot_be_made_there_is_named(tmp_path):
    for path in (Path("/proc/x"), Path("/proc/x/y"), tmp_path / ("x" * 300), Path("/dev/null/x")):
        for write, *content in ((write_atomic, ""), (check_target,), (fill_and_fail,)):
            with pytest.raises(StorageError) as refusal:
                write(path, *content)
            assert str(path) in str(refusal.value)


def test_write_atomic_replaces_and_makes_parents(tmp_path):
    path: Path = tmp_path / "a" / "b"
    write_atomic(path, "one")
    write_atomic(path, b"two")
    assert path.read_text() == "two"
    assert [one.name for one in path.parent.iterdir()] == ["b"]
