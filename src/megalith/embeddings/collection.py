"""`EmbeddingCollection`: many tables looked up in one call, updated in the backward pass.

    emb = EmbeddingCollection(tables, optimizer=RowWiseAdaGrad(lr=0.01), seed=0)
    out = emb(values, offsets)      # [batch, sum of dims]
    out.backward(gradient)          # every touched row is updated exactly once

Weights are buffers, not parameters: no dense optimizer, and no gradient tensor, ever sees them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from megalith.core.errors import ConfigError, DataError
from megalith.core.schema import TableSpec, check_tables, feature_order
from megalith.embeddings.optimizers import RowOptimizer, RowWiseAdaGrad, State
from megalith.ops.indices import first_out_of_range
from megalith.ops.lookup import pooled_lookup, reduce_duplicates, value_gradients

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Lookup(NamedTuple):
    """What one call reads: pooled vectors side by side, and the sequences of tables that do not pool."""

    pooled: Tensor
    """float32 [batch, output_dim], table by table, feature by feature"""
    sequences: dict[tuple[str, str], Tensor]
    """(table, feature) -> float32 [ids of that feature, dim], in the order of `values`"""


class EmbeddingCollection(nn.Module):
    """Embedding tables over one list of features.

    `values` and `offsets` are feature-major in the order of `features`: every feature once, as the tables
    first name it. Start values depend on the seed and the table's name alone.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        optimizer: RowOptimizer | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        check_tables(tables)
        self.tables = tuple(tables)
        self.features = feature_order(tables)
        self.optimizer: RowOptimizer = optimizer or RowWiseAdaGrad()
        self.lr_factor = 1.0
        """Multiplies the optimizer's learning rate; a schedule sets it before each step."""
        self.num_steps = 0
        self._positions = {feature: position for position, feature in enumerate(self.features)}
        rows: dict[str, int] = {}
        for table in tables:
            for feature in table.features:
                rows[feature] = min(rows.get(feature, table.rows), table.rows)
        self._rows = torch.tensor([rows[f] for f in self.features], device=device)
        self._weights: dict[str, Tensor] = {}
        self._states: dict[str, State] = {}
        for table in tables:
            self._weights[table.name] = _start_values(table, seed).to(device)
            self._states[table.name] = self.optimizer.new_state(table, torch.device(device))
        # Autograd calls backward only for outputs that depend on something which wants a gradient.
        self._anchor = torch.zeros((), requires_grad=True, device=device)

    @property
    def output_dim(self) -> int:
        return sum(table.output_dim for table in self.tables)

    def weight(self, table: str) -> Tensor:
        """The stored rows of a table, [rows, dim]; changes as training goes on."""
        return self._weights[table]

    def state(self, table: str) -> State:
        """The optimizer state of a table."""
        return self._states[table]

    def forward(self, values: Tensor, offsets: Tensor) -> Tensor:
        """Pooled vectors [batch, output_dim]."""
        return self.lookup(values, offsets).pooled

    def lookup(self, values: Tensor, offsets: Tensor) -> Lookup:
        """Pooled vectors and sequences of one batch, from one pass over the indices."""
        self.check(values, offsets)
        anchor = self._anchor if torch.is_grad_enabled() else self._anchor.detach()
        pooled, *sequences = _LookupFunction.apply(anchor, self, values, offsets)
        names = [(t.name, f) for t in self.tables if t.pooling == "none" for f in t.features]
        return Lookup(pooled, dict(zip(names, sequences, strict=True)))

    def check(self, values: Tensor, offsets: Tensor) -> None:
        """Refuses offsets that do not fit and indices out of range, before anything is read or written."""
        num_bags = len(offsets) - 1
        if num_bags < 0 or num_bags % len(self.features):
            raise DataError(
                f"offsets has {len(offsets)} entries; pass features * batch + 1, a multiple of "
                f"{len(self.features)} features and one more."
            )
        if int(offsets[0]) != 0 or int(offsets[-1]) != len(values) or bool((torch.diff(offsets) < 0).any()):
            raise DataError(
                f"offsets must rise from 0 to the number of values ({len(values)}); they run from "
                f"{int(offsets[0])} to {int(offsets[-1])} or fall in between."
            )
        batch = num_bags // len(self.features)
        if batch == 0:
            return
        ends = offsets[batch::batch]
        position = int(first_out_of_range(values, ends, self._rows))
        if position >= 0:
            raise DataError(self._describe(values, offsets, batch, position))

    def _describe(self, values: Tensor, offsets: Tensor, batch: int, position: int) -> str:
        bag = int(torch.searchsorted(offsets, torch.tensor(position), right=True)) - 1
        feature = self.features[bag // batch]
        table = min((t for t in self.tables if feature in t.features), key=lambda t: t.rows)
        return (
            f"Index {int(values[position])} of feature '{feature}' in sample {bag % batch} is outside table "
            f"'{table.name}' of {table.rows} rows; prepare the data again or give the table more rows."
        )

    def _feature_bags(self, feature: str, values: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """A feature's values and its own offsets from 0."""
        batch = (len(offsets) - 1) // len(self.features)
        start = self._positions[feature] * batch
        bounds = offsets[start : start + batch + 1]
        begin, end = int(bounds[0]), int(bounds[-1])
        return values[begin:end], bounds - begin

    def read(self, values: Tensor, offsets: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The forward pass: pooled columns, and one sequence for each feature of a table without pooling."""
        batch = (len(offsets) - 1) // len(self.features)
        pooled = torch.empty(batch, self.output_dim, device=values.device)
        sequences, column = [], 0
        for table in self.tables:
            weight = self._weights[table.name]
            for feature in table.features:
                ids, bounds = self._feature_bags(feature, values, offsets)
                if table.pooling == "none":
                    sequences.append(weight[ids].float())
                    continue
                pooled[:, column : column + table.dim] = pooled_lookup(weight, ids, bounds, table.pooling)
                column += table.dim
        return pooled, sequences

    def update(self, values: Tensor, offsets: Tensor, pooled: Tensor | None, sequences: list[Any]) -> None:
        """The backward pass: gradients of outputs in, one optimizer step on the touched rows out."""
        self.num_steps += 1
        lr, column, remaining = self.optimizer.lr * self.lr_factor, 0, iter(sequences)
        for table in self.tables:
            weight, ids, gradients = self._weights[table.name], [], []
            for feature in table.features:
                bag_ids, bounds = self._feature_bags(feature, values, offsets)
                if table.pooling == "none":
                    gradient = next(remaining)
                elif pooled is not None:
                    part = pooled[:, column : column + table.dim].contiguous()
                    gradient = value_gradients(weight, bag_ids, bounds, table.pooling, part)
                    column += table.dim
                else:
                    gradient = None
                if gradient is not None:
                    ids.append(bag_ids)
                    gradients.append(gradient)
            if ids and sum(len(one) for one in ids):
                touched = reduce_duplicates(torch.cat(ids), torch.cat(gradients))
                self.optimizer.step(weight, self._states[table.name], touched, self.num_steps, lr)

    def get_extra_state(self) -> dict[str, Any]:
        """Weights, optimizer state and the step count, by table name, for `state_dict`."""
        return {"num_steps": self.num_steps, "weights": self._weights, "states": self._states}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        if set(state["weights"]) != set(self._weights):
            raise ConfigError(
                "The saved tables are not those of this collection; load it with its own recipe."
            )
        self.num_steps = int(state["num_steps"])
        for name, weight in state["weights"].items():
            self._weights[name].copy_(weight)
            for key, value in state["states"][name].items():
                self._states[name][key].copy_(value)


class _LookupFunction(torch.autograd.Function):
    """Joins the collection to autograd: reads in forward, updates the tables in backward."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, emb: EmbeddingCollection, values: Tensor, offsets: Tensor) -> Any:
        ctx.emb = emb
        ctx.save_for_backward(values, offsets)
        ctx.set_materialize_grads(False)
        pooled, sequences = emb.read(values, offsets)
        return pooled, *sequences

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        values, offsets = ctx.saved_tensors
        pooled, *sequences = gradients
        ctx.emb.update(values, offsets, pooled, sequences)
        return None, None, None, None


def _start_values(table: TableSpec, seed: int) -> Tensor:
    digest = hashlib.sha256(f"{seed}:{table.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    scale = 1 / math.sqrt(table.rows) if table.init_scale is None else table.init_scale
    weight = torch.empty(table.rows, table.dim).uniform_(-scale, scale, generator=generator)
    return weight.to(_DTYPES[table.dtype])
