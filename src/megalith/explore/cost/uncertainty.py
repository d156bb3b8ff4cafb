"""How far predictions of a kind have been from measurements: mean absolute errors of held-out rows.

`megalith explore validate` prints the same figures as `held_out`, and a test holds the two together.
"""

from __future__ import annotations

HELD_OUT = {"a100": 0.057, "a100 across nodes": 0.035, "h100": 0.034}
"""Rows with tensor parallelism inside a node on A100, across nodes, and on H100."""
UNSEEN_DEVICE = 0.15
"""A device without measurements: its fraction of peak is a default."""
UNSEEN_LEVEL = 0.10
"""Added for each level beyond nodes of one zone: nothing measured there is public."""


def uncertainty_of(device: str, levels_crossed: int, tensor_across_nodes: bool) -> float:
    """Typical relative error of a step on `device` that uses so many levels of its cluster."""
    family = device.split("-")[0]
    known = HELD_OUT.get(f"{family} across nodes" if tensor_across_nodes else family, HELD_OUT.get(family))
    base = UNSEEN_DEVICE if known is None else known
    return round(base + UNSEEN_LEVEL * max(0, levels_crossed - 2), 4)
