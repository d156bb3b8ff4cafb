"""Every command that writes says one sentence about a target that it cannot write, and leaves nothing."""

import os

import pytest

COMMANDS = {
    "synth": ["data", "synth", "criteo", "--rows", "100", "--threads", "1", "--out", "TARGET"],
    "prepare": ["data", "prepare", "criteo", "ROWS", "--out", "TARGET"],
    "train": ["train", "RECIPE", "--out", "TARGET"],
    "plan": ["plan", "RECIPE", "--world-size", "2", "--seconds", "0.1", "--out", "TARGET"],
    "report": ["report", "RUN", "--out", "TARGET"],
    "report of spans": ["report", "RUN", "--out", "PAGE", "--chrome-trace", "TARGET"],
    "demo": ["demo", "--rows", "10000", "--out", "TARGET"],
    "explore search": ["explore", "search", "gpt3-175b", "--out", "TARGET"],
    "page of a search": ["explore", "search", "gpt3-175b", "--report", "TARGET"],
    "page of a prediction": ["explore", "predict", "gpt3-175b", "--report", "TARGET"],
    "trace of a prediction": ["explore", "predict", "gpt3-175b", "--trace", "TARGET"],
    "probe": ["explore", "catalog", "--probe", "TARGET"],
    "bench data": ["bench", "data", "--rows", "10", "--out", "TARGET"],
    "bench embedding": ["bench", "embedding", "--out", "TARGET"],
    "bench train": ["bench", "train", "--out", "TARGET"],
    "bench plan": ["bench", "plan", "--out", "TARGET"],
    "bench explore": ["bench", "explore", "--out", "TARGET"],
}


@pytest.fixture
def words(trained, recipe, tmp_path):
    rows = tmp_path / "rows.tsv"
    rows.write_text("\t".join(["1", *"2" * 13, *["a"] * 26]) + "\n")
    known = {"RECIPE": recipe, "RUN": trained, "ROWS": rows, "PAGE": tmp_path / "page.html"}
    return lambda name, target: [{**known, "TARGET": target}.get(word, word) for word in COMMANDS[name]]


@pytest.mark.parametrize("target", ["/proc/x", "/proc/x/y/z", "/dev/null/x", "FILE/x", "LONG"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_target_that_cannot_be_made(command, words, tmp_path, name, target):
    (tmp_path / "file").write_text("mine")
    target = target.replace("FILE", str(tmp_path / "file")).replace("LONG", str(tmp_path / ("x" * 300)))
    before = sorted(tmp_path.iterdir())
    assert target in command(*words(name, target)).sentence
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "page.html"] == before
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.skipif(os.geteuid() == 0, reason="no folder is closed to root")
def test_a_folder_without_permission(command, words, tmp_path, name):
    closed = tmp_path / "closed"
    closed.mkdir(0o500)
    assert str(closed / "x") in command(*words(name, closed / "x")).sentence


@pytest.mark.parametrize("name", [name for name in COMMANDS if "search" in name or "page" in name])
def test_a_folder_where_a_file_is_to_go(command, words, tmp_path, name):
    target = tmp_path / "folder"
    target.mkdir()
    assert str(target) in command(*words(name, target)).sentence
    assert target.is_dir()
