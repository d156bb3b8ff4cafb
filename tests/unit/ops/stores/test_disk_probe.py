"""Measuring a disk: rates of both engines, and nothing left behind."""

import errno
import os

import pytest

from megalith.core.errors import StorageError
from megalith.ops.stores import disk_probe
from megalith.ops.stores.disk_probe import disk_speed, measure_disk

SMALL = 4 << 20


@pytest.mark.parametrize("engine", ["io_uring", "threads"])
def test_rates_are_measured_and_the_file_is_removed(engine, tmp_path):
    speed = measure_disk(tmp_path, engine, seconds=0.01, file_bytes=SMALL)
    assert speed.engine in (engine, "threads")
    assert min(speed.reads_per_second, speed.read_bytes_per_second, speed.write_bytes_per_second) > 0
    assert not list(tmp_path.iterdir())


def test_a_disk_is_measured_again_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(disk_probe, "FILE_BYTES", SMALL)
    first = disk_speed(tmp_path, "threads")
    assert disk_speed(tmp_path, "threads") == first
    assert first.reads_range is None
    monkeypatch.setattr(disk_probe, "_APART_SECONDS", -1.0)
    second = disk_speed(tmp_path, "threads")
    slow, quick = second.reads_range
    assert slow <= second.reads_per_second <= quick
    assert first.reads_per_second in (slow, quick)


def test_too_little_room_is_one_sentence(tmp_path):
    with pytest.raises(StorageError, match=r"MiB free, and measuring its disk takes .*; free some\."):
        measure_disk(tmp_path, file_bytes=1 << 60)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_there_is_named(tmp_path):
    transfers = disk_probe._Transfers(SMALL, 4096, 1, False, False, True, 8)
    with pytest.raises(StorageError, match=rf"absent could not be opened: {os.strerror(errno.ENOENT)}"):
        disk_probe._move(tmp_path / "absent", transfers)


def test_a_file_that_is_too_short_is_named(tmp_path):
    (tmp_path / "short").write_bytes(bytes(8192))
    transfers = disk_probe._Transfers(SMALL, 4096, 500, False, False, True, 8)
    with pytest.raises(StorageError, match=r"short could not be read at byte \d+: the file ends"):
        disk_probe._move(tmp_path / "short", transfers)
