"""`megalith train` and `megalith eval` as a person meets them: results, and one sentence for each mistake."""

import json
import re
import shutil

import pytest
import yaml

from commands import megalith, megalith_from_nothing, unwrapped
from commands import sentence_of as refused
from megalith.core.errors import ConfigError
from megalith.train.recipe import RECIPES, load_recipe, recipe_names


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_is_valid_and_named_after_its_file(name):
    assert load_recipe(name).name == name
    assert (RECIPES / f"{name}.yaml").read_text().startswith("#")


def test_the_help_names_every_shipped_recipe():
    said = set(unwrapped(megalith("train", "--help").stdout).replace(",", " ").replace(";", " ").split())
    assert set(recipe_names()) <= {word.rstrip(".") for word in said}


def test_train_and_eval_print_one_json_object(recipe, tmp_path):
    run = tmp_path / "run"
    trained = megalith_from_nothing("train", recipe, "train.epochs=1", "--out", run, "--json")
    assert trained.returncode == 0, trained.stderr
    summary = json.loads(trained.stdout)
    assert summary["finished"]
    assert summary["evaluation"]["split"] == "valid"
    scored = megalith("eval", run, "--json")
    evaluation = json.loads(scored.stdout)
    assert evaluation["log_loss"] == summary["evaluation"]["log_loss"]
    other = json.loads(megalith("eval", run, "--split", "test", "--json").stdout)
    assert other["split"] == "test"
    assert other["best_ne"] < other["ne"]


def test_people_read_the_evaluation_and_the_next_command(recipe, tmp_path):
    result = megalith("train", recipe, "train.epochs=1", "--out", tmp_path / "run")
    assert result.returncode == 0
    said = unwrapped(result.stdout)
    assert re.search(r"valid at step 46: NE 0\.\d+", said)
    assert "megalith report" in said


def test_files_of_a_recipe_lie_beside_it_and_those_of_overrides_where_one_works(
    recipe, tmp_path, monkeypatch
):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    recipe.write_text(recipe.read_text() + "sharding: {plan: mine.json}\n")
    assert load_recipe(str(recipe)).sharding.plan == tmp_path / "mine.json"
    assert load_recipe(str(recipe), ["sharding.plan=two.json"]).sharding.plan == work / "two.json"
    assert load_recipe(str(recipe), ["sharding.plan=auto"]).sharding.plan == "auto"


def test_of_steps_and_epochs_the_one_asked_for_counts(recipe):
    loop = load_recipe(str(recipe), ["train.steps=7"]).train
    assert (loop.steps, loop.epochs) == (7, None)
    with pytest.raises(ConfigError, match="either epochs or steps"):
        load_recipe(str(recipe), ["train.steps=7", "train.epochs=1"])


