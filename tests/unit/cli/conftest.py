"""What the tests of commands share: small data, a run trained on it, and the commands themselves."""

import json

import pytest
from command_runs import run_command


@pytest.fixture
def command():
    return run_command


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Criteo-shaped rows: 1,200 to train on, 200 each to validate and test."""
    folder = tmp_path_factory.mktemp("commands") / "data"
    sizes = ["--rows", 1200, "--valid-rows", 200, "--test-rows", 200, "--threads", 1]
    done = run_command("data", "synth", "criteo", *sizes, "--out", folder)
    assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="session")
def recipe_text(data):
    return f"""
name: small
data: {{path: {json.dumps(str(data))}, batch_size: 200, eval_batch_size: 200, threads: 1, prefetch: 1}}
model: {{kind: dlrm, dim: 4, bottom: {{layers: [8]}}, top: {{layers: [8]}}}}
train: {{epochs: 1, log_every: 2, checkpoint_every: 2, tensorboard: no}}
"""


@pytest.fixture
def recipe(recipe_text, tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(recipe_text)
    return path


@pytest.fixture(scope="session")
def trained(recipe_text, tmp_path_factory):
    """A finished run; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "small.yaml").write_text(recipe_text)
    done = run_command("train", folder / "small.yaml", "--out", folder / "run")
    assert done.code == 0, done.err
    return folder / "run"
