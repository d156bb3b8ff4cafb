"""A program of every operation there is, and weights for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from megalith.export.program import (
    Activation,
    Add,
    Affine,
    Columns,
    Concat,
    DotInteraction,
    LayerNorm,
    Linear,
    ModelProgram,
    Multiply,
    MultiplyAdd,
    PairSum,
    ProgramOutput,
    SumColumns,
)

DIM = 8


def every_operation(num_dense: int, columns: int, precision: Any = "float32") -> ModelProgram:
    """A model with dot interactions, a cross layer, a factorization term and two tasks."""
    layer: dict[str, Any] = {"precision": precision}
    return ModelProgram(
        inputs={"dense": num_dense, "embedded": columns},
        operations=(
            Linear(inputs=("dense",), output="h", weight="w0", bias="b0", function="relu", **layer),
            Linear(inputs=("h",), output="first", weight="w1", bias="b1", function="silu", **layer),
            DotInteraction(inputs=("first", "embedded"), output="pairs", dim=DIM),
            DotInteraction(inputs=("embedded",), output="other_pairs", dim=DIM),
            Linear(inputs=("embedded",), output="grouped", weight="w2", groups=columns // DIM, **layer),
            LayerNorm(inputs=("grouped",), output="normed", weight="g", bias="gb", eps=1e-5),
            Columns(inputs=("normed",), output="some", first=2, last=6),
            LayerNorm(inputs=("some",), output="plain", eps=1e-3),
            Linear(inputs=("first",), output="cross", weight="w3", bias="b3", **layer),
            MultiplyAdd(inputs=("first", "cross", "first"), output="crossed"),
            Multiply(inputs=("crossed", "first"), output="product"),
            Affine(inputs=("product",), output="affine", weight="g8", bias=0.25),
            Concat(inputs=("pairs", "plain", "affine", "other_pairs"), output="joined"),
            Linear(inputs=("joined",), output="top", weight="w4", bias="b4", function="gelu", **layer),
            Linear(inputs=("top",), output="deep", weight="w5", bias="b5", **layer),
            PairSum(inputs=("embedded",), output="pair_sum", dim=DIM),
            Affine(inputs=("pair_sum",), output="scaled", weight=0.05),
            SumColumns(inputs=("some",), output="wide"),
            Activation(inputs=("wide",), output="bounded", function="sigmoid"),
            Multiply(inputs=("bounded", "plain"), output="gated"),
            SumColumns(inputs=("gated",), output="gate"),
            Add(inputs=("deep", "scaled", "bounded", "gate"), output="logit"),
        ),
        outputs=(
            ProgramOutput(name="score", value="logit"),
            ProgramOutput(name="watch_time", value="deep", kind="number"),
        ),
    )


def weights_of(program: ModelProgram, seed: int = 0) -> dict[str, Tensor]:
    """Weights of `every_operation`, drawn from a seed."""
    draw = torch.Generator().manual_seed(seed)
    num_dense, columns = program.inputs["dense"], program.inputs["embedded"]
    vectors = columns // DIM
    pairs = vectors * (vectors - 1) // 2
    joined = DIM + (pairs + vectors) + 4 + DIM + pairs
    shapes: dict[str, tuple[int, ...]] = {
        "w0": (16, num_dense),
        "w1": (DIM, 16),
        "w2": (DIM, DIM),
        "w3": (DIM, DIM),
        "w4": (12, joined),
        "w5": (1, 12),
        "g": (columns,),
        "gb": (columns,),
        "g8": (DIM,),
        "b0": (16,),
        "b1": (DIM,),
        "b3": (DIM,),
        "b4": (12,),
        "b5": (1,),
    }
    found = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    return {
        name: made / made.shape[1] ** 0.5 if made.dim() == 2 else made * 0.2 for name, made in found.items()
    }
