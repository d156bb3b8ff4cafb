"""`megalith demo` and `megalith doctor` as a newcomer runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import megalith, megalith_from_nothing, sentence_of, unwrapped

ROWS = "20000"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_demo_makes_a_report_and_runs_again_in_its_own_folder(tmp_path: Path) -> None:
    first = megalith_from_nothing("demo", "--rows", ROWS, "--json")
    assert first.returncode == 0, first.stderr
    result = json.loads(first.stdout)
    assert list(result["steps"]) == ["synth", "stats", "train", "eval", "report"]
    assert result["steps"]["eval"]["split"] == "test"
    assert result["steps"]["eval"]["ne"] > result["steps"]["eval"]["best_ne"]
    page = tmp_path / result["report"]
    assert page.stat().st_size > 1_000_000
    page.write_text("old")
    again = megalith("demo", "--rows", ROWS)
    assert again.returncode == 0, again.stderr
    assert page.stat().st_size > 1_000_000
    # Every step is shown as the command that it is.
    for command in ("data synth criteo", "data stats", "train demo", "eval demo/run", "report demo/run"):
        assert f"$ megalith {command}" in unwrapped(again.stdout)
    assert "best possible" in unwrapped(again.stdout)


@pytest.mark.slow
def test_the_full_demo_ends_with_one_page_of_all(tmp_path: Path) -> None:
    done = megalith_from_nothing("demo", "--full", "--rows", "200000", "--json")
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout)["steps"]
    assert steps["train-disk"]["tiers"]["hit_rate"] < 1
    assert steps["eval-disk"]["log_loss"] == steps["eval"]["log_loss"]
    assert steps["train-small"]["adaptive"]["ratio"] > 15
    assert steps["export"]["gate"]["ne_loss"] <= 0.01
    assert steps["loadtest"]["answers"] > 0
    assert steps["loadtest"]["failures"] == {}
    page = (tmp_path / "demo" / "report.html").read_text()
    for command in ("megalith train demo", "megalith export demo/small", "megalith loadtest"):
        assert command in page
    assert "the same bits as in memory" in page
    assert "Live dims by table" in page


def test_the_demo_leaves_a_folder_that_it_did_not_make_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    assert "no demo made it" in sentence_of(megalith("demo", "--out", "mine"))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_the_doctor_finds_all_that_is_needed() -> None:
    found = megalith_from_nothing("doctor", "--json")
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    states = {check["name"]: check["state"] for check in result["checks"]}
    assert result["ok"]
    assert states["torch"] == states["native core"] == states["python"] == "ok"
    # What is optional and not there says how to get it.
    assert all(check["fix"] for check in result["checks"] if check["state"] != "ok")
    shown = megalith("doctor")
    assert shown.stdout.count("✓") >= 5


def test_a_report_of_what_is_not_a_run_is_one_sentence(tmp_path: Path) -> None:
    assert sentence_of(megalith("report", "nothing")) == (
        "megalith: nothing does not exist; name the folder of a run, as `megalith train` printed it."
    )
    assert list(tmp_path.iterdir()) == []
