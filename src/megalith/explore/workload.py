"""A transformer as operators: which matrix products, which passes over memory, which traffic a layer needs.

Everything is for one micro-batch on one device of a tensor-, context- and expert-parallel group. Bytes per
element of the memory-bound operators are counted from the kernels of Megatron-LM: what each reads and writes,
fused where it fuses. `unfused` attention writes the scores to memory and reads them back for softmax and
dropout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from megalith.explore.job import TransformerModel


@dataclass(frozen=True, slots=True)
class Product:
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


@dataclass(frozen=True, slots=True)
class Pass:
    """A memory-bound operator: bytes read and written, forward and backward, and its kernels."""

    name: str
    forward_bytes: float
    backward_bytes: float
    kernels: int = 1
    core: bool = False


@dataclass(frozen=True, slots=True)
class FlashAttention:
    heads: int
    queries: int
    keys: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Operators:
    """One layer, or the first or last stage's extra."""

    products: tuple[Product, ...] = ()
    passes: tuple[Pass, ...] = ()
    flash: FlashAttention | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """How a model is cut: the part of the plan that operators depend on."""

    tp: int
    cp: int
    ep: int
    micro_batch: int
    sequence_parallel: bool
    flash: bool


def ffn_of(model: TransformerModel) -> int:
    return model.ffn or 4 * model.hidden


def kv_heads_of(model: TransformerModel) -> int:
    return model.kv_heads or model.heads


def head_dim_of(model: TransformerModel) -> int:
    return model.head_dim or model.hidden // model.heads


def is_expert_layer(model: TransformerModel, layer: int) -> bool:
    return model.experts > 0 and layer >= model.dense_layers


@lru_cache(maxsize=8192)
def layer_operators(model: TransformerModel, shape: Shape, expert: bool) -> Operators:
    """One transformer layer on one device."""
    tokens = model.seq * shape.micro_batch // shape.cp
    attention, flash = _attention(model, shape, tokens)
    mlp_products, mlp_passes = _experts(model, shape, tokens) if expert else _mlp(model, shape, tokens)
    # Layer norms, and dropout with the residual, are over the whole hidden state unless sequences are cut
    # too.
    whole = tokens * model.hidden / (shape.tp if shape.sequence_parallel else 1)
    around = (
        Pass("layer norms", 2 * 4 * whole, 2 * 6 * whole, kernels=2),
        Pass("dropout and residual", 2 * 7 * whole, 2 * 5 * whole, kernels=2),
        Pass("residual gradients", 0, 2 * 6 * whole, kernels=0),
    )
    products, passes = attention
    return Operators((*products, *mlp_products), (*passes, *around, *mlp_passes), flash)


