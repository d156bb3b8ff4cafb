"""A transformer as operators: the matrix products and the passes over memory of a layer.

Everything is for one micro-batch on one device of a tensor-, context- and expert-parallel group. Bytes per
element of the memory-bound operators are counted from the kernels of Megatron-LM: what each reads and writes,
fused where it fuses. `unfused` attention writes the scores to memory and reads them back for softmax and
dropout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from megalith.explore.job import TransformerModel
from megalith.explore.workload.dimensions import (
    LayerKind,
    ffn_of,
    head_dim_of,
    keys_of,
    kv_heads_of,
    shared_ffn_of,
)

ROUTING_KERNELS = 60
"""Kernels each way that route a layer's tokens to experts, in Megatron-Core's dropless dispatchers."""


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """[rows, depth] x [depth, columns], `batch` times."""

    name: str
    rows: int
    columns: int
    depth: int
    batch: int = 1
    weights: bool = True
    """One operand is a weight: the backward pass has an input and a weight gradient; otherwise both are
    inputs'."""
    core: bool = False
    """Between queries and context: what selective recompute does again."""
    quantised: bool = True
    """Runs in FP8, MXFP8 or NVFP4 where the training does; the router and the output head do not."""
    grouped: bool = False
    """One product for each of the experts on a device."""


@dataclass(frozen=True, slots=True)
class MemoryPass:
    """A memory-bound operator: bytes read and written, forward and backward, and its kernels."""

    name: str
    forward_bytes: float
    backward_bytes: float
    kernels: int = 1
    core: bool = False


@dataclass(frozen=True, slots=True)
class FlashAttention:
    """The attention's core as one fused kernel: scores never reach memory."""

    heads: int
    queries: int
    keys: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Operators:
    """What a device computes for one layer, or for the embedding or the output head."""

    products: tuple[MatrixProduct, ...] = ()
    passes: tuple[MemoryPass, ...] = ()
    flash: FlashAttention | None = None


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What of a plan a layer's operators depend on: parallel sizes, micro-batch, attention kernel."""

    tp: int
    cp: int
    ep: int
    micro_batch: int
    sequence_parallel: bool
    flash: bool
    etp: int = 0
    """Tensor parallelism of routed experts; 0: that of everything else."""
    modules: tuple[str, ...] = ()
    """What selective recompute does again; empty: what `selective` says."""
    selective: str = "core"
    """core: the attention's core; products: every second product and all that is not a product."""
    fused_loss: bool = True
    """Logits are kept once and become their own gradient."""
    narrow_dispatch: bool = False
    """FP8 training sends tokens to experts in FP8 too (DeepSeek-V3); otherwise in BF16."""

    @property
    def expert_tp(self) -> int:
        """Ranks that one routed expert is cut over."""
        return self.etp or self.tp


@lru_cache(maxsize=8192)
def layer_operators(model: TransformerModel, shape: LayerShape, kind: LayerKind) -> Operators:
    """One transformer layer on one device."""
    tokens = model.seq * shape.micro_batch // shape.cp
    attention, flash = _attention(model, shape, tokens, keys_of(model, kind.windowed))
    mlp_products, mlp_passes = _experts(model, shape, tokens) if kind.expert else _mlp(model, shape, tokens)
    # Layer norms, and dropout with the residual, are over the whole hidden state unless sequences are cut
    # too.
    whole = tokens * model.hidden / (shape.tp if shape.sequence_parallel else 1)
    around = (
        MemoryPass("layer norms", 2 * 4 * whole, 2 * 6 * whole, kernels=2),
        MemoryPass("dropout and residual", 2 * 7 * whole, 2 * 5 * whole, kernels=2),
        MemoryPass("residual gradients", 0, 2 * 6 * whole, kernels=0),
    )
    products, passes = attention
    return Operators((*products, *mlp_products), (*passes, *around, *mlp_passes), flash)


