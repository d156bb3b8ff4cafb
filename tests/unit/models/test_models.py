"""Every model: shapes, what it computes on small inputs, any mixture of inputs, and one from outside."""

import pytest
import torch

from megalith.core.errors import ConfigError
from megalith.core.schema import FeatureSpec
from megalith.models.base import ModelInputs
from megalith.models.custom import CustomConfig
from megalith.models.dcnv2.config import DCNv2Config
from megalith.models.deepfm.config import DeepFMConfig
from megalith.models.dlrm.config import DLRMConfig
from megalith.models.layers.cross import CrossNetwork
from megalith.models.layers.interaction import factorization_term
from megalith.models.layers.mlp import MLPConfig, build_mlp
from megalith.models.wide_deep.config import WideDeepConfig
from megalith.ops.interaction.dot_twin import dot_interaction_twin

FEATURES = tuple(FeatureSpec(name=f"f{i}", num_ids=10 + i) for i in range(3))
SMALL = MLPConfig(layers=(8, 4))
CONFIGS = [
    DLRMConfig(dim=5, bottom=SMALL, top=SMALL),
    DLRMConfig(dim=5, bottom=SMALL, top=SMALL, interaction="concat"),
    DLRMConfig(dim=5, bottom=SMALL, top=SMALL, interaction="dot_concat", embedding_dropout=0.5),
    DLRMConfig(dim=5, bottom=SMALL, top=SMALL, interaction="dcn", num_crosses=2, rank=3),
    DCNv2Config(dim=1, mlp=SMALL),
    DCNv2Config(dim=5, mlp=SMALL, rank=2, structure="stacked", input_dropout=0.1),
    DeepFMConfig(dim=7, mlp=MLPConfig(layers=(8,), norm="batch", dropout=0.2)),
    WideDeepConfig(dim=2, mlp=MLPConfig(layers=(8,), norm="layer", activation="gelu")),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
@pytest.mark.parametrize("num_dense", [0, 1, 4])
def test_one_logit_a_sample_and_a_gradient_everywhere(config, num_dense):
    # Of a few units and samples all may be dead.
    torch.manual_seed(0)
    inputs = ModelInputs(num_dense, FEATURES)
    model = config.build(inputs)
    width = sum(table.output_dim for table in config.tables(FEATURES))
    embedded = torch.randn(64, width, requires_grad=True)
    logits = model(torch.randn(64, num_dense), embedded)
    assert logits.shape == (64,)
    logits.sum().backward()
    assert embedded.grad.abs().sum() > 0
    assert all(p.grad is not None for p in model.parameters())


def test_the_factorization_term_is_the_sum_of_all_pairs():
    vectors = torch.randn(5, 4, 3)
    pairs = dot_interaction_twin(None, vectors.flatten(1), 3)
    torch.testing.assert_close(factorization_term(vectors), pairs.sum(dim=1))


def test_a_cross_is_the_papers_formula():
    network = CrossNetwork(dim=3, num_layers=2)
    start = torch.randn(4, 3)
    first = start * (start @ network.layers[0].weight.T + network.layers[0].bias) + start
    second = start * (first @ network.layers[1].weight.T + network.layers[1].bias) + first
    torch.testing.assert_close(network(start), second)


def test_a_low_rank_cross_has_fewer_weights():
    def count(rank):
        return sum(p.numel() for p in CrossNetwork(20, 1, rank).parameters())

    assert count(None) == 20 * 20 + 20
    assert count(2) == 2 * 20 * 2 + 20


@pytest.mark.parametrize("rank", [None, 4])
def test_dlrm_with_crosses_is_dlrm_dcn(rank):
    """As TorchRec defines it: crosses x_0 * (W (V x) + b) + x over [bottom's vector | all vectors]."""
    torch.manual_seed(0)
    config = DLRMConfig(dim=5, bottom=SMALL, top=SMALL, interaction="dcn", num_crosses=2, rank=rank)
    model = config.build(ModelInputs(3, FEATURES))
    dense, embedded = torch.randn(6, 3), torch.randn(6, 15)
    start = crossed = torch.cat([model.begin(dense), embedded], dim=1)
    for layer in model.cross.layers:
        mixed = crossed @ layer.weight.T + layer.bias if rank is None else _low_rank(layer, crossed)
        crossed = start * mixed + crossed
    torch.testing.assert_close(model(dense, embedded), model.top(crossed).squeeze(1))
    assert len(model.cross.layers) == 2
    assert model.top[0].in_features == 20


def _low_rank(layer, crossed):
    down, up = layer
    assert down.weight.shape == (4, 20)
    assert down.bias is None
    return crossed @ down.weight.T @ up.weight.T + up.bias


@pytest.mark.parametrize(("key", "value"), [("num_crosses", 2), ("rank", 8)])
def test_settings_of_crosses_are_refused_without_them(key, value):
    with pytest.raises(ValueError, match=f"{key} is for interaction: dcn, not dot; leave it out"):
        DLRMConfig(**{key: value})
    assert getattr(DLRMConfig(interaction="dcn", **{key: value}), key) == value


def test_linear_tables_have_one_column_and_start_at_zero():
    tables = DeepFMConfig(dim=4).tables(FEATURES)
    assert [(t.dim, t.init_scale) for t in tables] == [(4, None)] * 3 + [(1, 0.0)] * 3
    assert len({t.name for t in tables}) == 6


def test_mlp_layers_come_in_order():
    kinds = [type(m).__name__ for m in build_mlp(MLPConfig(layers=(4,), norm="batch", dropout=0.5), 3, 1)]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Dropout", "Linear"]


OWN_MODEL = """
from torch import nn
from megalith.models.base import ClickModel, ModelConfig, ModelInputs

class Tiny(ClickModel):
    def __init__(self, config, inputs):
        super().__init__()
        self.head = nn.Linear(inputs.num_features * config.dim, config.hidden)
    def forward(self, dense, embedded):
        return self.head(embedded).sum(dim=1)

class TinyConfig(ModelConfig):
    hidden: int = 4
    def build(self, inputs):
        return Tiny(self, inputs)
"""


def test_a_model_from_a_file_outside_the_package(tmp_path):
    (tmp_path / "mine.py").write_text(OWN_MODEL)
    config = CustomConfig(file=tmp_path / "mine.py", config="TinyConfig", options={"dim": 3, "hidden": 2})
    model = config.build(ModelInputs(0, FEATURES))
    assert [t.dim for t in config.tables(FEATURES)] == [3, 3, 3]
    assert model(torch.zeros(2, 0), torch.randn(2, 9)).shape == (2,)


@pytest.mark.parametrize(
    ("text", "config", "options", "sentence"),
    [
        (OWN_MODEL, "TinyConfg", {}, "did you mean 'TinyConfig'"),
        (OWN_MODEL, "TinyConfig", {"hiden": 3}, "unknown key 'hiden'; did you mean 'hidden'?"),
        ("import nothing_of_that_name", "TinyConfig", {}, "does not load: ModuleNotFoundError"),
        (None, "TinyConfig", {}, "does not exist"),
    ],
)
def test_a_model_file_that_is_wrong_is_one_sentence(tmp_path, text, config, options, sentence):
    path = tmp_path / "wrong.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=sentence.replace("?", r"\?")):
        CustomConfig(file=path, config=config, options=options).load()