def _attention(
    model: TransformerModel, shape: Shape, tokens: int
) -> tuple[tuple[tuple[Product, ...], tuple[Pass, ...]], FlashAttention | None]:
    heads = max(1, model.heads // shape.tp)
    kv_heads = max(1, kv_heads_of(model) // shape.tp)
    products: list[Product]
    if model.low_rank_attention:
        low = model.low_rank_attention
        query, value = low.nope_head_dim + low.rope_head_dim, low.v_head_dim
        products = [
            Product("kv down", tokens, low.kv_rank + low.rope_head_dim, model.hidden),
            Product("kv up", tokens, heads * (low.nope_head_dim + value), low.kv_rank),
            Product("proj", tokens, model.hidden, heads * value),
        ]
        if low.q_rank:
            products += [
                Product("q down", tokens, low.q_rank, model.hidden),
                Product("q up", tokens, heads * query, low.q_rank),
            ]
        else:
            products.append(Product("q", tokens, heads * query, model.hidden))
        copied = tokens * heads * (2 * query + value)
    else:
        query = value = head_dim_of(model)
        products = [
            Product("qkv", tokens, (heads + 2 * kv_heads) * query, model.hidden),
            Product("proj", tokens, model.hidden, heads * value),
        ]
        copied = tokens * (heads + 2 * kv_heads) * query
    # Bias, rotary embedding and the split into heads: one pass over queries, keys and values.
    passes = [Pass("heads apart", 4 * copied, 4 * copied, kernels=2)]
    queries = model.seq // shape.cp
    # Keys come round the ring of context-parallel ranks; each rank sees all of them in the end.
    batch = shape.micro_batch * heads
    if shape.flash:
        return (tuple(products), tuple(passes)), FlashAttention(
            batch, queries, model.seq, (query + value) // 2
        )
    scores = batch * queries * model.seq
    products += [
        Product("scores", queries, model.seq, query, batch, weights=False, core=True),
        Product("context", queries, value, model.seq, batch, weights=False, core=True),
    ]
    passes += [
        Pass("softmax", 4 * scores, 6 * scores, core=True),
        Pass("attention dropout", 5 * scores, 5 * scores, core=True),
        Pass("heads together", 4 * tokens * heads * value, 4 * tokens * heads * value),
    ]
    return (tuple(products), tuple(passes)), None


def _mlp(model: TransformerModel, shape: Shape, tokens: int) -> tuple[tuple[Product, ...], tuple[Pass, ...]]:
    width = ffn_of(model) // shape.tp
    up = 2 * width if model.gated else width
    products = (Product("fc1", tokens, up, model.hidden), Product("fc2", tokens, model.hidden, width))
    return products, (_activation("activation", tokens * width, model.gated),)


def _activation(name: str, elements: float, gated: bool) -> Pass:
    return Pass(name, (6 if gated else 4) * elements, (10 if gated else 6) * elements)


def _experts(
    model: TransformerModel, shape: Shape, tokens: int
) -> tuple[tuple[Product, ...], tuple[Pass, ...]]:
    """Routed experts on this device: its tokens' choices spread evenly, all local experts in one grouped
    product."""
    width = (model.expert_ffn or ffn_of(model)) // shape.tp
    local = max(1, model.experts // shape.ep)
    routed = tokens * model.experts_per_token
    rows = max(1, routed // local)
    up = 2 * width if model.gated else width
    products = [
        Product("router", tokens, model.experts, model.hidden),
        Product("experts 1", rows, up, model.hidden, local),
        Product("experts 2", rows, model.hidden, width, local),
    ]
    moved = routed * model.hidden / (shape.tp if shape.sequence_parallel else 1)
    passes = [
        _activation("expert activation", routed * width, model.gated),
        # Into the experts' order and back, weighted.
        Pass("permute", 2 * 4 * moved, 2 * 4 * moved, kernels=4),
    ]
    if model.shared_experts:
        shared = model.shared_experts * width
        products += [
            Product("shared 1", tokens, 2 * shared if model.gated else shared, model.hidden),
            Product("shared 2", tokens, model.hidden, shared),
        ]
        passes.append(_activation("shared activation", tokens * shared, model.gated))
    return tuple(products), tuple(passes)


@lru_cache(maxsize=2048)
def embedding_operators(model: TransformerModel, shape: Shape) -> Operators:
    """What the first stage adds: rows fetched, summed with positions, dropped out."""
    elements = model.seq * shape.micro_batch // shape.cp * model.hidden
    return Operators((), (Pass("embedding", 11 * elements, 9 * elements, kernels=3),))


@lru_cache(maxsize=2048)
def head_operators(model: TransformerModel, shape: Shape) -> Operators:
    """What the last stage adds: final norm, vocabulary projection and the loss over it in single
    precision."""
    tokens = model.seq * shape.micro_batch // shape.cp
    logits = tokens * model.vocab / shape.tp
    whole = tokens * model.hidden / (shape.tp if shape.sequence_parallel else 1)
    return Operators(
        (Product("vocabulary", tokens, -(-model.vocab // shape.tp), model.hidden),),
        (
            Pass("final norm", 4 * whole, 6 * whole),
            # Cast (2+4), maximum (4), subtract (8), exponential (8), sum (4); gradient: scale (8), cast (6).
            Pass("loss", 30 * logits, 14 * logits, kernels=8),
        ),
    )


@lru_cache(maxsize=4096)
def layer_weights(model: TransformerModel, expert: bool, tp: int = 1, ep: int = 1) -> tuple[float, float]:
    """Parameters of one layer on one device: those that all data-parallel ranks share, and the routed
    experts'."""
    hidden = model.hidden
    if model.low_rank_attention:
        low = model.low_rank_attention
        query = low.nope_head_dim + low.rope_head_dim
        # The projections down to the ranks are small and kept whole on every tensor-parallel rank.
        attention = float(hidden * (low.kv_rank + low.rope_head_dim) + hidden * low.q_rank)
        per_head = low.kv_rank * (low.nope_head_dim + low.v_head_dim) + low.v_head_dim * hidden
        per_head += query * (low.q_rank or hidden)
        attention += model.heads * per_head / tp
    else:
        head_dim = head_dim_of(model)
        attention = (2 * model.heads + 2 * max(kv_heads_of(model), tp)) * head_dim * hidden / tp
    matrices = 3 if model.gated else 2
    norms = 4 * hidden
    if not expert:
        return attention + matrices * hidden * ffn_of(model) / tp + norms, 0.0
    width = model.expert_ffn or ffn_of(model)
    shared = model.shared_experts * matrices * hidden * width / tp + model.experts * hidden
    return attention + shared + norms, model.experts / ep * matrices * hidden * width / tp


def parameters(model: TransformerModel) -> float:
    """Parameters of the whole model."""
    expert = model.layers - model.dense_layers if model.experts else 0
    total = (model.layers - expert) * sum(layer_weights(model, False))
    total += expert * sum(layer_weights(model, True))
    return total + model.vocab * model.hidden * (1 if model.tied_embeddings else 2)


def model_flops(model: TransformerModel, sequences: float) -> float:
    """FLOPs of a step without recompute, by Narayanan's count: every product once forward and twice backward.

    For GPT blocks this is 72 B s l h^2 (1 + s/6h + V/12lh). Attention is counted in full, as the formula
    does.
    """
    shape = Shape(1, 1, 1, 1, False, False)
    total = 0.0
    for expert in (False, True):
        layers = sum(1 for layer in range(model.layers) if is_expert_layer(model, layer) == expert)
        if layers:
            total += layers * _product_flops(layer_operators(model, shape, expert))
    return 3 * sequences * (total + _product_flops(head_operators(model, shape)))


def recompute_flops(model: TransformerModel, sequences: float, recompute: str, flash: bool) -> float:
    """FLOPs done a second time: the layers' forward (full), or the attention's core (selective, unfused)."""
    if recompute == "none" or (recompute == "selective" and flash):
        return 0.0
    shape = Shape(1, 1, 1, 1, False, False)
    total = 0.0
    for expert in (False, True):
        layers = sum(1 for layer in range(model.layers) if is_expert_layer(model, layer) == expert)
        if layers:
            operators = layer_operators(model, shape, expert)
            total += layers * _product_flops(operators, core_only=recompute == "selective")
    return sequences * total


def _product_flops(operators: Operators, core_only: bool = False) -> float:
    return sum(
        2.0 * product.rows * product.columns * product.depth * product.batch
        for product in operators.products
        if product.core or not core_only
    )
