"""Optimizers that look at a whole row, over rows whose columns lie on several workers.

Row-wise AdaGrad and Adam need the mean square of a row's gradient, LAMB and LARS the lengths of rows. The
workers that hold parts of a row see the same ids, so the same touched rows in the same order: each sums the
squares of its columns, all exchange these sums in one all-to-all, and each finishes the step on its part
with the same totals. The update is plain torch (`ops/updates.py` says what it computes).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from megalith.embeddings.collection import EmbeddingCollection, step_seed
from megalith.embeddings.optimizers import RowOptimizer
from megalith.ops.lookup import RowGradients
from megalith.ops.rounding import round_at_random
from megalith.ops.updates import Step
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.runtime.layout import Holding
from megalith.sharding.runtime.row_sums import RowSums
from megalith.sharding.runtime.traffic import Traffic

ROW_COUPLED = ("rowwise_adagrad", "rowwise_adam", "lamb", "lars")
_TABLE_SEED = 0xD1342543DE82EF95


class _RowGroup(NamedTuple):
    """Rows whose columns are cut, all of them in the same way: who has parts, in the order of columns."""

    table: str
    rows: tuple[int, int]
    workers: tuple[int, ...]


class _Part(NamedTuple):
    """A worker's part of touched rows, between the two halves of a step."""

    position: int
    touched: RowGradients
    current: Tensor
    direction: Tensor
    """What the row's length is taken of, and what is then stepped along."""


