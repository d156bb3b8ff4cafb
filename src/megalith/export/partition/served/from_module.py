"""A model that was not frozen yet: tables as training has them, products counted on the module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from megalith.core.schema import TableSpec
from megalith.cost.serving.seconds import encoded_row_bytes
from megalith.export.partition.served.dense_work import WEIGHT_BYTES
from megalith.export.partition.served.model import DenseWork, ServedModel, ServedTable

if TYPE_CHECKING:
    from torch import nn


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


def served_module(
    name: str, tables: tuple[ServedTable, ...], module: nn.Module, num_dense: int, precision: tuple[str, str]
) -> ServedModel:
    """The model of a module that every item passes through once: each matrix of it is one product.

    `precision` is that of tables and that of matrices. Products of pairs of vectors are not counted.
    """
    of_tables, of_dense = precision
    matrices = [weight for weight in module.parameters() if weight.dim() == 2]
    vectors = sum(int(table.item_vectors) * table.dim for table in tables)
    work = DenseWork(
        operations={of_dense: float(sum(2 * weight.numel() for weight in matrices))},
        weight_bytes=sum(weight.numel() * WEIGHT_BYTES[of_dense] + 4 * len(weight) for weight in matrices),
        num_inputs=num_dense,
        columns=num_dense + vectors + sum(len(weight) for weight in matrices),
    )
    return ServedModel(name, tables, work, of_tables)
