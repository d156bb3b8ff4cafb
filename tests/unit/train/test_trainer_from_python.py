"""The trainer as a library: a recipe, a folder, `train()`."""

import doctest
import json

import pytest

import megalith as mg
from megalith.core.errors import StorageError
from megalith.train.checkpoints import open_learner
from megalith.train.run.folder import RunFolder


def test_the_example_of_the_docstring_runs(small_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(small_data)
    example = doctest.DocTestFinder().find(mg.Trainer, "Trainer", globs={})[0]
    runner = doctest.DocTestRunner()
    runner.run(example)
    assert runner.summarize() == (0, 4)
    run = RunFolder(tmp_path / "runs" / "first")
    assert run.finished()["step"] == 20
    _, step = open_learner(run, mg.Dataset(small_data))
    assert step == 20


def test_a_run_that_is_there_is_refused_unless_it_is_resumed(recipe, tmp_path):
    settings = mg.load_recipe(recipe, ["train.steps=3"])
    first = mg.Trainer(settings, tmp_path / "run").train()
    with pytest.raises(StorageError, match="holds a run already; resume it with"):
        mg.Trainer(settings, tmp_path / "run").train()
    again = mg.Trainer(settings, str(tmp_path / "run"))
    assert again.resume() == 3
    assert again.train() == first == json.loads((tmp_path / "run" / "summary.json").read_text())
