"""The recipe that the tests of training share, runs of it and what they report."""

import json
import signal

from forked import signalled_at_call
from megalith.core.files import read_jsonl
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.run.reporter import CLOCK_KEYS
from megalith.train.trainer import Trainer


def write_recipe(path, small_data):
    """A recipe that trains a small DLRM with dropout, so that the random state matters."""
    path.write_text(
        f"""
name: small
data: {{path: {small_data}, batch_size: 256, eval_batch_size: 1000, threads: 1, prefetch: 1}}
model:
  kind: dlrm
  dim: 4
  bottom: {{layers: [16]}}
  top: {{layers: [16], dropout: 0.1}}
train: {{epochs: 2, log_every: 7, eval_every: 20, checkpoint_every: 10, window_samples: 999, tensorboard: no}}
"""
    )
    return path


def trained(recipe, folder, *overrides):
    """Trains in this process and returns the run."""
    settings = load_recipe(str(recipe), overrides)
    run = RunFolder(folder)
    trainer = Trainer(settings, run)
    if run.config.exists():
        trainer.resume()
    trainer.train()
    return run


def outcome(run):
    """All that a run reports, without the clock."""
    lines = [{k: v for k, v in line.items() if k not in CLOCK_KEYS} for line in read_jsonl(run.metrics)]
    return lines, json.loads(run.evaluation("valid").read_text())


def train_until_call(recipe, folder, overrides, wanted, thread):
    trainer = Trainer(load_recipe(recipe, overrides), folder)
    trainer.create()
    signalled_at_call(signal.SIGKILL, wanted, thread)
    trainer.train()