class CoupledTables:
    """The holdings of one worker whose columns are cut and whose optimizer needs the whole row."""

    def __init__(
        self,
        local: EmbeddingCollection | None,
        holdings: Sequence[Holding],
        plan: ShardingPlan,
        rank: int,
        group: dist.ProcessGroup | None,
        traffic: Traffic,
    ) -> None:
        self._collection, self._holdings, self._rank = local, holdings, rank
        self._group, self._traffic, self._world_size = group, traffic, plan.world_size
        self.positions = [
            position
            for position, holding in enumerate(holdings)
            if holding.shard.dim < holding.table.dim and self._local.optimizers[position].kind in ROW_COUPLED
        ]
        """Of these holdings among all of the worker."""
        self._sums = RowSums(self._local, self.positions) if self.positions else None
        self._groups_of = {position: _row_groups(plan, holdings[position]) for position in self.positions}
        # Every worker lists the groups that it shares with another in the same order.
        self._groups = sorted({group for groups in self._groups_of.values() for group in groups})

    def update(
        self,
        values: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None,
        gradient: Tensor,
        num_steps: int,
        lr_factor: float,
    ) -> None:
        """Step number `num_steps` on the touched rows; all workers of the plan call it."""
        if not self.positions:
            self._exchange({})
            return
        local = self._local
        rounding = local.stochastic_rounding
        steps = {n: local.optimizers[n].at(num_steps, lr_factor, rounding) for n in self.positions}
        seed = step_seed(local.seed, num_steps)
        parts: dict[int, _Part] = {}
        squares: dict[_RowGroup, Tensor] = {}
        assert self._sums is not None
        found = self._sums(values, offsets, sample_weights, gradient)
        for position, groups in self._groups_of.items():
            touched = found[position]
            parts[position], own = self._begin(position, touched, steps[position])
            first = self._holdings[position].shard.rows[0]
            ends = torch.searchsorted(
                touched.rows, torch.tensor([g.rows[1] - first for g in groups])
            ).tolist()
            for group, begin, end in zip(groups, [0, *ends], ends, strict=False):
                square = own[:, begin:end]
                squares[group] = squares[group] + square if group in squares else square
        totals = self._exchange(squares)
        for position, groups in self._groups_of.items():
            whole = torch.cat([totals[group] for group in groups], dim=1)
            self._finish(parts[position], whole, steps[position], seed)

    @property
    def _local(self) -> EmbeddingCollection:
        assert self._collection is not None
        return self._collection

    def _begin(self, position: int, touched: RowGradients, step: Step) -> tuple[_Part, Tensor]:
        """What the worker's columns give, and the sums of squares that the others need, [sums, rows]."""
        holding, kind = self._holdings[position], self._local.optimizers[position].kind
        state = self._local.state(holding.name)
        rows, gradients = touched
        current = self._local.weight(holding.name).index_select(0, rows).float()
        if step.max_gradient > 0:
            gradients = gradients.clamp(-step.max_gradient, step.max_gradient)
        if step.weight_decay and kind != "lamb":
            gradients = gradients + current * step.weight_decay
        direction = gradients
        if kind == "lamb":
            mean = state["first"].index_select(0, rows) * step.beta1 + gradients * step.rest1
            square = state["second"].index_select(0, rows) * step.beta2 + gradients * gradients * step.rest2
            state["first"].index_copy_(0, rows, mean)
            state["second"].index_copy_(0, rows, square)
            adam = mean / step.first_correction / ((square / step.second_correction).sqrt() + step.eps)
            direction = adam + current * step.weight_decay
        own = (direction * direction).sum(dim=1)
        if kind in ("lamb", "lars"):
            sums = torch.stack([own, (current * current).sum(dim=1)])
        else:
            sums = own.unsqueeze(0)
        return _Part(position, touched, current, direction), sums

    def _exchange(self, squares: dict[_RowGroup, Tensor]) -> dict[_RowGroup, Tensor]:
        """Sums over all columns of each group of rows, the same to the last bit wherever a part of it is."""
        if self._group is None:
            return squares
        peers = [
            [g for g in self._groups if worker in g.workers and worker != self._rank]
            for worker in range(self._world_size)
        ]
        sizes = [sum(squares[g].numel() for g in groups) for groups in peers]
        flat = [squares[g].reshape(-1) for groups in peers for g in groups]
        sent = torch.cat(flat) if flat else torch.empty(0)
        received = torch.empty(sum(sizes))
        self._traffic.all_to_all("squares of rows", received, sent, sizes, sizes, self._group).wait()
        arrived: dict[tuple[_RowGroup, int], Tensor] = {}
        chunks = iter(received.split([squares[g].numel() for groups in peers for g in groups]))
        for worker, groups in enumerate(peers):
            for g in groups:
                arrived[g, worker] = next(chunks).view_as(squares[g])
        totals = {}
        for g in self._groups:
            parts = [squares[g] if worker == self._rank else arrived[g, worker] for worker in g.workers]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            totals[g] = total
        return totals

    def _finish(self, part: _Part, totals: Tensor, step: Step, seed: int) -> None:
        holding, kind = self._holdings[part.position], self._local.optimizers[part.position].kind
        weight, state = self._local.weight(holding.name), self._local.state(holding.name)
        rows, direction, current = part.touched.rows, part.direction, part.current
        if kind in ("rowwise_adagrad", "rowwise_adam"):
            square = totals[0] / holding.table.dim
            if kind == "rowwise_adagrad":
                sums = state["first"].index_select(0, rows) + square
                state["first"].index_copy_(0, rows, sums)
                updated = current - direction * (step.lr / (sums.sqrt() + step.eps)).unsqueeze(1)
            else:
                mean = state["first"].index_select(0, rows) * step.beta1 + direction * step.rest1
                second = state["second"].index_select(0, rows) * step.beta2 + square * step.rest2
                state["first"].index_copy_(0, rows, mean)
                state["second"].index_copy_(0, rows, second)
                scale = ((second / step.second_correction).sqrt() + step.eps).unsqueeze(1)
                updated = current - mean * (step.lr / step.first_correction) / scale
        else:
            lengths = totals.sqrt()
            both = (lengths > 0).all(dim=0)
            ratio = torch.where(both, lengths[1] / lengths[0], 1.0)
            if kind == "lamb":
                updated = current - direction * (step.lr * ratio).unsqueeze(1)
            else:
                rate = step.lr * torch.where(both, step.eps * ratio, 1.0)
                change = state["first"].index_select(0, rows) * step.beta1 + direction * rate.unsqueeze(1)
                state["first"].index_copy_(0, rows, change)
                updated = current - change
        if step.stochastic_rounding and weight.dtype != torch.float32:
            own_seed = (seed + part.position * _TABLE_SEED) & (2**64 - 1)
            updated = round_at_random(updated, weight.dtype, rows, own_seed)
        weight.index_copy_(0, rows, updated.to(weight.dtype))


def coupled_placements(plan: ShardingPlan, optimizers: Mapping[str, RowOptimizer]) -> bool:
    """Whether any worker has such a holding: then all take part in the exchange."""
    specs = {one.table: one.shards for one in plan.placements}
    return any(
        optimizers[table].kind in ROW_COUPLED and len({shard.columns for shard in shards}) > 1
        for table, shards in specs.items()
    )


def _row_groups(plan: ShardingPlan, holding: Holding) -> list[_RowGroup]:
    """A holding's rows, cut further where other columns of them are cut, since their parts meet there."""
    (first, last), shards = holding.shard.rows, plan.placement(holding.table.name).shards
    edges = sorted({edge for one in shards for edge in one.rows if first <= edge <= last})
    groups = []
    for rows in itertools.pairwise(edges):
        over = sorted(
            (one for one in shards if one.rows[0] <= rows[0] < one.rows[1]), key=lambda one: one.columns
        )
        workers = tuple(dict.fromkeys(shard.worker for shard in over))
        groups.append(_RowGroup(holding.table.name, rows, workers))
    return groups
