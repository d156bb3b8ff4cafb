"""Training on tables of one's own: sample weights, tables that features share, and dims by feature."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from megalith.cli.app import app
from megalith.core.errors import ConfigError
from megalith.data.dataset import Dataset
from megalith.data.loader import Loader
from megalith.data.prepare import PrepareOptions, prepare
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer

ROWS = 3000


def frame(weights=None, seed=0):
    """Clicks where the item is in the history; rows of weight 0 have their label turned."""
    draw = np.random.default_rng(seed)
    items = draw.integers(0, 40, ROWS)
    histories = [draw.integers(0, 40, draw.integers(0, 6)).tolist() for _ in range(ROWS)]
    for row in range(0, ROWS, 2):
        histories[row] = [*histories[row], int(items[row])]
    labels = np.array([int(item in history) for item, history in zip(items, histories, strict=True)])
    columns = {"item": items, "price": draw.random(ROWS), "city": draw.integers(0, 3, ROWS)}
    table = {"label": labels, **columns, "history": pa.array(histories, pa.list_(pa.int64()))}
    if weights is not None:
        table["label"] = np.where(weights > 0, labels, 1 - labels)
        table["weight"] = weights
    return pa.table(table)


def prepared(folder, name, table, valid, **options):
    pq.write_table(table, folder / f"{name}.parquet")
    pq.write_table(valid, folder / f"{name}-valid.parquet")
    content = {
        "source": "parquet",
        "files": [folder / f"{name}.parquet"],
        "valid_files": [folder / f"{name}-valid.parquet"],
        "out": folder / name,
        "min_count": 1,
        **options,
    }
    prepare(PrepareOptions.model_validate(content))
    return folder / name


def recipe_of(folder, data, *overrides):
    (folder / "own.yaml").write_text(
        f"""
name: own
data: {{path: {data}, batch_size: 100, eval_batch_size: 500, threads: 1, prefetch: 1}}
model: {{kind: dlrm, dim: 8, bottom: {{layers: [8]}}, top: {{layers: [32]}}}}
embeddings: {{optimizer: {{kind: adam, lr: 0.02}}}}
train: {{epochs: 3, log_every: 10, tensorboard: no}}
"""
    )
    return load_recipe(str(folder / "own.yaml"), overrides)


def trained(folder, name, data, *overrides):
    run = RunFolder(folder / name)
    Trainer(recipe_of(folder, data, *overrides), run).train()
    return json.loads(run.evaluation("valid").read_text())


def evaluated(run, data):
    done = CliRunner().invoke(app, ["eval", str(run), "--split", "valid", "--data", str(data), "--json"])
    return json.loads(done.output)


def test_weights_of_one_change_nothing(tmp_path):
    ones = np.ones(ROWS)
    plain = prepared(tmp_path, "plain", frame(), frame(seed=1))
    weighted = prepared(tmp_path, "weighted", frame(ones), frame(ones, seed=1), weight="weight")
    assert json.loads((weighted / "schema.json").read_text())["weight"] == "weight"
    batch = next(iter(Loader(Dataset(weighted), ["train"], batch_size=50)))
    assert batch.weights.tolist() == [1.0] * 50
    assert trained(tmp_path, "run-plain", plain) == trained(tmp_path, "run-weighted", weighted)


def test_samples_of_weight_0_teach_nothing_and_count_for_nothing(tmp_path):
    """Every fifth label is wrong and weighs nothing: the model and its metrics are as good as without."""
    weights = np.where(np.arange(ROWS) % 5 == 0, 0.0, 2.0)
    valid = frame(weights, seed=1)
    wrong = prepared(tmp_path, "wrong", frame(weights), valid, dropped=("weight",))
    right = prepared(tmp_path, "right", frame(weights), valid, weight="weight")
    unweighted, weighted = trained(tmp_path, "a", wrong), trained(tmp_path, "b", right)
    assert weighted["log_loss"] < unweighted["log_loss"] - 0.03
    # The same figures as over the rows that count, each once.
    kept = valid.filter(pa.array(weights > 0))
    clean = prepared(tmp_path, "clean", frame(weights), kept, weight="weight")
    alone = evaluated(tmp_path / "b", clean)
    for name in ("log_loss", "auc", "ne"):
        assert math.isclose(alone[name], weighted[name], rel_tol=1e-6), name


def test_the_loss_of_a_step_is_the_weighted_sum_over_the_batch(tmp_path):
    weights = np.random.default_rng(3).random(ROWS) * 3
    data = prepared(tmp_path, "data", frame(weights), frame(weights, seed=1), weight="weight")
    trainer = Trainer(recipe_of(tmp_path, data), RunFolder(tmp_path / "run"))
    batch = next(iter(trainer.loader))
    logits = trainer.learner.predict(batch)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
    loss, _ = trainer.learner.step(batch, 1.0)
    torch.testing.assert_close(loss, (losses * batch.weights).sum() / 100)


@pytest.mark.parametrize("kind", ["dlrm", "dcnv2", "deepfm", "wide_deep"])
def test_features_that_share_a_vocabulary_share_a_table(tmp_path, kind):
    data = prepared(tmp_path, "data", frame(), frame(seed=1), share=("history,item",), categories=("city",))
    model = f"model={{kind: {kind}, dim: 8}}"
    trainer = Trainer(recipe_of(tmp_path, data, model), RunFolder(tmp_path / "run"))
    tables = {table.name: table.features for table in trainer.learner.tables}
    assert tables["history"] == ("history", "item")
    batch = next(iter(trainer.loader))
    before = trainer.learner.predict(batch)
    trainer.learner.step(batch, 1.0)
    assert not torch.equal(before, trainer.learner.predict(batch))


def test_a_shared_table_learns_from_both_features(tmp_path):
    """Whether the item is in the history is a matter of equal rows: one table finds it, two must match up."""
    rows = frame(), frame(seed=1)
    apart = trained(tmp_path, "run-apart", prepared(tmp_path, "apart", *rows))
    data = prepared(tmp_path, "shared", *rows, share=("item,history",))
    shared = trained(tmp_path, "run-shared", data)
    assert shared["log_loss"] < apart["log_loss"]
    # A run of it is read back with its tables.
    again = evaluated(tmp_path / "run-shared", data)
    assert again["log_loss"] == shared["log_loss"]


def test_dims_by_feature_train_and_load(tmp_path):
    data = prepared(tmp_path, "data", frame(), frame(seed=1), share=("item,history",))
    dims = "model.dims={item: 16, city: 2}"
    whole = trained(tmp_path, "whole", data, dims)
    trainer = Trainer(recipe_of(tmp_path, data, dims), RunFolder(tmp_path / "other"))
    assert {table.name: table.dim for table in trainer.learner.tables} == {"item": 16, "city": 2}
    # Layers and tables of every width come back from the checkpoint.
    assert evaluated(tmp_path / "whole", data)["log_loss"] == whole["log_loss"]
    with pytest.raises(ConfigError, match=r"model.dims names 'town', which is no feature"):
        Trainer(recipe_of(tmp_path, data, "model.dims={town: 4}"), RunFolder(tmp_path / "no"))
    assert not (tmp_path / "no").exists()
