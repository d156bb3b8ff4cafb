"""Layers of each pipeline stage, so that the busiest device has as little to do as possible."""

from __future__ import annotations

from functools import lru_cache

from megalith.explore.job import TransformerModel
from megalith.explore.workload import (
    LayerShape,
    Operators,
    head_operators,
    layer_kind,
    layer_operators,
    mtp_operators,
)


@lru_cache(maxsize=4096)
def spread_layers(
    layers: int, devices: int, chunks: int = 1, head: float = 0.0, *, folded: bool = False
) -> tuple[int, ...]:
    """Layers of each of devices x chunks virtual stages; the last has `head` layers' worth of work besides.

    Each layer goes to the device that has the least, there to the chunk that has the fewest; of equals to one
    in the middle, as the first stage also holds the embedding. With equal layers no other partition has a
    lower maximum. `folded` puts the second chunks back to front, as ZB-V does.

    >>> spread_layers(30, 4, head=1.5)
    (8, 8, 8, 6)
    """
    stages = devices * chunks
    owner = [*range(devices), *reversed(range(devices))] if folded else list(range(devices)) * chunks
    counts = [0] * stages
    load = [0.0] * devices
    load[owner[-1]] += head
    stages_of: list[list[int]] = [[] for _ in range(devices)]
    for stage, device in enumerate(owner):
        stages_of[device].append(stage)
    # The embedding costs next to nothing: it only decides between equals.
    tie_break = [1e-6 if device == owner[0] else 0.0 for device in range(devices)]
    for _ in range(layers):
        device = min(range(devices), key=lambda d: (load[d] + tie_break[d], abs(d - devices // 2)))
        last = stages - 1
        stage = min(stages_of[device], key=lambda s: (counts[s] + (head if s == last else 0.0), s))
        counts[stage] += 1
        load[device] += 1
    return tuple(counts)


def head_in_layers(model: TransformerModel) -> float:
    """FLOPs of the vocabulary's projection, and of multi-token prediction, over those of the last layer."""
    shape = LayerShape(1, 1, 1, 1, False, False)
    layer = _flops(layer_operators(model, shape, layer_kind(model, model.layers - 1)))
    head = _flops(head_operators(model, shape))
    modules = model.mtp_layers * (_flops(mtp_operators(model, shape)) + layer + head)
    return (head + modules) / layer


def _flops(operators: Operators) -> float:
    return sum(float(p.rows) * p.columns * p.depth * p.batch for p in operators.products)
