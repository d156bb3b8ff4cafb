"""`make_budget`: the budget of some adaptive tables, wherever their rows lie."""

from __future__ import annotations

from collections.abc import Sequence

from megalith.core.errors import ConfigError
from megalith.embeddings.memory import memory_of
from megalith.embeddings.stores.adaptive.budget import AdaptiveBudget
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy
from megalith.embeddings.stores.adaptive.store import chunk_shape
from megalith.embeddings.stores.base import StoredTable


def make_budget(tables: Sequence[StoredTable], policy: AdaptivePolicy | None) -> AdaptiveBudget | None:
    """What the adaptive ones of these tables share, which are whole; None where there are none."""
    shapes, own, shared = set(), [], 0
    for table in tables:
        spec = table.spec.store_spec.chunks
        if spec is None:
            continue
        if policy is None:
            raise ConfigError(
                f"Table '{table.spec.name}' is adaptive: say how much memory all such tables may take, with "
                "adaptive=AdaptivePolicy(ratio=16)."
            )
        own.append(table)
        shape = chunk_shape(table, spec, policy.chunk)
        # Rows that a map gives out are in pools of their own.
        shapes.add((shape, table.spec.is_dynamic))
        ids = table.spec.store_spec.ids
        if ids is not None and ids.unknown == "shared":
            # Once for all ranks, each of which may have a copy: they decide by the same number.
            shared += shape.row_bytes(shape.chunks)
    if policy is None or not own:
        return None
    dense = memory_of([table.spec for table in own], [table.optimizer for table in own]).total
    rows = {table.spec.name: table.spec.rows for table in own}
    return AdaptiveBudget(policy, dense, rows, sum(shape.chunks for shape, _ in shapes), shared)
