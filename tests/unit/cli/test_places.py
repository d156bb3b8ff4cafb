"""Every command that writes says one sentence about a place where it cannot, and leaves nothing."""

import os

import pytest

COMMANDS = {
    "synth": ["data", "synth", "criteo", "--rows", "100", "--threads", "1", "--out", "PLACE"],
    "prepare": ["data", "prepare", "criteo", "ROWS", "--out", "PLACE"],
    "train": ["train", "RECIPE", "--out", "PLACE"],
    "plan": ["plan", "RECIPE", "--world-size", "2", "--seconds", "0.1", "--out", "PLACE"],
    "report": ["report", "RUN", "--out", "PLACE"],
    "report of spans": ["report", "RUN", "--out", "PAGE", "--chrome-trace", "PLACE"],
    "demo": ["demo", "--rows", "10000", "--out", "PLACE"],
    "explore search": ["explore", "search", "gpt3-175b", "--out", "PLACE"],
    "page of a search": ["explore", "search", "gpt3-175b", "--report", "PLACE"],
    "page of a prediction": ["explore", "predict", "gpt3-175b", "--report", "PLACE"],
    "trace of a prediction": ["explore", "predict", "gpt3-175b", "--trace", "PLACE"],
    "probe": ["explore", "catalog", "--probe", "PLACE"],
    "bench data": ["bench", "data", "--rows", "10", "--out", "PLACE"],
    "bench embedding": ["bench", "embedding", "--out", "PLACE"],
    "bench train": ["bench", "train", "--out", "PLACE"],
    "bench plan": ["bench", "plan", "--out", "PLACE"],
    "bench explore": ["bench", "explore", "--out", "PLACE"],
}


@pytest.fixture
def words(trained, recipe, tmp_path):
    rows = tmp_path / "rows.tsv"
    rows.write_text("\t".join(["1", *"2" * 13, *["a"] * 26]) + "\n")
    known = {"RECIPE": recipe, "RUN": trained, "ROWS": rows, "PAGE": tmp_path / "page.html"}
    return lambda name, place: [{**known, "PLACE": place}.get(word, word) for word in COMMANDS[name]]


@pytest.mark.parametrize("place", ["/proc/x", "/proc/x/y/z", "/dev/null/x", "FILE/x", "LONG"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_place_where_nothing_can_be_made(command, words, tmp_path, name, place):
    (tmp_path / "file").write_text("mine")
    place = place.replace("FILE", str(tmp_path / "file")).replace("LONG", str(tmp_path / ("x" * 300)))
    before = sorted(tmp_path.iterdir())
    assert place in command(*words(name, place)).sentence
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
    place = tmp_path / "folder"
    place.mkdir()
    assert str(place) in command(*words(name, place)).sentence
    assert place.is_dir()
