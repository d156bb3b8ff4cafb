"""`megalith demo` and `megalith doctor` as a newcomer runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROWS = "20000"


def megalith(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "megalith", *words], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_demo_makes_a_report_and_runs_again_in_its_own_folder(tmp_path: Path) -> None:
    first = megalith("demo", "--rows", ROWS, "--json", folder=tmp_path)
    assert first.returncode == 0, first.stderr
    result = json.loads(first.stdout)
    assert list(result["steps"]) == ["synth", "stats", "train", "eval", "report"]
    assert result["steps"]["eval"]["split"] == "test"
    assert result["steps"]["eval"]["ne"] > result["steps"]["eval"]["best_ne"]
    page = tmp_path / result["report"]
    assert page.stat().st_size > 1_000_000
    page.write_text("old")
    again = megalith("demo", "--rows", ROWS, folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert page.stat().st_size > 1_000_000
    # Every step is shown as the command that it is.
    for command in ("data synth criteo", "data stats", "train demo", "eval demo/run", "report demo/run"):
        assert f"$ megalith {command}" in again.stdout
    assert "best possible" in again.stdout


def test_the_demo_leaves_a_folder_that_it_did_not_make_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    refused = megalith("demo", "--out", "mine", folder=tmp_path)
    assert refused.returncode == 2
    assert "no demo made it" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_the_doctor_finds_all_that_is_needed(tmp_path: Path) -> None:
    found = megalith("doctor", "--json", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    states = {check["name"]: check["state"] for check in result["checks"]}
    assert result["ok"]
    assert states["torch"] == states["native core"] == states["python"] == "ok"
    # What is optional and not there says how to get it.
    assert all(check["fix"] for check in result["checks"] if check["state"] != "ok")
    shown = megalith("doctor", folder=tmp_path)
    assert shown.stdout.count("✓") >= 5


def test_a_report_of_what_is_not_a_run_is_one_sentence(tmp_path: Path) -> None:
    refused = megalith("report", "nothing", folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.strip().splitlines() == [
        "megalith: nothing does not exist; name the folder of a run, as `megalith train` printed it."
    ]
    assert list(tmp_path.iterdir()) == []
