"""The model's part of Megatron-LM's arguments.

Names are those that megatron/training/arguments.py makes of TransformerConfig's fields.
"""

from __future__ import annotations

import shlex

from megalith.explore.job import TransformerModel
from megalith.explore.plan import Plan
from megalith.explore.workload import is_expert_layer, layer_kind, shared_ffn_of


def model_flags(model: TransformerModel, plan: Plan) -> list[str]:
    """Arguments of the model: sizes, attention, experts and how their tokens travel, further predictions."""
    ffn = model.ffn or 4 * model.hidden
    flags = [
        f"--num-layers {model.layers}",
        f"--hidden-size {model.hidden}",
        f"--ffn-hidden-size {ffn}",
        f"--num-attention-heads {model.heads}",
        f"--seq-length {model.seq}",
        f"--max-position-embeddings {model.seq}",
    ]
    if model.kv_heads and model.kv_heads != model.heads and not model.low_rank_attention:
        flags += ["--group-query-attention", f"--num-query-groups {model.kv_heads}"]
    if model.head_dim and not model.low_rank_attention:
        flags.append(f"--kv-channels {model.head_dim}")
    if model.gated:
        flags += ["--swiglu", "--normalization RMSNorm", "--disable-bias-linear"]
        flags += ["--position-embedding-type rope"]
    if not model.tied_embeddings:
        flags.append("--untie-embeddings-and-output-weights")
    if model.low_rank_attention:
        low = model.low_rank_attention
        flags.append("--multi-latent-attention")
        if low.q_rank:
            flags.append(f"--q-lora-rank {low.q_rank}")
        flags += [
            f"--kv-lora-rank {low.kv_rank}",
            f"--qk-head-dim {low.nope_head_dim}",
            f"--qk-pos-emb-head-dim {low.rope_head_dim}",
            f"--v-head-dim {low.v_head_dim}",
        ]
    if model.experts:
        expert = model.expert_ffn or ffn
        flags += [
            f"--num-experts {model.experts}",
            f"--moe-router-topk {model.experts_per_token}",
            f"--moe-ffn-hidden-size {expert}",
            "--moe-grouped-gemm",
            *_dispatcher(plan),
        ]
        if model.shared_experts:
            flags.append(f"--moe-shared-expert-intermediate-size {shared_ffn_of(model)}")
        pattern = [int(is_expert_layer(model, layer)) for layer in range(model.layers)]
        if not all(pattern):
            flags.append(f"--moe-layer-freq {shlex.quote(layer_pattern(pattern))}")
    if model.mtp_layers:
        flags.append(f"--mtp-num-layers {model.mtp_layers}")
    if model.window is not None and model.window < model.seq:
        windowed = [int(layer_kind(model, layer).windowed) for layer in range(model.layers)]
        flags.append(f"--window-size {model.window},0")
        if not all(windowed):
            flags.append(f"--window-attn-skip-freq {shlex.quote(layer_pattern(windowed))}")
    return flags


def _dispatcher(plan: Plan) -> list[str]:
    """The dispatcher that was predicted: each choice of a token by itself, or a token once to each node."""
    if plan.fabric.algorithm == "flat" or plan.shape.ep == 1:
        return ["--moe-token-dispatcher-type alltoall"]
    return ["--moe-token-dispatcher-type flex", "--moe-flex-dispatcher-backend deepep"]


def layer_pattern(kinds: list[int]) -> str:
    """A list of 0 and 1 by layer, as Megatron evaluates it.

    >>> layer_pattern([0, 0, 0, 1, 1, 1, 1])
    '([0]*3+[1]*4)'
    >>> layer_pattern([0, 1, 0, 1])
    '([0,1]*2)'
    """
    for length in range(1, len(kinds) // 2 + 1):
        times, rest = divmod(len(kinds), length)
        if rest == 0 and kinds[:length] * times == kinds:
            return f"([{','.join(map(str, kinds[:length]))}]*{times})"
    first = next((at for at, kind in enumerate(kinds) if kind != kinds[0]), len(kinds))
    return f"([{kinds[0]}]*{first}+{layer_pattern(kinds[first:]).strip('()')})"
