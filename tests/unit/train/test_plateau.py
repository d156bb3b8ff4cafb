"""Learning rates that fall on a plateau, and recipes that ask for another model than they are written for."""

import json
import shutil
import signal
from functools import partial

import pytest
from small_recipes import outcome, trained

from commands import megalith
from forked import signalled_at_call
from megalith.core.errors import ConfigError
from megalith.core.files import read_jsonl
from megalith.train.plateau import PlateauConfig, PlateauRate
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer

PLATEAU = "schedule.plateau={factor: 0.5, min_delta: 0.2, least: 0.2}"


def rates(config, values):
    plateau = PlateauRate(config)
    found = []
    for step, value in enumerate(values):
        plateau.update(step, {"ne": value})
        found.append(plateau.factor)
    return found


def test_rates_fall_when_nothing_better_came_and_never_below_the_least():
    config = PlateauConfig(patience=2, factor=0.5, least=0.2)
    assert rates(config, [1.0, 0.9, 0.9, 0.9, 0.8, 0.85, 0.85, 0.85, 0.85, 0.7]) == [
        1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.2, 0.2,
    ]  # fmt: skip
    assert rates(None, [1.0, 2.0, 3.0]) == [1, 1, 1]


def test_what_counts_as_better_is_a_setting():
    assert rates(PlateauConfig(min_delta=0.1, factor=0.5), [1.0, 0.95, 0.84]) == [1, 0.5, 0.5]


def test_a_run_on_a_plateau_resumes_bit_identically(recipe, tmp_path):
    settings = [PLATEAU, "train.eval_every=10"]
    whole = trained(recipe, tmp_path / "whole", *settings)
    factors = [line["lr_factor"] for line in read_jsonl(whole.metrics) if line["kind"] == "train"]
    assert factors[-1] < factors[0] == 1
    folder = tmp_path / "stopped"
    signalled = partial(signalled_at_call, signal.SIGTERM, 4, function=Trainer.save)
    assert megalith("train", recipe, *settings, "--out", folder, first=signalled).returncode == 143
    assert megalith("train", folder).returncode == 0
    assert outcome(RunFolder(folder)) == outcome(whole)


@pytest.mark.parametrize("setting", ["train.early_stopping={patience: 2}", "schedule.plateau={patience: 2}"])
def test_what_needs_evaluations_is_refused_without_a_split(recipe, small_data, tmp_path, setting):
    data = shutil.copytree(small_data, tmp_path / "data")
    schema = json.loads((data / "schema.json").read_text())
    schema["splits"] = {"train": schema["splits"]["train"]}
    (data / "schema.json").write_text(json.dumps(schema))
    with pytest.raises(ConfigError, match=f"{setting.partition('=')[0]} needs evaluations, and .*data has"):
        Trainer(load_recipe(str(recipe), [f"data.path={data}", setting]), tmp_path / "run")


@pytest.mark.parametrize(
    ("override", "dropped"),
    [
        ("model.kind=deepfm", "model.bottom, model.top"),
        ("model.kind=dcnv2", "model.bottom, model.top"),
    ],
)
def test_another_kind_of_model_drops_what_it_lacks_and_says_so(recipe, override, dropped):
    said = []
    changed = load_recipe(str(recipe), [override, "model.mlp.layers=[8]"], said.append)
    assert changed.model.kind == override.partition("=")[2]
    assert (changed.model.dim, changed.model.mlp.layers) == (4, (8,))
    assert [line.partition(": ")[2] for line in said] == [f"{dropped} of {recipe}."]


def test_a_key_that_an_override_brings_is_never_dropped(recipe):
    with pytest.raises(ConfigError, match=r"line, model\.top\.layers=\[8\]: unknown key 'model\.top'"):
        load_recipe(str(recipe), ["model.kind=deepfm", "model.top.layers=[8]"], lambda _: None)


def test_sequences_are_refused_before_anything_is_made(recipe, tmp_path):
    with pytest.raises(ConfigError, match=r"'C1' has pooling none.*use model\.pooling=sum, mean or max"):
        Trainer(load_recipe(str(recipe), ["model.pooling=none"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["small-dcnv2", "small-dlrm"])
def test_recipes_for_few_rows_learn_and_keep_their_best_step(small_data, tmp_path, name):
    recipe = load_recipe(name, [f"data.path={small_data}", "data.batch_size=256", "train.epochs=3"])
    summary = Trainer(recipe, RunFolder(tmp_path / "run")).train()
    evaluations = [line for line in read_jsonl(tmp_path / "run" / "metrics.jsonl") if line["kind"] == "eval"]
    assert summary["evaluation"]["auc"] == max(line["auc"] for line in evaluations) > 0.6
