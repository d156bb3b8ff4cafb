"""Tables that were not frozen yet, as training describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from megalith.core.schema import TableSpec
from megalith.cost.serving.seconds import encoded_row_bytes
from megalith.export.partition.served.model import ServedTable


def served_tables(
    tables: Sequence[TableSpec], lookups: Mapping[str, float], precision: str, share: float = 1.0
) -> tuple[ServedTable, ...]:
    """Tables with the mean ids that an item looks up in each; `share` is what pruned rows keep of theirs."""
    served = []
    for table in tables:
        row = encoded_row_bytes(precision, table.dim) * share
        ids = lookups[table.name]
        vectors = ids if table.pooling == "none" else float(len(table.features))
        served.append(
            ServedTable(
                table.name,
                table.rows,
                table.dim,
                row,
                int(table.rows * row),
                table.features,
                item_lookups=ids,
                item_vectors=vectors,
            )
        )
    return tuple(served)
