"""What a run keeps of its data: whole, linked where it can be, and named when it is damaged."""

import json
import os
import shutil

import pytest
from typer.testing import CliRunner

from megalith.cli.app import app
from megalith.core.errors import DataError
from megalith.data.dataset import Dataset
from megalith.data.prepare import PrepareOptions, prepare
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.run.inputs import RunInputs
from megalith.train.trainer import Trainer

LINES = ["\t".join(["1", *"3" * 13, *(f"{row % 3:08x}" for _ in range(26))]) for row in range(30)]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("\n".join(LINES) + "\n")
    options = {"source": "criteo", "files": (path,), "out": tmp_path / "data", "min_count": 1, "threads": 1}
    prepare(PrepareOptions.model_validate(options))
    return tmp_path / "data"


def test_files_are_links_where_they_can_be_and_copies_elsewhere(data, tmp_path, monkeypatch):
    linked = RunInputs(tmp_path / "linked")
    linked.write(Dataset(data))
    assert (linked.folder / "schema.json").samefile(data / "schema.json")
    assert len(list((linked.folder / "vocabulary").iterdir())) == 26

    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    copied = RunInputs(tmp_path / "copied")
    copied.write(Dataset(data))
    assert not (copied.folder / "schema.json").samefile(data / "schema.json")
    shutil.rmtree(data)
    for inputs in (linked, copied):
        inputs.check_vocabulary()
        assert inputs.dataset().schema.feature_names[0] == "C1"


def test_a_damaged_or_missing_file_is_named(data, tmp_path):
    inputs = RunInputs(tmp_path / "inputs")
    inputs.write(Dataset(data))
    path = inputs.folder / "vocabulary" / "C7.parquet"
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.unlink()
    with pytest.raises(
        DataError, match=r"C7\.parquet is damaged or missing; copy it from .*data/vocabulary/C7"
    ):
        inputs.check_vocabulary()
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"C7\.parquet is damaged or missing"):
        inputs.check_vocabulary()
    schema = inputs.folder / "schema.json"
    text = schema.read_text()
    schema.unlink()
    schema.write_text(text.replace("criteo", "cirteo"))
    with pytest.raises(DataError, match=r"schema\.json is damaged or missing"):
        inputs.dataset()
    content = json.loads((inputs.folder / "inputs.json").read_text())
    (inputs.folder / "inputs.json").write_text(json.dumps({**content, "version": 9}))
    with pytest.raises(DataError, match="has version 9, this package reads 1"):
        inputs.dataset()


def test_a_run_is_started_resumed_scored_and_reported_from_different_folders(recipe, tmp_path, monkeypatch):
    text = recipe.read_text()
    folder = load_recipe(recipe).data.path
    recipe.write_text(text.replace(str(folder), folder.name))
    monkeypatch.chdir(folder.parent)
    Trainer(load_recipe(recipe, ["train.steps=4", "train.epochs=null"]), tmp_path / "run").train()
    monkeypatch.chdir(tmp_path)
    for words in (("eval", "run"), ("train", "run"), ("report", "run")):
        result = CliRunner().invoke(app, list(words))
        assert result.exit_code == 0, result.output
    assert RunFolder(tmp_path / "run").recipe().data.path == folder


def test_a_run_without_inputs_takes_them_when_it_goes_on(recipe, tmp_path):
    Trainer(load_recipe(recipe, ["train.steps=4", "train.epochs=null"]), tmp_path / "run").train()
    run = RunFolder(tmp_path / "run")
    shutil.rmtree(run.inputs.folder)
    assert run.trained_on().folder == run.recipe().data.path
    Trainer(run.recipe(), run).resume()
    assert run.trained_on().folder == run.inputs.folder
