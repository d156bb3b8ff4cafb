"""Tables of several dims before a model of one, and tables that features share."""

from __future__ import annotations

import pytest
import torch
from test_models import CONFIGS, SMALL

from megalith.core.errors import ConfigError
from megalith.core.schema import FeatureSpec
from megalith.models.base import ModelInputs
from megalith.models.custom import CustomConfig
from megalith.models.dlrm.config import DLRMConfig
from megalith.models.layers.projection import ProjectedModel
from megalith.models.registry import build_model

FEATURES = (
    FeatureSpec(name="user", num_ids=50),
    FeatureSpec(name="item", num_ids=30, vocabulary="item"),
    FeatureSpec(name="history", num_ids=30, max_length=None, vocabulary="item"),
    FeatureSpec(name="city", num_ids=9),
)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
@pytest.mark.parametrize("num_dense", [0, 3])
def test_every_model_takes_tables_of_other_dims(config, num_dense):
    torch.manual_seed(0)
    mixed = config.model_copy(update={"dims": {"user": 12, "item": 3}})
    tables = {table.name: table for table in mixed.tables(FEATURES)}
    assert {name: tables[name].dim for name in ("user", "item", "city")} == {
        "user": 12,
        "item": 3,
        "city": config.dim,
    }
    model = build_model(mixed, ModelInputs(num_dense, FEATURES))
    embedded = torch.randn(64, sum(table.output_dim for table in tables.values()), requires_grad=True)
    logits = model(torch.randn(64, num_dense), embedded)
    assert logits.shape == (64,)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert (embedded.grad.abs().sum(dim=0) > 0).float().mean() > 0.5


def test_a_projection_multiplies_each_vector_by_its_tables_matrix():
    config = DLRMConfig(dim=4, bottom=SMALL, top=SMALL, dims={"history": 2, "city": 4})
    model = build_model(config, ModelInputs(1, FEATURES))
    assert isinstance(model, ProjectedModel)
    [layer] = model.projections
    assert layer.bias is None
    dense = torch.randn(5, 1)
    user, item, history, city = (torch.randn(5, dim) for dim in (4, 2, 2, 4))
    projected = [user, item @ layer.weight.T, history @ layer.weight.T, city]
    wanted = model.model(dense, torch.cat(projected, dim=1))
    embedded = torch.cat([user, item, history, city], dim=1)
    torch.testing.assert_close(model(dense, embedded), wanted)
    torch.testing.assert_close(model(dense, embedded, model.begin(dense)), wanted)


def test_one_dim_needs_no_projection():
    config = DLRMConfig(dim=4, bottom=SMALL, top=SMALL, dims={"city": 4})
    assert not isinstance(build_model(config, ModelInputs(1, FEATURES)), ProjectedModel)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_features_of_one_vocabulary_share_a_table(config):
    tables = config.tables(FEATURES)
    assert [(table.name, table.features, table.rows) for table in tables[:3]] == [
        ("user", ("user",), 50),
        ("item", ("item", "history"), 30),
        ("city", ("city",), 9),
    ]


def test_dims_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match=r"dims names 'usr', which is no feature; did you mean 'user'"):
        DLRMConfig(dims={"usr": 8}).tables(FEATURES)
    with pytest.raises(ConfigError, match="several dims to item, history, which share a table"):
        DLRMConfig(dims={"item": 8, "history": 4}).tables(FEATURES)


def test_a_model_of_ones_own_gets_vectors_of_its_dim(tmp_path):
    (tmp_path / "own.py").write_text(
        """
from torch import nn
from megalith.models.base import ClickModel, ModelConfig

class OwnConfig(ModelConfig):
    plain: bool = False

    def tables(self, features):
        return self.tables_of_dim(features, self.dim) if self.plain else super().tables(features)

    def build(self, inputs):
        return Own(inputs.num_features * self.dim)

class Own(ClickModel):
    def __init__(self, width):
        super().__init__()
        self.last = nn.Linear(width, 1)

    def forward(self, dense, embedded):
        return self.last(embedded).squeeze(1)
"""
    )
    options = {"dim": 4, "dims": {"user": 9}}
    own = CustomConfig(file=tmp_path / "own.py", config="OwnConfig", options=options)
    model = build_model(own, ModelInputs(2, FEATURES))
    assert model(torch.randn(3, 2), torch.randn(3, 9 + 3 * 4)).shape == (3,)
    plain = CustomConfig(file=tmp_path / "own.py", config="OwnConfig", options={**options, "plain": True})
    with pytest.raises(ConfigError, match="no table of this model has them"):
        build_model(plain, ModelInputs(2, FEATURES))
