"""The heads of the real Criteo and Avazu files through prepare, train and eval, by their commands."""

import json
from pathlib import Path

import pytest

from commands import megalith

SHARED = Path(__file__).parents[3] / "shared" / "data"


def answered(*arguments):
    result = megalith(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("source", "file", "recipe"),
    [
        ("criteo", "criteo/head_8000.tsv", "criteo-dlrm"),
        ("criteo", "criteo/head_8000.tsv", "criteo-dcnv2"),
        ("avazu", "avazu/head_9000.csv", "avazu-deepfm"),
    ],
)
def test_a_real_head_is_prepared_trained_on_and_scored(tmp_path, source, file, recipe):
    path = SHARED / file
    if not path.exists():
        pytest.skip(f"{path} is not here; the real heads are not part of this repository")
    data, run = tmp_path / "data", tmp_path / "run"
    split = ("--min-count", 4, "--valid-fraction", 0.2)
    prepared = answered("data", "prepare", source, path, *split, "--out", data)
    assert prepared["bad_rows"] == 0
    settings = ("data.batch_size=128", "schedule.warmup_steps=10", "train.tensorboard=false")
    summary = answered("train", recipe, f"data.path={data}", *settings, "--out", run)
    assert summary["finished"]
    score = answered("eval", run, "--split", "valid")
    # A few thousand rows teach little, but ranking clicks above the rest is already learnt.
    assert score["auc"] > 0.6
    assert score["ne"] < 1.0