def test_a_run_is_not_overwritten_unless_asked(recipe, tmp_path):
    # The recipe's epochs give way to the steps asked for.
    arguments = ("train", recipe, "train.steps=2", "--out", tmp_path / "run")
    assert megalith(*arguments).returncode == 0
    assert "holds a run already" in refused(megalith(*arguments))
    assert megalith(*arguments, "--overwrite").returncode == 0


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("train.epoch=3", "unknown key 'train.epoch'; did you mean 'epochs'?"),
        ("model.botom=3", "Command line, model.botom=3: unknown key 'model.botom'; did you mean 'bottom'?"),
        ("model.kind=dlmr", "key 'model'"),
        ("model.dim=0", "greater than or equal to 1"),
        ("data.path=nowhere", "nowhere is not a prepared data set"),
        ("data.train=[trian]", "no split 'trian'; did you mean 'train'?"),
        ("data.eval=vald", "no split 'vald'; did you mean 'valid'?"),
        (
            "data.batch_size=1000000",
            "do not fill one batch of 1,000,000; take a smaller one (data.batch_size=12000 at",
        ),
        ("train.epochs=null", "give either epochs or steps"),
        ("nonsense", "must have the form key=value"),
    ],
)
def test_a_mistake_in_the_recipe_is_one_sentence_and_leaves_no_run(recipe, tmp_path, override, sentence):
    assert sentence in refused(megalith("train", recipe, override, "--out", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_an_unknown_recipe_gets_the_nearest_name():
    assert "did you mean 'criteo-dlrm'?" in refused(megalith("train", "criteo-dlmr"))


def test_tables_named_twice_are_refused(recipe, tmp_path):
    (tmp_path / "twice.py").write_text(
        "from torch import nn\n"
        "from megalith.models.base import ModelConfig\n"
        "class Twice(ModelConfig):\n"
        "    def tables(self, features):\n"
        "        return self.tables_of_dim(features, 2) * 2\n"
        "    def build(self, inputs):\n"
        "        return nn.Linear(1, 1)\n"
    )
    content = yaml.safe_load(recipe.read_text())
    content["model"] = {"kind": "custom", "file": "twice.py", "config": "Twice"}
    recipe.write_text(yaml.safe_dump(content))
    assert "Table 'C1' is named twice" in refused(megalith("train", recipe, "--out", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_an_index_out_of_range_is_named_and_leaves_no_run(recipe, small_data, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(small_data, data)
    schema = json.loads((data / "schema.json").read_text())
    schema["categorical"][2]["num_ids"] = 3
    (data / "schema.json").write_text(json.dumps(schema))
    sentence = refused(megalith("train", recipe, f"data.path={data}", "--out", tmp_path / "run"))
    assert re.search(r"part-\d+\.parquet, column 'C3', row [\d,]+: id \d+ is outside \[0, 3\)", sentence)
    assert not (tmp_path / "run").exists()


CRASHING = """
from torch import nn
from megalith.models.base import ModelConfig

class Broken(nn.Module):
    def forward(self, dense, embedded):
        raise RuntimeError("not written yet")

class BrokenConfig(ModelConfig):
    def build(self, inputs):
        return Broken()
"""


def test_a_model_that_crashes_in_its_first_step_leaves_no_run(recipe, tmp_path):
    (tmp_path / "broken.py").write_text(CRASHING)
    content = yaml.safe_load(recipe.read_text())
    content["model"] = {"kind": "custom", "file": "broken.py", "config": "BrokenConfig"}
    recipe.write_text(yaml.safe_dump(content))
    crashed = megalith("train", recipe, "--out", tmp_path / "run")
    assert crashed.returncode == 1
    assert "RuntimeError: not written yet" in crashed.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_that_fails_at_once_leaves_what_was_in_its_folder(recipe, small_data, tmp_path):
    data, out = tmp_path / "data", tmp_path / "mine"
    shutil.copytree(small_data, data)
    schema = json.loads((data / "schema.json").read_text())
    schema["categorical"][2]["num_ids"] = 3
    (data / "schema.json").write_text(json.dumps(schema))
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    assert "id" in refused(megalith("train", recipe, f"data.path={data}", "--out", out))
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


def test_eval_of_a_folder_that_is_no_run(tmp_path):
    assert "is not a run" in refused(megalith("eval", tmp_path))


def test_debug_shows_the_traceback(tmp_path):
    result = megalith("--debug", "eval", tmp_path)
    assert result.returncode != 0
    assert "Traceback" in result.stderr


def test_a_table_of_more_rows_than_one_process_counts_is_named(recipe, small_data, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(small_data, data)
    schema = json.loads((data / "schema.json").read_text())
    name = schema["categorical"][3]["name"]
    schema["categorical"][3]["num_ids"] = 2**32
    (data / "schema.json").write_text(json.dumps(schema))
    # So wide that no machine has the memory: the refusal must come first.
    result = megalith("train", recipe, f"data.path={data}", "model.dim=100000", "--out", tmp_path / "run")
    sentence = refused(result)
    assert f"Table '{name}' has 4,294,967,296 rows on one worker" in sentence
