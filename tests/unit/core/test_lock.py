"""Locks on folders: held by one process, free as soon as that ends, and gone without a trace."""

import os
import re
import subprocess
import sys

import pytest

from megalith.core.errors import StorageError
from megalith.core.lock import FolderLock

HOLDER = """
import sys
from pathlib import Path
from megalith.core.lock import FolderLock

lock = FolderLock(Path(sys.argv[1]), "is in use")
lock.acquire()
print("held", flush=True)
sys.stdin.readline()
lock.release()
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_the_process_that_holds_it_is_named(holder, tmp_path):
    with pytest.raises(StorageError, match=re.escape(f"{tmp_path} is in use by process {holder.pid};")):
        FolderLock(tmp_path, "is in use").acquire()


def test_it_is_free_once_released(holder, tmp_path):
    holder.communicate("\n")
    assert list(tmp_path.iterdir()) == []
    lock = FolderLock(tmp_path, "is in use")
    lock.acquire()
    lock.release()


def test_it_is_free_once_its_holder_is_killed(holder, tmp_path):
    holder.kill()
    holder.wait()
    assert (tmp_path / ".lock").exists()
    lock = FolderLock(tmp_path, "is in use")
    lock.acquire()
    assert str(os.getpid()) in (tmp_path / ".lock").read_text()
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_its_holder_may_take_it_again(tmp_path):
    lock, other = FolderLock(tmp_path, "is in use"), FolderLock(tmp_path, "is in use")
    lock.acquire()
    lock.acquire()
    lock.release()
    with pytest.raises(StorageError, match=f"process {os.getpid()}"):
        other.acquire()
    lock.release()
    other.acquire()
    other.release()


@pytest.mark.parametrize("content", ["", "null", "[]", "{}", "x" * 5000])
def test_a_lock_file_that_says_nothing_names_nobody(holder, tmp_path, content):
    (tmp_path / ".lock").write_text(content)
    with pytest.raises(StorageError, match="by another process;"):
        FolderLock(tmp_path, "is in use").acquire()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="stands in the way"):
        FolderLock(tmp_path / "file" / "run", "is in use").acquire()
