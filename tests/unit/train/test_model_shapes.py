"""Recipes of published models: they have the published shapes, and train on the data made for them."""

import pytest
from small_recipes import outcome, trained

from megalith.data.dataset import Dataset
from megalith.data.synth.generate import generate
from megalith.data.synth.options import SynthOptions
from megalith.data.synth.tables import model_shape
from megalith.models.base import ModelInputs
from megalith.models.registry import build_model
from megalith.train.recipe import load_recipe

DATA = {"rm1": "rm1", "rm2": "rm2", "rm3": "rm3", "dlrm-v2": "dlrm-v2", "dlrm-v2-half": "dlrm-v2"}
WIDTHS = {
    "rm1": ([(128, 64), (64, 32)], [(9 * 32, 256), (256, 64), (64, 1)]),
    "rm2": ([(256, 128), (128, 64)], [(33 * 64, 128), (128, 64), (64, 1)]),
    "rm3": ([(2560, 1024), (1024, 256), (256, 32)], [(11 * 32, 512), (512, 256), (256, 1)]),
    "dlrm-v2": (
        [(13, 512), (512, 256), (256, 128)],
        [(27 * 128, 1024), (1024, 1024), (1024, 512), (512, 256), (256, 1)],
    ),
    "dlrm-v2-half": (
        [(13, 256), (256, 128), (128, 64)],
        [(27 * 64, 512), (512, 512), (512, 256), (256, 128), (128, 1)],
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    for name in dict.fromkeys(DATA.values()):
        shapes = model_shape(name).cut(50)
        generate(SynthOptions(name, train_rows=192, valid_rows=64, tables=shapes), folder / name, threads=1)
    return folder


@pytest.mark.parametrize("name", DATA)
def test_a_recipe_trains_on_the_data_made_for_it(name, made, tmp_path):
    run = trained(
        name,
        tmp_path / "run",
        *(f"data.path={made / DATA[name]}", "data.batch_size=64", "data.threads=1"),
        *("train.log_every=1", "train.tensorboard=false"),
    )
    lines, evaluation = outcome(run)
    assert [line["step"] for line in lines if "loss" in line][-1] == 3
    assert 0 < evaluation["log_loss"] < 2


@pytest.mark.parametrize("name", DATA)
def test_layers_are_those_that_are_published(name, made):
    recipe = load_recipe(name)
    schema = Dataset(made / DATA[name]).schema
    model = build_model(recipe.model, ModelInputs(len(schema.numeric), schema.categorical))

    def widths(part):
        return [(layer.in_features, layer.out_features) for layer in part if hasattr(layer, "in_features")]

    assert (widths(model.bottom), widths(model.top)) == WIDTHS[name]
    rank = {"dlrm-v2": 512, "dlrm-v2-half": 256}.get(name)
    if rank is None:
        assert model.cross is None
    else:
        assert [[layer.out_features for layer in cross] for cross in model.cross.layers] == [
            [rank, 27 * recipe.model.dim]
        ] * 3


def test_shapes_are_those_that_are_published():
    lookups = {name: (len(model_shape(name).rows), sum(model_shape(name).lookups)) for name in DATA.values()}
    assert lookups == {"rm1": (8, 640), "rm2": (32, 3840), "rm3": (10, 200), "dlrm-v2": (26, 214)}
    assert all(max(model_shape(name).rows) <= 2_000_000 for name in DATA.values())
