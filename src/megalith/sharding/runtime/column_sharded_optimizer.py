"""`ColumnShardedOptimizer`: optimizers that look at a whole row, where its columns lie on several workers.

`local_shards.py` makes one where there are such rows and calls it after the step on all other tables, on all
workers. It owns the all-to-all of row norms.

Row-wise AdaGrad and Adam need the mean square of a row's gradient, LAMB and LARS the norms of rows. The
workers that hold parts of a row see the same ids, so the same touched rows in the same order: each sums the
row norms over its columns, all exchange these sums in one all-to-all, and each finishes the step on its part
with the same totals. Both halves of the step are native (`ops/optimizer/column_sharded.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.comm.all_to_all import AllToAll
from megalith.comm.context import CommContext
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.stores.resolved import ResolvedIds
from megalith.ops.embedding.descriptors import OutputGradients
from megalith.ops.optimizer.column_sharded import ColumnShardedUpdate
from megalith.ops.optimizer.steps import NUM_ROW_NORMS
from megalith.sharding.layout.types import LocalShard
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.wire_format import ROW_NORM_BYTES


class _RowGroup(NamedTuple):
    """Rows whose columns are cut, all of them in the same way: who has parts, in the order of columns."""

    table: str
    rows: tuple[int, int]
    workers: tuple[int, ...]


class ColumnShardedOptimizer:
    """The shards of one worker whose columns are cut and whose optimizer needs the whole row."""

    def __init__(
        self,
        collection: EmbeddingCollection | None,
        shards: Sequence[LocalShard],
        plan: ShardingPlan,
        rank: int,
        comm: CommContext | None,
    ) -> None:
        self._collection, self._rank, self._world_size = collection, rank, plan.world_size
        # Gradients of sample weights may be on their way in the meantime: pipes of its own.
        self._all_to_all: AllToAll | None = None
        if comm is not None:
            self._all_to_all = comm.with_own_pipes().all_to_all("row norms")
        self.positions = [
            position
            for position, shard in enumerate(shards)
            if collection is not None
            and shard.shard.dim < shard.table.dim
            and collection.optimizers[position].kind in NUM_ROW_NORMS
        ]
        """Of these shards among all of the worker's; `descriptors` of the collection leave them out."""
        self.descriptors: Tensor | None = None
        self._sections: list[_RowGroup] = []
        """What each sum that is found here belongs to; two shards may have columns of the same rows."""
        self._update: ColumnShardedUpdate | None = None
        if collection is not None and self.positions:
            sections = []
            for position in self.positions:
                first = shards[position].shard.rows[0]
                for group in _row_groups(plan, shards[position]):
                    self._sections.append(group)
                    sections.append((position, group.rows[0] - first, group.rows[1] - first))
            columns = [shard.table.dim for shard in shards]
            self._update = collection.column_sharded_update(self.positions, columns, sections)
            descriptors = collection.lookups.descriptors
            others = ~torch.isin(descriptors[:, 0], torch.tensor(self.positions))
            self.descriptors = descriptors[others].contiguous()
        # Everybody lists the same bundles in the same order, and in a bundle the same rows.
        self._bundles = {
            workers: sorted({group for group in self._sections if group.workers == workers})
            for workers in sorted({group.workers for group in self._sections})
        }
        """Groups of rows that lie on the same workers."""

    def update(
        self,
        rows: ResolvedIds | None,
        pooled: Tensor | None,
        sequences: Sequence[Tensor | None] = (),
    ) -> None:
        """The step that the collection has just taken on its other tables; all workers call it."""
        if self._collection is None or self._update is None or rows is None:
            self._exchange({})
            return
        gradients = OutputGradients(pooled, sequences)
        own_sums = self._update.begin(self._collection.steps(), rows.batch, gradients)
        sums: dict[_RowGroup, Tensor] = {}
        for group, own in zip(self._sections, own_sums, strict=True):
            sums[group] = sums[group] + own if group in sums else own
        bundles = {
            workers: torch.cat([sums[group] for group in groups]) for workers, groups in self._bundles.items()
        }
        totals: dict[_RowGroup, Tensor] = {}
        for workers, whole in self._exchange(bundles).items():
            groups = self._bundles[workers]
            totals |= zip(groups, whole.split([len(sums[group]) for group in groups]), strict=True)
        self._update.finish([totals[group] for group in self._sections], self._collection.rounding())

    def _exchange(self, bundles: dict[tuple[int, ...], Tensor]) -> dict[tuple[int, ...], Tensor]:
        """Sums over all columns of each bundle of rows, the same to the last bit wherever parts of it are."""
        if self._all_to_all is None:
            return bundles
        shared = [
            [sums for workers, sums in bundles.items() if worker in workers and worker != self._rank]
            for worker in range(self._world_size)
        ]
        sizes = [ROW_NORM_BYTES * sum(map(len, to_worker)) for to_worker in shared]
        for buffer, to_worker in zip(self._all_to_all.buffers(sizes), shared, strict=True):
            if to_worker:
                torch.cat(to_worker, out=buffer.view(torch.float32))
        # Whoever has parts of a row has touched the same ones, so as much arrives as is sent.
        messages = self._all_to_all.wait(self._all_to_all.start(sizes))
        arrived = [
            iter(message.view(torch.float32).split([len(sums) for sums in to_worker]))
            for message, to_worker in zip(messages, shared, strict=True)
        ]
        totals = {}
        for workers, own in bundles.items():
            total, *others = (own if worker == self._rank else next(arrived[worker]) for worker in workers)
            for other in others:
                total = total + other
            totals[workers] = total
        return totals


def has_column_sharded_rows(plan: ShardingPlan, optimizers: Mapping[str, RowOptimizer]) -> bool:
    """Whether any worker has such a shard: then all take part in the exchange."""
    return any(
        optimizers[placement.table].kind in NUM_ROW_NORMS
        and len({shard.columns for shard in placement.shards}) > 1
        for placement in plan.placements
    )


def _row_groups(plan: ShardingPlan, held: LocalShard) -> list[_RowGroup]:
    """A shard's rows, cut further where other columns of them are cut, since other workers begin there."""
    (first, last), shards = held.shard.rows, plan.placement(held.table.name).shards
    edges = sorted({edge for shard in shards for edge in shard.rows if first <= edge <= last})
    groups = []
    for rows in itertools.pairwise(edges):
        holding = [shard for shard in shards if shard.rows[0] <= rows[0] < shard.rows[1]]
        holding.sort(key=lambda shard: shard.columns)
        workers = tuple(dict.fromkeys(shard.worker for shard in holding))
        groups.append(_RowGroup(held.table.name, rows, workers))
    return groups
