"""A small stream whose rare ids matter, and a recipe over it."""

import pytest

from megalith.data.synth.generate import generate
from megalith.data.synth.options import SynthOptions
from megalith.train.recipe import load_recipe

RECIPE = """
name: tiny
data: {path: PATH, batch_size: 128, eval_batch_size: 1000, threads: 1, prefetch: 1}
model: {kind: dlrm, dim: 8, bottom: {layers: [16]}, top: {layers: [16]}}
embeddings: {optimizer: {kind: adam, lr: 0.01}}
train: {steps: 24}
"""


@pytest.fixture(scope="session")
def tail_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tail") / "data"
    generate(SynthOptions("criteo", 4000, 500, 500, scale=0.0002, tail=True), folder, threads=1)
    return folder


@pytest.fixture(scope="session")
def tiny_recipe(tail_data, tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    path.write_text(RECIPE.replace("PATH", str(tail_data)))
    return load_recipe(str(path))
