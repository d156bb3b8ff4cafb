"""Programs against the models they were made of: every kind and option, and what is refused."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from megalith.core.errors import ConfigError
from megalith.core.schema import FeatureSpec
from megalith.export.interpret import run_operation, run_program
from megalith.export.program import Linear, ModelProgram
from megalith.export.trace import trace_model
from megalith.models.base import ClickModel, ModelInputs
from megalith.models.dcnv2.config import DCNv2Config
from megalith.models.deepfm.config import DeepFMConfig
from megalith.models.dlrm.config import DLRMConfig
from megalith.models.layers.mlp import MLPConfig
from megalith.models.registry import build_model
from megalith.models.wide_deep.config import WideDeepConfig
from megalith.ops.dense.linear_twin import bf16_linear_twin, int8_linear_twin
from megalith.ops.dense.quantise import quantise_weight

FEATURES = (
    FeatureSpec(name="a", num_ids=10),
    FeatureSpec(name="b", num_ids=11, vocabulary="b"),
    FeatureSpec(name="c", num_ids=11, max_length=None, vocabulary="b"),
    FeatureSpec(name="d", num_ids=13),
)
MLPS = [
    MLPConfig(layers=(8, 4), activation=activation, norm=norm, dropout=dropout)
    for activation, norm, dropout in itertools.product(
        ("relu", "gelu", "silu"), ("none", "batch", "layer"), (0.0, 0.3)
    )
]
CONFIGS = [
    *(DLRMConfig(dim=5, bottom=mlp, top=mlp) for mlp in MLPS),
    *(DLRMConfig(dim=5, interaction=kind, embedding_dropout=0.2) for kind in ("dot", "concat", "dot_concat")),
    DLRMConfig(dim=5, interaction="dcn"),
    *(DCNv2Config(dim=3, mlp=mlp) for mlp in MLPS),
    *(
        DCNv2Config(dim=3, rank=rank, structure=structure, num_crosses=count, input_dropout=0.1)
        for rank, structure, count in itertools.product((None, 2), ("stacked", "parallel"), (1, 3))
    ),
    *(DeepFMConfig(dim=4, mlp=mlp) for mlp in MLPS),
    *(WideDeepConfig(dim=4, mlp=mlp) for mlp in MLPS),
    DLRMConfig(dim=4, top=MLPConfig(layers=())),
    *(kind(dim=4, dims={"a": 2, "b": 7, "c": 7}) for kind in (DLRMConfig, DCNv2Config, DeepFMConfig)),
    WideDeepConfig(dim=4, dims={"d": 1}),
]


def traced(config, num_dense, seed=0):
    """A model with running statistics of its own, its inputs, and what its program gives for them."""
    torch.manual_seed(seed)
    model = build_model(config, ModelInputs(num_dense, FEATURES))
    width = sum(table.output_dim for table in config.tables(FEATURES))
    for _ in range(2):
        model(torch.randn(64, num_dense), torch.randn(64, width))
    program, weights = trace_model(model, num_dense, width)
    assert model.training
    model.eval()
    inputs = torch.randn(33, num_dense), torch.randn(33, width)
    # As it is read from a file.
    program = ModelProgram.model_validate_json(program.model_dump_json())
    assert set(program.weights) == set(weights)
    return model, inputs, program, run_program(program, weights, *inputs)


@pytest.mark.parametrize("num_dense", [0, 1, 6])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_a_program_computes_what_its_model_does(config, num_dense):
    model, inputs, program, found = traced(config, num_dense)
    with torch.no_grad():
        wanted = model(*inputs)
    if any(mlp.norm == "batch" for mlp in vars(config).values() if isinstance(mlp, MLPConfig)):
        torch.testing.assert_close(found[:, 0], wanted, rtol=1e-5, atol=1e-5)
        # Folded: no norm is left beside the layers.
        assert all(operation.kind != "affine" for operation in program.operations)
    else:
        assert torch.equal(found[:, 0], wanted)


def test_layers_are_named_after_their_modules_and_take_what_follows():
    _, _, program, _ = traced(DLRMConfig(dim=5, bottom=MLPConfig(layers=(8,)), top=MLPS[2]), 4)
    layers = {each.output: each.function for each in program.operations if isinstance(each, Linear)}
    assert layers == {
        "bottom.0": "relu",
        "bottom.1": "relu",
        "top.0": "relu",
        "top.3": "relu",
        "top.6": "none",
    }
    kinds = [each.kind for each in program.operations if not isinstance(each, Linear)]
    assert kinds == ["dot_interaction"]


def test_a_cross_is_a_multiply_add_and_pairs_are_one_sum():
    _, _, program, _ = traced(DCNv2Config(dim=3), 4)
    assert sum(each.kind == "multiply_add" for each in program.operations) == 3
    _, _, program, _ = traced(DeepFMConfig(dim=3), 4)
    kinds = sorted(each.kind for each in program.operations if not isinstance(each, Linear))
    assert kinds == ["add", "columns", "columns", "concat", "pair_sum", "sum_columns"]


class Own(ClickModel):
    """A model of one function of both inputs."""

    def __init__(self, compute):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(6))
        self.layer = nn.Linear(6, 1)
        self.compute = compute

    def forward(self, dense, embedded):
        return self.compute(self, dense, embedded)


OWN = {
    "norms": lambda m, d, e: m.layer(F.layer_norm(e, (6,))).squeeze(-1),
    "constants": lambda m, d, e: m.layer((e * m.scale + 3 - m.scale) / 2).flatten(),
    "reflected": lambda m, d, e: m.layer(1 - e).sum(1),
    "tanh": lambda m, d, e: m.layer(torch.tanh(e)).view(-1),
    "gates": lambda m, d, e: m.layer(e * torch.sigmoid(m.layer(e))).squeeze(1),
    "columns": lambda m, d, e: (e[:, 0] - e[:, -1] + d[:, 1:].mean(1)) * 2.0,
    "vectors": lambda m, d, e: m.layer(e).squeeze(1) + e.unflatten(1, (3, 2)).sum(1).sum(1),
    "parts": lambda m, d, e: m.layer(torch.cat(e.chunk(2, dim=1)[::-1], dim=1)).squeeze(1),
    "stacks": lambda m, d, e: m.layer(torch.stack([d, d], dim=1).flatten(1)).squeeze(1),
    "in place": lambda m, d, e: m.layer(F.relu(e * 1.5, inplace=True).add_(1.0)).squeeze(1),
    "squares": lambda m, d, e: -(e.square() - e * d.sum(1, keepdim=True)).sum(1),
}


@pytest.mark.parametrize("name", OWN)
def test_models_of_ones_own_are_programs_too(name):
    torch.manual_seed(1)
    model = Own(OWN[name]).eval()
    program, weights = trace_model(model, 3, 6)
    dense, embedded = torch.randn(40, 3), torch.randn(40, 6)
    with torch.no_grad():
        wanted = model(dense, embedded)
    found = run_program(program, weights, dense, embedded)[:, 0]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


REFUSED = {
    "aten.erf": lambda m, d, e: torch.erf(m.layer(e)).squeeze(1),
    "aten._softmax": lambda m, d, e: m.layer(torch.softmax(e, 1)).squeeze(1),
    "over samples": lambda m, d, e: m.layer(e - e.sum(0)).squeeze(1),
    "takes samples": lambda m, d, e: m.layer(e if e[0, 0] > 0 else -e).squeeze(1),
    "aten.t,": lambda m, d, e: (e @ e.t())[:, 0],
    "no operation": lambda m, d, e: torch.bmm(e.view(-1, 1, 6), e.view(-1, 6, 1)).view(-1),
    "not a logit of each": lambda m, d, e: e,
    "the same operations": lambda m, d, e: m.layer(e * torch.rand(())).squeeze(1),
    "batch's own statistics": lambda m, d, e: m.layer(F.batch_norm(e, None, None, training=True)).squeeze(1),
    "tanh approximation": lambda m, d, e: m.layer(F.gelu(e, approximate="tanh")).squeeze(1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_operation_stands_for_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=name):
        trace_model(Own(REFUSED[name]), 3, 6)


def test_a_refusal_names_the_module():
    model = Own(lambda m, d, e: m.odd(m.layer(e)).squeeze(1))
    model.odd = nn.Sequential(nn.ReLU(), nn.Softplus())
    with pytest.raises(ConfigError, match=r"Module 'odd.1' runs aten.softplus"):
        trace_model(model, 3, 6)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("function", ["none", "relu", "gelu", "silu", "sigmoid"])
def test_layers_in_few_bits_are_those_of_the_twins(function, groups):
    weight, bias = torch.randn(5, 4), torch.randn(5)
    given = torch.randn(9, 4 * groups)
    vectors = given.view(-1, 4)
    wanted = {
        "int8": int8_linear_twin(vectors, quantise_weight(weight, "u8s7"), bias, function),
        "bfloat16": bf16_linear_twin(vectors, weight, bias, function),
    }
    for precision, twin in wanted.items():
        layer = Linear(
            inputs=("embedded",),
            output="y",
            weight="w",
            bias="b",
            function=function,
            groups=groups,
            precision=precision,
        )
        found = run_operation(layer, {"w": weight, "b": bias}, [given])
        assert torch.equal(found, twin.view(9, -1))
