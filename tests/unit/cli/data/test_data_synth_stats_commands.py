"""`megalith data synth` and `megalith data stats` as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import megalith


def test_synth_then_stats(tmp_path: Path) -> None:
    out = tmp_path / "data"
    made = megalith(
        "data", "synth", "criteo", "--rows", "2000", "--out", str(out), "--multi-hot", "1", "--json"
    )
    assert made.returncode == 0, made.stderr
    splits = json.loads(made.stdout)["splits"]
    assert {name: split["rows"] for name, split in splits.items()} == {
        "train": 2000,
        "valid": 200,
        "test": 200,
    }
    measured = megalith("data", "stats", str(out), "--split", "test", "--json", "--save")
    assert measured.returncode == 0, measured.stderr
    statistics = json.loads(measured.stdout)
    assert statistics["rows"] == 200
    assert statistics["click_rate"] == pytest.approx(splits["test"]["click_rate"])
    assert statistics["best_log_loss"] == splits["test"]["best_log_loss"]
    assert json.loads((out / "statistics.json").read_text()) == statistics
    table = megalith("data", "stats", str(out))
    assert table.returncode == 0
    assert "C26" in table.stdout
    assert "longest" in table.stdout


def test_a_tail_is_asked_for_by_a_switch(tmp_path: Path) -> None:
    best = {}
    for name, switch in (("default", []), ("tail", ["--tail"])):
        arguments = ("--rows", "2000", "--scale", "0.1", "--out", str(tmp_path / name), "--json", *switch)
        made = megalith("data", "synth", "criteo", *arguments)
        assert made.returncode == 0, made.stderr
        best[name] = json.loads(made.stdout)["splits"]["train"]["best_log_loss"]
    # Whoever knows the effects of rare ids predicts better.
    assert best["tail"] < best["default"] - 0.02
    assert "Rare ids" in megalith("data", "synth", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rows", "100", "--scale", "huge"], "--scale"),
        (["--rows", "100", "--scale", "nan"], "--scale"),
        (["--rows", "0"], "--rows"),
        (["--rows", "-5"], "--rows"),
        (["--rows", "100", "--drift", "nan"], "--drift"),
        (["--rows", "100", "--format", "text", "--multi-hot", "1"], "--multi-hot"),
    ],
)
def test_wrong_arguments_get_one_sentence_and_leave_nothing(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    result = megalith("data", "synth", "avazu", "--out", str(tmp_path / "out"), *arguments)
    assert result.returncode == 2
    sentences = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(sentences) == 1
    assert said in sentences[0]
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    result = megalith("data", "synth", "avazu", "--rows", "10", "--out", str(tmp_path / "out"))
    assert result.returncode == 2
    assert "--overwrite" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_stats_of_raw_text_says_to_prepare_it(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("1\t2\n")
    result = megalith("data", "stats", str(tmp_path / "train.tsv"))
    assert result.returncode == 2
    assert "megalith data prepare" in result.stderr
