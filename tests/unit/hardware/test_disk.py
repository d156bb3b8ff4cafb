"""What is remembered of the speed of a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from megalith.hardware.disk import DiskSpeed, remember_speed, remembered_speed

SPEED = DiskSpeed("io_uring", 60_000.0, 5e9, 1.9e9, 3e-6)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "megalith" / "disks.json"


def test_a_speed_is_remembered_by_engine(tmp_path: Path) -> None:
    assert remembered_speed(tmp_path, "io_uring") is None
    remember_speed(tmp_path, "io_uring", SPEED)
    assert remembered_speed(tmp_path, "io_uring") == SPEED
    assert remembered_speed(tmp_path, "threads") is None


def test_an_old_measurement_is_forgotten(tmp_path: Path) -> None:
    remember_speed(tmp_path, "io_uring", SPEED)
    assert remembered_speed(tmp_path, "io_uring", max_age_seconds=-1.0) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"0:io_uring": 3}', "\0"])
def test_a_damaged_file_is_as_good_as_none(content: str, cache: Path, tmp_path: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(content)
    assert remembered_speed(tmp_path, "io_uring") is None
    remember_speed(tmp_path, "io_uring", SPEED)
    assert remembered_speed(tmp_path, "io_uring") == SPEED


def test_an_entry_of_another_release_is_not_used(cache: Path, tmp_path: Path) -> None:
    remember_speed(tmp_path, "io_uring", SPEED)
    cache.write_text(cache.read_text().replace("reads_per_second", "operations"))
    assert remembered_speed(tmp_path, "io_uring") is None


def test_where_nothing_can_be_written_nothing_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    remember_speed(tmp_path, "io_uring", SPEED)
    assert remembered_speed(tmp_path, "io_uring") is None
