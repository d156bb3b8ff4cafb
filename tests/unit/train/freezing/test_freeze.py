"""Runs of every kind of table, frozen: scores of the run in float32, within the gate in few bits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_recipes import trained, write_recipe

import megalith as mg
from megalith.comm.ranks import Ranks
from megalith.data.dataset import Dataset
from megalith.export.folder import FrozenModel
from megalith.train.freezing.freeze import FreezeRequest, freeze_run
from megalith.train.loaders import DataConfig, eval_loader
from megalith.train.scoring.scorer import Scorer

DYNAMIC = {
    "kind": "dynamic",
    "bound": 300,
    "admission": {"kind": "count", "count": 2, "counter_bytes": 8192},
}


def stores(**changed):
    return "embeddings.stores=" + json.dumps({"*": {**DYNAMIC, **changed}})


ADAPTIVE = "adaptive={ratio: 16, interval: 4, warm_up: 8, chunk: 4, end: 0.4, gamma: 0.95}"
KINDS = {
    "dense": (),
    "pooled": ("model.pooling=mean", "model.kind=dcnv2"),
    "half": ("model.dtype=float16",),
    "dims": ('model.dims={"C1": 2, "C2": 7}',),
    "tiered": ("memory={dram: 1MiB}", 'embeddings.stores={"*": "tiered"}'),
    "adaptive": (ADAPTIVE,),
    "dynamic": (stores(),),
    "zeros": (stores(unknown="zeros"),),
    "dynamic over tiered": (stores(over={"kind": "tiered"}), "memory={dram: 1MiB}"),
    "dynamic over adaptive": (stores(over={"kind": "adaptive"}), ADAPTIVE.replace("16", "4")),
}


@pytest.fixture(scope="module", params=KINDS)
def run(request, small_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen")
    recipe = write_recipe(folder / "small.yaml", small_data)
    overrides = list(KINDS[request.param])
    if "model.kind=dcnv2" in overrides:
        text = recipe.read_text()
        begin, end = text.index("model:"), text.index("train:")
        recipe.write_text(text[:begin] + "model: {kind: dcnv2, pooling: mean, dim: 4}\n" + text[end:])
        overrides = []
    else:
        overrides.append("model.dim=8" if request.param != "dims" else "model.dim=4")
    trained(recipe, folder / "run", *overrides, "train.epochs=1", "train.eval_every=1000")
    return folder / "run"


def scores(scorer, small_data):
    """Of split test."""
    loader = eval_loader(
        DataConfig(path=small_data, eval_batch_size=1000), Dataset(small_data), "test", Ranks()
    )
    return np.concatenate(list(scorer.scores(loader)))


def test_a_model_in_float32_scores_as_its_run_to_the_bit(run, small_data, tmp_path):
    result = freeze_run(FreezeRequest(run, tmp_path / "model", {"*": "float32"}))
    assert result["gate"]["ne_loss"] == 0.0
    ours = scores(mg.load_model(tmp_path / "model"), small_data)
    np.testing.assert_array_equal(ours, scores(Scorer(run), small_data))


@pytest.mark.parametrize("precision", ["float16", "int8", "int4"])
def test_few_bits_lose_little_and_take_what_they_should(request, run, small_data, tmp_path, precision):
    budget = {"float16": 0.0005, "int8": 0.0005, "int4": 0.02}[precision]
    result = freeze_run(FreezeRequest(run, tmp_path / "model", {"*": precision}, budget=budget))
    assert result["gate"]["ne_loss"] <= budget
    model = FrozenModel(tmp_path / "model")
    for table in model.manifest.tables:
        tensors = model.table(table.name)
        assert table.bytes == sum(each.numel() * each.element_size() for each in tensors.values())
        if table.chunk is None:
            bits = {"float16": 16, "int8": 8, "int4": 4}[precision]
            overhead = {None: 0, "float16": 4, "float32": 8}[table.scale]
            assert tuple(tensors["rows"].shape) == (table.rows, (table.dim * bits + 7) // 8 + overhead)
    ours = scores(mg.load_model(tmp_path / "model"), small_data)
    wanted = scores(Scorer(run), small_data)
    assert np.abs(ours - wanted).max() < (0.2 if precision == "int4" else 0.02)
    # Weights that were trained in float16 lose nothing in it.
    lossless = precision == "float16" and "half" in request.node.callspec.params["run"]
    assert np.array_equal(ours, wanted) == lossless


def test_a_second_export_has_the_same_bytes(run, tmp_path):
    for name in ("a", "b"):
        freeze_run(FreezeRequest(run, tmp_path / name / "model"))
    first, second = (sorted((tmp_path / name / "model").rglob("*")) for name in ("a", "b"))
    assert [path.name for path in first] == [path.name for path in second]
    for ours, theirs in zip(first, second, strict=True):
        assert ours.is_dir() or ours.read_bytes() == theirs.read_bytes()
