"""Two small runs of two epochs that differ in a few settings, for whoever draws them."""

from __future__ import annotations

from pathlib import Path

import pytest

from megalith.data.synth.generate import generate
from megalith.data.synth.options import SynthOptions
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer

COMMON = ["train.epochs=2", "train.log_every=2", "train.eval_every=5", "train.tensorboard=false"]
DIFFERENT = {
    "first": ["data.batch_size=200", "model.dim=8"],
    "second": ["data.batch_size=400", "model.dim=16", "dense.lr=0.02"],
}


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of the runs `first` and `second`; copy them before you change them."""
    folder = tmp_path_factory.mktemp("two-runs")
    options = SynthOptions("criteo", train_rows=2000, valid_rows=500, test_rows=500)
    generate(options, folder / "data", threads=1)
    for name, settings in DIFFERENT.items():
        recipe = load_recipe("demo", [f"data.path={folder / 'data'}", *COMMON, *settings])
        Trainer(recipe, RunFolder(folder / name)).train()
    return folder / "first", folder / "second"
