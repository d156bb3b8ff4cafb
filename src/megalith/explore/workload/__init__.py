"""What a transformer asks of a device: operators, parameters, FLOPs.

dimensions.py   widths and heads, with defaults for what a job leaves out
operators.py    matrix products and memory-bound passes of a layer, the embedding and the output head
weights.py      parameters of a layer on one device, and of the whole model
flops.py        FLOPs of a step
"""

from __future__ import annotations

from megalith.explore.workload.dimensions import (
    LayerKind,
    ffn_of,
    head_dim_of,
    is_expert_layer,
    kv_heads_of,
    layer_kind,
    layer_kinds,
    shared_ffn_of,
)
from megalith.explore.workload.flops import model_flops, recompute_flops
from megalith.explore.workload.operators import (
    FlashAttention,
    LayerShape,
    MatrixProduct,
    MemoryPass,
    Operators,
    embedding_operators,
    head_operators,
    layer_operators,
    mtp_operators,
)
from megalith.explore.workload.weights import layer_weights, model_parameters, mtp_weights

__all__ = [
    "FlashAttention",
    "LayerKind",
    "LayerShape",
    "MatrixProduct",
    "MemoryPass",
    "Operators",
    "embedding_operators",
    "ffn_of",
    "head_dim_of",
    "head_operators",
    "is_expert_layer",
    "kv_heads_of",
    "layer_kind",
    "layer_kinds",
    "layer_operators",
    "layer_weights",
    "model_flops",
    "model_parameters",
    "mtp_operators",
    "mtp_weights",
    "recompute_flops",
    "shared_ffn_of",
]
