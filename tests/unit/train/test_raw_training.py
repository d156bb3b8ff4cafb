"""Training on raw files: the run that their prepared form gives, and its resume."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_recipes import outcome, trained
from typer.testing import CliRunner

from megalith.cli.app import app
from megalith.core.errors import CheckpointError
from megalith.data.prepare import PrepareOptions, prepare
from megalith.train.recipe import load_recipe
from megalith.train.trainer import Trainer

ROWS = 3000


def write_logs(folder, seed=0, rows=ROWS):
    folder.mkdir()
    draw = np.random.default_rng(seed)
    columns = {
        "label": draw.integers(0, 2, rows),
        "price": draw.random(rows),
        "item": draw.integers(0, 40, rows),
        "city": [f"city {number}" for number in draw.integers(0, 9, rows)],
    }
    table = pa.table(columns)
    for number in range(3):
        pq.write_table(table.slice(number * rows // 3, rows // 3), folder / f"part-{number}.parquet")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Raw logs, a recipe, and their prepared form."""
    folder = tmp_path_factory.mktemp("raw")
    logs, valid = write_logs(folder / "logs"), write_logs(folder / "valid", seed=1, rows=900)
    prepare(
        PrepareOptions(
            source="parquet",
            files=tuple(sorted(logs.iterdir())),
            valid_files=tuple(sorted(valid.iterdir())),
            out=folder / "prepared",
            min_count=1,
        )
    )
    (folder / "recipe.yaml").write_text(
        f"""
name: raw
data: {{path: {folder / "prepared"}, batch_size: 100, eval_batch_size: 500, threads: 1, prefetch: 1}}
model: {{kind: dlrm, dim: 4, bottom: {{layers: [8]}}, top: {{layers: [8], dropout: 0.1}}}}
train: {{epochs: 2, log_every: 7, eval_every: 20, checkpoint_every: 10, tensorboard: no}}
"""
    )
    return folder


def raw_keys(folder, vocabulary="prepared"):
    return [
        f"data.path={folder / 'logs'}",
        f"data.raw.vocabulary_from={folder / vocabulary}",
        f"data.raw.valid={folder / 'valid'}/part-*.parquet",
    ]


def test_a_run_on_raw_files_is_the_run_on_their_prepared_form(folder, tmp_path):
    recipe = folder / "recipe.yaml"
    expected = trained(recipe, tmp_path / "prepared")
    run = trained(recipe, tmp_path / "raw", *raw_keys(folder))
    assert outcome(run) == outcome(expected)
    # What a run keeps of its data is the same, and so is what it serves and scores by.
    assert run.trained_on().schema == expected.trained_on().schema
    done = CliRunner().invoke(app, ["eval", str(run.folder), "--json"])
    assert done.exception is None, done.exception
    assert json.loads(done.output)["ne"] == json.loads(run.evaluation("valid").read_text())["ne"]


def test_a_stopped_run_resumes_without_what_the_transforms_came_from(folder, tmp_path):
    recipe = folder / "recipe.yaml"
    shutil.copytree(folder / "prepared", tmp_path / "vocabulary")
    keys = [*raw_keys(folder), f"data.raw.vocabulary_from={tmp_path / 'vocabulary'}"]
    run = trained(recipe, tmp_path / "run", *keys)
    expected = outcome(run)
    shutil.rmtree(tmp_path / "vocabulary")
    again = Trainer(run.recipe(), run, resumes=True)
    assert again.resume(from_step=50) == 50
    again.train()
    assert outcome(run) == expected


def test_a_run_whose_files_became_others_is_not_resumed_within_an_epoch(folder, tmp_path):
    logs = shutil.copytree(folder / "logs", tmp_path / "logs")
    keys = [f"data.path={logs}", "data.raw.source=parquet", "data.raw.hash_buckets=50", "train.steps=10"]
    run = trained(folder / "recipe.yaml", tmp_path / "run", *keys)
    (logs / "part-1.parquet").rename(logs / "part-9.parquet")
    again = Trainer(load_recipe(str(folder / "recipe.yaml"), [*keys, "train.steps=20"]), run)
    with pytest.raises(CheckpointError, match="within an epoch with files="):
        again.resume()


def test_commands_name_what_is_wrong_with_raw_files(folder, tmp_path):
    def said(*keys):
        out = tmp_path / "refused"
        done = CliRunner().invoke(app, ["train", str(folder / "recipe.yaml"), *keys, "--out", str(out)])
        assert not out.exists()
        return str(done.exception)

    logs = f"data.path={folder / 'logs'}"
    assert "is not a prepared data set" in said(logs)
    assert "give vocabulary_from, or source" in said(logs, "data.raw={}")
    assert "would need a vocabulary" in said(logs, "data.raw.source=parquet")
    keys = ("data.raw.source=parquet", "data.raw.hash_buckets=9")
    assert "does not exist" in said(f"data.path={tmp_path / 'none'}", *keys)
    assert "train on, not train, more" in said(logs, *keys, "data.train=[train, more]")
