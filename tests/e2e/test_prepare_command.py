"""`megalith data prepare` as a process: its output, errors, full disks, kills and signals; the real heads."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from commands import megalith, megalith_from_nothing, run, sentence_of, started, unwrapped
from forked import PATIENCE_SECONDS
from megalith.data.dataset import Dataset

SHARED = Path(__file__).parents[3] / "shared" / "data"
COMMAND = [sys.executable, "-m", "megalith", "data", "prepare"]
LINE = "\t".join(["1", *"3" * 13, *(f"{number:08x}" for number in range(26))]) + "\n"


prepare = partial(megalith, "data", "prepare")


@pytest.fixture
def train(tmp_path: Path) -> Path:
    path = tmp_path / "input" / "train.tsv"
    path.parent.mkdir(exist_ok=True)
    path.write_text(LINE * 1000)
    return path


def test_json_is_one_object_and_nothing_else(train: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = megalith_from_nothing("data", "prepare", "criteo", train, "--out", out, "--test", train, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["rows"] == 2000
    assert result["splits"]["test"]["rows"] == 1000
    assert result["ids"]["C1"] == 3
    assert Dataset(tmp_path / "out").split("train").click_rate == 1.0


def test_people_read_a_table(train: Path, tmp_path: Path) -> None:
    train.write_text(LINE * 10 + "bad\n")
    done = prepare("criteo", train, "--out", tmp_path / "out", "--max-bad-rows", 3)
    assert done.returncode == 0, done.stderr
    said = unwrapped(done.stdout)
    assert "10 rows in" in said
    assert "1 bad rows were left out:" in said
    assert f"{train}, line 11 has 1 fields instead of 40" in said


def assert_refused(done: subprocess.CompletedProcess[str], out: Path, message: str) -> None:
    assert message in sentence_of(done)
    assert not out.exists()
    assert not list(out.parent.glob(".*"))


def test_a_bad_row_is_one_sentence_and_exit_code_2(train: Path, tmp_path: Path) -> None:
    train.write_text(LINE * 10 + "bad\n")
    done = prepare("criteo", train, "--out", tmp_path / "out")
    assert_refused(done, tmp_path / "out", f"{train}, line 11 has 1 fields instead of 40; correct it or pass")


def allow_small_files_only() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def test_a_write_that_fails_leaves_nothing(train: Path, tmp_path: Path) -> None:
    train.write_text("".join(LINE.replace("\t3\t", f"\t{number * 7919}\t") for number in range(3000)))
    done = prepare("criteo", train, "--out", tmp_path / "out", first=allow_small_files_only)
    assert_refused(done, tmp_path / "out", "file size limit is reached")


def test_a_full_disk_leaves_nothing(train: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", disk], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs privileges that this user lacks")
    train.write_text("".join(LINE.replace("\t3\t", f"\t{number * 7919}\t") for number in range(20000)))
    try:
        for extra in ((), ("--memory", "1"), ("--hash-buckets", "1000000")):
            done = prepare("criteo", train, "--out", disk / "out", "--min-count", 1, *extra)
            assert_refused(done, disk / "out", f"while writing {disk / 'out'}; free space there")
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A preparation in the midst of its rows: it reads from a pipe whose end never comes."""
    pipe = tmp_path / "input" / "pipe.tsv"
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    out = tmp_path / "out"
    command = [*COMMAND, "criteo", str(pipe), "--out", str(out), "--hash-buckets", "100"]
    with started(command, stderr=subprocess.PIPE) as process, pipe.open("w") as end:
        # More than a pipe holds: once all is written the reader has taken rows.
        end.write(LINE * 1000)
        end.flush()
        yield process, out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cleans_up(waiting: tuple[subprocess.Popen[str], Path], number: int) -> None:
    process, out = waiting
    process.send_signal(number)
    assert process.wait(PATIENCE_SECONDS) not in (0, 2)
    assert list(out.parent.iterdir()) == [out.parent / "input"]


def test_a_kill_leaves_a_hidden_folder_that_the_next_run_clears(
    waiting: tuple[subprocess.Popen[str], Path], train: Path
) -> None:
    process, out = waiting
    process.kill()
    process.wait(PATIENCE_SECONDS)
    assert not out.exists()
    [left] = out.parent.glob(".*")
    assert left.name.startswith(".out.partial-")
    assert prepare("criteo", train, "--out", out).returncode == 0
    assert sorted(path.name for path in out.parent.iterdir()) == ["input", "out"]


def test_a_pipe_cannot_be_read_twice(tmp_path: Path) -> None:
    pipe = tmp_path / "input.tsv"
    os.mkfifo(pipe)
    done = prepare("criteo", pipe, "--out", tmp_path / "out")
    assert_refused(done, tmp_path / "out", "is a pipe")


@pytest.mark.parametrize(
    ("source", "file", "rows", "click_rate"),
    [
        ("criteo", "criteo/head_8000.tsv", 8000, 0.2160),
        ("avazu", "avazu/head_9000.csv", 8999, 0.1737),
        ("libfm", "frappe/train.libfm", 57722, 0.3303),
    ],
)
def test_the_real_heads_are_read(
    tmp_path: Path, source: str, file: str, rows: int, click_rate: float
) -> None:
    if not (SHARED / file).exists():
        pytest.skip(f"the real data is not there: {SHARED / file}")
    done = prepare(source, SHARED / file, "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    split = json.loads(done.stdout)["splits"]["train"]
    assert split["rows"] == rows
    assert split["click_rate"] == pytest.approx(click_rate, abs=1e-4)


def test_preparing_never_imports_torch(train: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from megalith.data.prepare import PrepareOptions, prepare;"
        "prepare(PrepareOptions(source='criteo', files=(Path(sys.argv[1]),), out=Path(sys.argv[2])));"
        "assert 'torch' not in sys.modules"
    )
    done = run([sys.executable, "-c", script, train, tmp_path / "out"])
    assert done.returncode == 0, done.stderr
