"""What `megalith train` says of a run beyond memory before it starts, and what becomes of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from megalith.cli.app import app
from megalith.data.dataset import Dataset
from megalith.data.stats import STATISTICS_FILE
from megalith.data.synth.generate import generate
from megalith.data.synth.options import SynthOptions
from megalith.train.prediction.step_seconds import measure_step_seconds
from megalith.train.recipe import load_recipe
from megalith.train.run.records import read_prediction

SETTINGS = ("data.batch_size=256", "data.eval_batch_size=256", "data.threads=1", "train.log_every=5")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predicted") / "data"
    options = SynthOptions("criteo", train_rows=12_000, valid_rows=1000, test_rows=500)
    generate(options, folder, threads=1)
    return folder


def train(data: Path, out: Path, *more: str) -> tuple[dict, str]:
    command = ["train", "demo", f"data.path={data}", *SETTINGS, "--json", "--out", str(out), *more]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout), result.stderr


@pytest.fixture(scope="module")
def tiered(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, str]:
    out = tmp_path_factory.mktemp("predicted") / "run"
    return out, *train(data, out, "memory.dram=3500KiB")


def test_hits_and_reads_are_told_before_the_run_and_held_against_it(tiered) -> None:
    out, summary, said = tiered
    predicted, tiers = read_prediction(out / "prediction.json"), summary["tiers"]
    (sentence,) = [line for line in said.splitlines() if line.startswith("Predicted:")]
    assert sentence == predicted["sentence"]
    assert f"cache hits {predicted['hit_rate']:.1%}" in sentence
    assert f"bound by {predicted['bound_by']}" in sentence
    assert tiers["predicted"] == {key: predicted[key] for key in tiers["predicted"]}
    assert abs(tiers["hit_rate"] - predicted["hit_rate"]) < 0.04
    assert abs(tiers["reads_per_sample"] - predicted["reads_per_sample"]) < 0.5
    assert tiers["step_seconds"] > 0
    assert json.loads((out / "summary.json").read_text()) == summary


def test_predicting_changes_nothing_of_the_run(tiered, data, tmp_path) -> None:
    out, *_ = tiered
    in_memory, said = train(data, tmp_path / "run")
    assert "redicted" not in said
    assert "tiers" not in in_memory
    name = "evaluation-valid.json"
    assert (out / name).read_text() == (tmp_path / "run" / name).read_text()


def test_a_resumed_run_keeps_its_prediction_unless_its_memory_changes(tiered, data, tmp_path) -> None:
    out, *_ = tiered
    run = Path(shutil.copytree(out, tmp_path / "run"))
    stored = read_prediction(run / "prediction.json")
    # A mark that only the stored one has.
    (run / "prediction.json").write_text(json.dumps({**stored, "sentence": "Predicted: as before."}))
    memory = [f"data.path={data}", *SETTINGS, "--out", str(run), "--resume", "--from-step", "46"]
    result = CliRunner().invoke(app, ["train", "demo", *memory, "memory.dram=3500KiB"])
    assert "Predicted: as before." in result.stderr
    result = CliRunner().invoke(app, ["train", "demo", *memory, "memory.dram=5MiB"])
    assert result.exit_code == 0, result.stderr
    anew = read_prediction(run / "prediction.json")
    assert anew["conditions"] == {
        **stored["conditions"],
        "memory": {**stored["conditions"]["memory"], "dram": 5 << 20},
    }
    assert anew["reads_per_sample"] <= stored["reads_per_sample"]
    result = CliRunner().invoke(app, ["train", str(run), "--from-step", "46", "memory=null", "--json"])
    assert "tiers" not in json.loads(result.stdout)
    assert not (run / "prediction.json").exists()


def test_what_cannot_be_predicted_is_said_and_the_run_goes_on(data, tmp_path) -> None:
    broken = Path(shutil.copytree(data, tmp_path / "data"))
    (broken / STATISTICS_FILE).write_text("{")
    summary, said = train(broken, tmp_path / "run", "memory.dram=2MiB", "train.steps=5")
    (sentence,) = [line for line in said.splitlines() if "not predicted" in line]
    assert STATISTICS_FILE in sentence
    assert summary["finished"]
    assert summary["tiers"]["predicted"] is None


def test_a_step_is_measured_over_small_tables_whatever_the_batch(data) -> None:
    recipe = load_recipe("demo", [f"data.path={data}", "model.dim=512"])
    dataset = Dataset(data)
    one, ten = (
        measure_step_seconds(recipe.learner_config(), dataset, "train", samples)
        for samples in (64, 10 * dataset.split("train").rows)
    )
    assert 0 < one < ten
