"""What is remembered of the speed of a disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from megalith.hardware.disk import DiskSpeed, remember_speed, remembered_speeds, usual_speed

SPEED = DiskSpeed("io_uring", 60_000.0, 5e9, 1.9e9, 3e-6)


def remembered(folder: Path, engine: str) -> list[DiskSpeed]:
    return [measured.speed for measured in remembered_speeds(folder, engine)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "megalith" / "disks.json"


def test_a_speed_is_remembered_by_engine(tmp_path: Path) -> None:
    assert remembered(tmp_path, "io_uring") == []
    remember_speed(tmp_path, "io_uring", SPEED)
    assert remembered(tmp_path, "io_uring") == [SPEED]
    assert remembered(tmp_path, "threads") == []


def test_an_old_measurement_is_forgotten(tmp_path: Path) -> None:
    remember_speed(tmp_path, "io_uring", SPEED)
    assert remembered_speeds(tmp_path, "io_uring", max_age_seconds=-1.0) == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"0:io_uring": 3}', "\0"])
def test_a_damaged_file_is_as_good_as_none(content: str, cache: Path, tmp_path: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(content)
    assert remembered(tmp_path, "io_uring") == []
    remember_speed(tmp_path, "io_uring", SPEED)
    assert remembered(tmp_path, "io_uring") == [SPEED]


def test_an_entry_of_another_release_is_not_used(cache: Path, tmp_path: Path) -> None:
    remember_speed(tmp_path, "io_uring", SPEED)
    cache.write_text(cache.read_text().replace("reads_per_second", "operations"))
    assert remembered(tmp_path, "io_uring") == []


def test_the_last_measurements_are_kept_in_their_order(tmp_path: Path) -> None:
    for rate in range(1, 21):
        remember_speed(tmp_path, "io_uring", replace(SPEED, reads_per_second=float(rate)))
    assert [speed.reads_per_second for speed in remembered(tmp_path, "io_uring")] == list(range(5, 21))


def test_damaged_measurements_are_left_out(cache: Path, tmp_path: Path) -> None:
    remember_speed(tmp_path, "io_uring", SPEED)
    entries = json.loads(cache.read_text())
    (key,) = entries
    entries[key] = [3, None, {"measured_at": "today"}, *entries[key]]
    cache.write_text(json.dumps(entries))
    assert remembered(tmp_path, "io_uring") == [SPEED]


def test_one_slow_second_does_not_decide() -> None:
    speeds = [replace(SPEED, reads_per_second=rate) for rate in (100e3, 20e3, 110e3)]
    usual = usual_speed(speeds)
    assert usual.reads_per_second == 100e3
    assert usual.reads_range == (20e3, 110e3)
    assert usual_speed([SPEED]) == SPEED


def test_processes_share_a_disk() -> None:
    speed = DiskSpeed("io_uring", 60e3, 4e9, 2e9, 3e-6, (40e3, 80e3)).shared_by(2)
    assert speed == DiskSpeed("io_uring", 30e3, 2e9, 1e9, 3e-6, (20e3, 40e3))


def test_where_nothing_can_be_written_nothing_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    remember_speed(tmp_path, "io_uring", SPEED)
    assert remembered(tmp_path, "io_uring") == []
