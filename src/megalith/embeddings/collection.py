"""`EmbeddingCollection`: many tables looked up in one call, updated in the backward pass.

    emb = EmbeddingCollection(tables, optimizer=RowWiseAdaGrad(lr=0.01), seed=0)
    out = emb(values, offsets)      # [batch, sum of dims]
    out.backward(gradient)          # every touched row is updated exactly once

Weights are buffers, not parameters: no dense optimizer, and no gradient tensor, ever sees them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from megalith.core.errors import ConfigError, nearest
from megalith.core.schema import MAX_DENSE_ROWS, TableSpec, check_tables, too_many_rows
from megalith.embeddings.check import LookupCheck
from megalith.embeddings.layout import Layout
from megalith.embeddings.optimizers import RowOptimizer, RowWiseAdaGrad
from megalith.ops import embedding as ops
from megalith.ops.coupled import CoupledUpdate
from megalith.ops.updates import Step

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_PART_ROWS, _BLOCK_ROWS = 1 << 20, 1 << 16
"""Rows whose start values come from one generator, and rows that are drawn at a time."""


class Lookup(NamedTuple):
    """What one call reads: pooled vectors side by side, and the sequences of tables that do not pool."""

    pooled: Tensor
    """[batch, output_dim], table by table, feature by feature"""
    sequences: dict[tuple[str, str], Tensor]
    """(table, feature) -> [ids of that feature, dim], in the order of `values`"""


class Window(NamedTuple):
    """Says of a table that it is a rectangle of a larger one, and so begins with the same values."""

    table: TableSpec
    """The larger one."""
    rows: tuple[int, int]
    columns: tuple[int, int]


class EmbeddingCollection(nn.Module):
    """Embedding tables over one list of features.

    `values` and `offsets` are feature-major in the order of `features`: every feature once, as the tables
    first name it. Start values depend on the seed and the table's name alone.

    `table_optimizers` gives single tables an optimizer of their own. `stochastic_rounding` rounds updated
    half-precision weights at random, reproducibly from the seed, so that small steps are not lost. `windows`
    names the tables that are parts of larger ones.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        optimizer: RowOptimizer | None = None,
        seed: int = 0,
        *,
        table_optimizers: Mapping[str, RowOptimizer] | None = None,
        stochastic_rounding: bool = True,
        output_dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        windows: Mapping[str, Window] | None = None,
    ) -> None:
        super().__init__()
        check_tables(tables)
        self.tables = tuple(tables)
        self.layout = Layout(tables)
        self.features = self.layout.features
        self.optimizer: RowOptimizer = optimizer or RowWiseAdaGrad()
        self.optimizers = _optimizers(tables, self.optimizer, table_optimizers or {})
        self.seed, self.stochastic_rounding, self.output_dtype = seed, stochastic_rounding, output_dtype
        self.lr_factor = 1.0
        """Multiplies every optimizer's learning rate; a schedule sets it before each step."""
        self.num_steps = 0
        self._check = LookupCheck(tables, device)
        for table in tables:
            # Before memory is asked for: rows beyond these would be taken for others.
            if table.rows > MAX_DENSE_ROWS:
                window = (windows or {}).get(table.name) or _whole(table)
                raise ConfigError(too_many_rows(window.table.name, table.rows))
        self._weights = [
            _start_values((windows or {}).get(table.name) or _whole(table), seed).to(device)
            for table in tables
        ]
        self._first = [_state(t, o.first_state, device) for t, o in zip(tables, self.optimizers, strict=True)]
        self._second = [
            _state(t, o.second_state, device) for t, o in zip(tables, self.optimizers, strict=True)
        ]
        on_cpu = torch.device(device).type == "cpu"
        self._native = ops.Tables(self._weights, self._first, self._second) if on_cpu else None
        self._distinct_optimizers = tuple(dict.fromkeys(self.optimizers))
        self._settings: list[Step] = []
        self._settings_tensor = torch.empty(0)
        self._positions = {table.name: position for position, table in enumerate(tables)}
        # Autograd calls backward only for outputs that depend on something which wants a gradient.
        self._anchor = torch.zeros((), requires_grad=True, device=device)

    @property
    def output_dim(self) -> int:
        return self.layout.output_dim

    def weight(self, table: str) -> Tensor:
        """The stored rows of a table, [rows, dim]; changes as training goes on."""
        return self._weights[self._positions[table]]

    def state(self, table: str) -> dict[str, Tensor]:
        """The optimizer state of a table: `first` and `second`, where its optimizer has them."""
        position = self._positions[table]
        both = {"first": self._first[position], "second": self._second[position]}
        return {name: tensor for name, tensor in both.items() if tensor.numel()}

    def forward(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Tensor:
        """Pooled vectors [batch, output_dim]; `sample_weights` holds a factor for each value."""
        return self.lookup(values, offsets, sample_weights).pooled

    @torch.compiler.disable
    def lookup(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Lookup:
        """Pooled vectors and sequences of one batch."""
        if torch.is_grad_enabled():
            # The backward pass comes back to them, and nobody may have changed them in the meantime.
            indices = self._check.copied(values, offsets, sample_weights)
            pooled, *sequences = _LookupFunction.apply(self._anchor, self, *indices)
        else:
            offsets = offsets.contiguous()
            if sample_weights is not None:
                sample_weights = sample_weights.float().contiguous()
            self.check(values, offsets, sample_weights)
            pooled, *sequences = self.read(values, offsets, sample_weights)
        names = [(table.name, feature) for _, table, feature in self.layout.sequences]
        return Lookup(pooled, dict(zip(names, sequences, strict=True)))

    def check(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> None:
        """Refuses offsets that do not fit and indices out of range, before anything is read or written."""
        self._check(values, offsets, sample_weights)

    def read(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None) -> tuple[Tensor, ...]:
        """The forward pass: pooled columns, then one sequence for each feature of a table without pooling."""
        layout, weights, count = self.layout, self._weights, len(self.features)
        pooled_slots, output = layout.pooled_slots, (self.output_dim, self.output_dtype)
        wanted = [(slot, table.dim, self.output_dtype) for slot, table, _ in layout.sequences]
        if self._native is not None:
            bags = values, offsets, count
            pooled = self._native.forward(pooled_slots, values, offsets, sample_weights, count, *output)
            return pooled, *(self._native.sequence(layout.slots, *bags, *one) for one in wanted)
        lookup = values, offsets, sample_weights, count
        pooled = ops.embedding_forward(weights, pooled_slots, *lookup, *output)
        return pooled, *(ops.embedding_sequence(weights, layout.slots, *lookup, *one) for one in wanted)

    def update(
        self,
        values: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None,
        pooled: Tensor | None,
        sequences: Sequence[Tensor | None],
        slots: Tensor | None = None,
    ) -> None:
        """The backward pass: gradients of outputs in, one optimizer step on the touched rows out.

        `slots`, some of the layout's, leaves all other lookups, and the tables of only these, as they are.
        Where there is not enough memory nothing is changed, and the error says so.
        """
        self.num_steps += 1
        chosen = self.layout.slots if slots is None else slots
        lookup = chosen, values, offsets, sample_weights, len(self.features)
        gradients = pooled, sequences, self.step_seed()
        try:
            if self._native is not None:
                self._native.backward_(self.steps(), *lookup, *gradients)
            else:
                tables = self._weights, self._first, self._second
                ops.embedding_backward_(*tables, self.steps(), *lookup, *gradients)
        except Exception:
            # A step that failed does not count.
            self.num_steps -= 1
            raise

    def coupled_update(
        self, positions: Sequence[int], columns: Sequence[int], sections: Sequence[tuple[int, int, int]]
    ) -> CoupledUpdate:
        """Updates of some tables in two halves, for those that have only some `columns` of their rows."""
        slots = self.layout.slots
        chosen = slots[torch.isin(slots[:, 0], torch.tensor(positions))]
        return CoupledUpdate(self._weights, self._first, self._second, chosen, columns, sections)

    def step_seed(self) -> int:
        """The seed of what is rounded at random in this step."""
        digest = hashlib.sha256(f"{self.seed}:{self.num_steps}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1

    def steps(self) -> Tensor:
        """The settings of this step, a row for each table; made anew only when one of them has changed."""
        now = [
            one.at(self.num_steps, self.lr_factor, self.stochastic_rounding)
            for one in self._distinct_optimizers
        ]
        if now != self._settings:
            by_optimizer = dict(zip(self._distinct_optimizers, now, strict=True))
            self._settings = now
            self._settings_tensor = torch.tensor([by_optimizer[one] for one in self.optimizers])
        return self._settings_tensor

    def sample_weight_gradient(
        self, values: Tensor, offsets: Tensor, sample_weights: Tensor, pooled: Tensor
    ) -> Tensor:
        slots, count = self.layout.pooled_slots, len(self.features)
        if self._native is not None:
            return self._native.sample_weight_gradient(slots, values, offsets, count, pooled)
        gradient: Tensor = ops.sample_weight_gradient(
            self._weights, slots, values, offsets, sample_weights, count, pooled
        )
        return gradient

    def get_extra_state(self) -> dict[str, Any]:
        """Weights, optimizer state and the step count, by table name, for `state_dict`."""
        names = [table.name for table in self.tables]
        return {
            "num_steps": self.num_steps,
            "weights": dict(zip(names, self._weights, strict=True)),
            "states": {name: self.state(name) for name in names},
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        if set(state["weights"]) != set(self._positions):
            raise ConfigError(
                "The saved tables are not those of this collection; load it with its own recipe."
            )
        self.num_steps = int(state["num_steps"])
        for name, weight in state["weights"].items():
            self.weight(name).copy_(weight)
            for key, value in state["states"][name].items():
                self.state(name)[key].copy_(value)


class _LookupFunction(torch.autograd.Function):
    """Joins the collection to autograd: reads in forward, updates the tables in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        emb: EmbeddingCollection,
        values: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None,
    ) -> Any:
        ctx.emb = emb
        ctx.save_for_backward(values, offsets, sample_weights)
        ctx.set_materialize_grads(False)
        return emb.read(values, offsets, sample_weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        values, offsets, sample_weights = ctx.saved_tensors
        pooled, *sequences = gradients
        weight_gradient = None
        if ctx.needs_input_grad[4] and pooled is not None:
            # Before the update: it is the rows as they were read that count.
            weight_gradient = ctx.emb.sample_weight_gradient(values, offsets, sample_weights, pooled)
        ctx.emb.update(values, offsets, sample_weights, pooled, sequences)
        return None, None, None, None, weight_gradient


def _optimizers(
    tables: Sequence[TableSpec], default: RowOptimizer, own: Mapping[str, RowOptimizer]
) -> list[RowOptimizer]:
    names = [table.name for table in tables]
    for name in own:
        if name not in names:
            raise ConfigError(f"table_optimizers names '{name}', which is no table; {nearest(name, names)}")
    return [own.get(name, default) for name in names]


def _state(table: TableSpec, shape: str, device: torch.device | str) -> Tensor:
    if shape == "none":
        return torch.zeros(0, device=device)
    # On huge pages like the rows: one number of a row is as far from the next row's as a page is long.
    state = ops.allocate(table.rows, table.dim if shape == "full" else 1, torch.float32).zero_()
    return (state if shape == "full" else state.view(-1)).to(device)


def _whole(table: TableSpec) -> Window:
    return Window(table, (0, table.rows), (0, table.dim))


def _start_values(window: Window, seed: int) -> Tensor:
    """Uniform values, drawn a part of the table at a time, each part from a generator of its own, so that a
    window far down a huge table does not draw what lies above it."""
    table, (first_row, last_row), (first_column, last_column) = window
    scale = 1 / math.sqrt(table.rows) if table.init_scale is None else table.init_scale
    weight = ops.allocate(last_row - first_row, last_column - first_column, _DTYPES[table.dtype])
    for part in range(first_row // _PART_ROWS, (last_row - 1) // _PART_ROWS + 1):
        key = f"{seed}:{table.name}:{part}" if part else f"{seed}:{table.name}"
        digest = hashlib.sha256(key.encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        # In float32 whatever the type, and a block at a time: the whole never lies in memory twice.
        for begin in range(part * _PART_ROWS, min(last_row, (part + 1) * _PART_ROWS), _BLOCK_ROWS):
            end = min(begin + _BLOCK_ROWS, (part + 1) * _PART_ROWS, table.rows)
            drawn = torch.empty(end - begin, table.dim).uniform_(-scale, scale, generator=generator)
            low, high = max(begin, first_row), min(end, last_row)
            if low < high:
                kept = drawn[low - begin : high - begin, first_column:last_column]
                weight[low - first_row : high - first_row].copy_(kept)
    return weight
