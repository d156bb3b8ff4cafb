"""What the tests of commands share: small data, a run trained on it, and commands as `main` runs them."""

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest

from megalith.cli import main


class Done(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def sentence(self):
        """The one sentence of a command that was refused."""
        assert self.code == 2, self.out + self.err
        assert self.out == ""
        *before, sentence = self.err.strip().splitlines()
        assert all(line.startswith(("Going on with ", "step ")) for line in before), self.err
        assert sentence.startswith("megalith: "), self.err
        return sentence


def run_command(*arguments):
    """`megalith ...` in this process, through the same `main` that the shell calls."""
    arguments_before, debug = sys.argv, os.environ.get("MEGALITH_DEBUG")
    sys.argv = ["megalith", *map(str, arguments)]
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as leaving:
            main()
    finally:
        sys.argv = arguments_before
        if debug is None:
            os.environ.pop("MEGALITH_DEBUG", None)
    shown = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Done(leaving.value.code or 0, *shown)


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