def _attention(
    model: TransformerModel, shape: LayerShape, tokens: int, keys: int
) -> tuple[tuple[tuple[MatrixProduct, ...], tuple[MemoryPass, ...]], FlashAttention | None]:
    heads = max(1, model.heads // shape.tp)
    kv_heads = max(1, kv_heads_of(model) // shape.tp)
    products: list[MatrixProduct]
    if model.low_rank_attention:
        low = model.low_rank_attention
        query, value = low.nope_head_dim + low.rope_head_dim, low.v_head_dim
        products = [
            MatrixProduct("kv down", tokens, low.kv_rank + low.rope_head_dim, model.hidden),
            MatrixProduct("kv up", tokens, heads * (low.nope_head_dim + value), low.kv_rank),
            MatrixProduct("proj", tokens, model.hidden, heads * value),
        ]
        if low.q_rank:
            products += [
                MatrixProduct("q down", tokens, low.q_rank, model.hidden),
                MatrixProduct("q up", tokens, heads * query, low.q_rank),
            ]
        else:
            products.append(MatrixProduct("q", tokens, heads * query, model.hidden))
        copied = tokens * heads * (2 * query + value)
    else:
        query = value = head_dim_of(model)
        products = [
            MatrixProduct("qkv", tokens, (heads + 2 * kv_heads) * query, model.hidden),
            MatrixProduct("proj", tokens, model.hidden, heads * value),
        ]
        copied = tokens * (heads + 2 * kv_heads) * query
    # Bias, rotary embedding and the split into heads: one pass over queries, keys and values.
    passes = [MemoryPass("split heads", 4 * copied, 4 * copied, kernels=2)]
    queries = model.seq // shape.cp
    # Keys come round the ring of context-parallel ranks; each rank sees all of them in the end.
    batch = shape.micro_batch * heads
    if shape.flash:
        return (tuple(products), tuple(passes)), FlashAttention(batch, queries, keys, (query + value) // 2)
    scores = batch * queries * keys
    products += [
        MatrixProduct("scores", queries, keys, query, batch, weights=False, core=True, quantised=False),
        MatrixProduct("context", queries, value, keys, batch, weights=False, core=True, quantised=False),
    ]
    passes += [
        MemoryPass("softmax", 4 * scores, 6 * scores, core=True),
        MemoryPass("attention dropout", 5 * scores, 5 * scores, core=True),
        MemoryPass("merge heads", 4 * tokens * heads * value, 4 * tokens * heads * value),
    ]
    return (tuple(products), tuple(passes)), None


def _mlp(
    model: TransformerModel, shape: LayerShape, tokens: int
) -> tuple[tuple[MatrixProduct, ...], tuple[MemoryPass, ...]]:
    width = ffn_of(model) // shape.tp
    up = 2 * width if model.gated else width
    products = (
        MatrixProduct("fc1", tokens, up, model.hidden),
        MatrixProduct("fc2", tokens, model.hidden, width),
    )
    return products, (_activation("activation", tokens * width, model.gated),)


def _activation(name: str, elements: float, gated: bool) -> MemoryPass:
    return MemoryPass(name, (6 if gated else 4) * elements, (10 if gated else 6) * elements)


def _experts(
    model: TransformerModel, shape: LayerShape, tokens: int
) -> tuple[tuple[MatrixProduct, ...], tuple[MemoryPass, ...]]:
    """Routed experts on this device: its tokens' choices spread evenly, all local experts in one grouped
    product. Experts cut over fewer ranks than the rest see the tokens of fewer ranks."""
    width = (model.expert_ffn or ffn_of(model)) // shape.expert_tp
    local = max(1, model.experts // shape.ep)
    routed = tokens * model.experts_per_token * shape.expert_tp // shape.tp
    rows = max(1, routed // local)
    up = 2 * width if model.gated else width
    products = [
        MatrixProduct("router", tokens, model.experts, model.hidden, quantised=False),
        MatrixProduct("experts 1", rows, up, model.hidden, local, grouped=True),
        MatrixProduct("experts 2", rows, model.hidden, width, local, grouped=True),
    ]
    moved = routed * model.hidden / (shape.expert_tp if shape.sequence_parallel else 1)
    passes = [
        _activation("expert activation", routed * width, model.gated),
        # Into the experts' order and back, weighted; the router's softmax, choice, counts and losses are
        # small kernels, and the host waits for the counts.
        MemoryPass("permute", 2 * 4 * moved, 2 * 4 * moved, kernels=ROUTING_KERNELS),
    ]
    if model.shared_experts:
        shared = shared_ffn_of(model) // shape.tp
        products += [
            MatrixProduct("shared 1", tokens, 2 * shared if model.gated else shared, model.hidden),
            MatrixProduct("shared 2", tokens, model.hidden, shared),
        ]
        passes.append(_activation("shared activation", tokens * shared, model.gated))
    return tuple(products), tuple(passes)


@lru_cache(maxsize=2048)
def embedding_operators(model: TransformerModel, shape: LayerShape) -> Operators:
    """What the first stage adds: rows fetched, summed with positions, dropped out."""
    elements = model.seq * shape.micro_batch // shape.cp * model.hidden
    return Operators((), (MemoryPass("embedding", 11 * elements, 9 * elements, kernels=3),))


@lru_cache(maxsize=2048)
def mtp_operators(model: TransformerModel, shape: LayerShape) -> Operators:
    """What a module of multi-token prediction does before its layer: norms of the hidden state and of the
    next token's embedding, and their projection from two widths to one (DeepSeek-V3)."""
    tokens = model.seq * shape.micro_batch // shape.cp
    whole = tokens * model.hidden / (shape.tp if shape.sequence_parallel else 1)
    return Operators(
        (MatrixProduct("projection", tokens, -(-model.hidden // shape.tp), 2 * model.hidden),),
        (MemoryPass("norms", 2 * 4 * whole, 2 * 6 * whole, kernels=2),),
    )


@lru_cache(maxsize=2048)
def head_operators(model: TransformerModel, shape: LayerShape) -> Operators:
    """What the last stage adds: final norm, vocabulary projection and the loss over it in single
    precision."""
    tokens = model.seq * shape.micro_batch // shape.cp
    logits = tokens * model.vocab / shape.tp
    whole = tokens * model.hidden / (shape.tp if shape.sequence_parallel else 1)
    return Operators(
        (MatrixProduct("vocabulary", tokens, -(-model.vocab // shape.tp), model.hidden, quantised=False),),
        (
            MemoryPass("final norm", 4 * whole, 6 * whole),
            # Cast (2+4), maximum (4), subtract (8), exponential (8), sum (4); gradient: scale (8), cast (6).
            # Fused: maximum and sum of exponentials in one pass, the gradient over the logits in another.
            MemoryPass("loss", 6 * logits, 4 * logits, kernels=3)
            if shape.fused_loss
            else MemoryPass("loss", 30 * logits, 14 * logits, kernels=8),
        ),
    )
