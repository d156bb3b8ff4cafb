"""`ShardedTable`: one logical tensor of which this process holds some rectangles, as checkpoints see it.

A table, or an optimizer's state of it, goes into a state dictionary under the same key as the whole tensor
does in one process. torch.distributed.checkpoint asks it which rectangles to write and to read, so a
checkpoint of any number of processes loads on any other number, under any plan.

    table = ShardedTable((rows, dim), torch.float32, [TableShard(tensor, (first_row, first_column))])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType


class TableShard(NamedTuple):
    """A rectangle that this process holds."""

    tensor: Tensor
    """Its cells; loading writes into them."""
    offsets: tuple[int, ...]
    """Where it begins in the whole: (row, column), or (row,)."""
    writes: bool = True
    """Whether a checkpoint takes the rectangle from here; of copies exactly one process writes."""


class ShardedTable(Tensor):
    """Stands for a tensor of `size`; no arithmetic, only what a checkpoint needs.

    It is a tensor by name, since torch.distributed.checkpoint looks for shards only in tensors.
    """

    shards: tuple[TableShard, ...]

    @staticmethod
    def __new__(cls: Any, size: Sequence[int], dtype: torch.dtype, shards: Iterable[TableShard]) -> Any:
        held = tuple(shards)
        whole = torch.Size(size)
        for shard in held:
            shape = shard.tensor.shape
            if len(shape) != len(whole) or len(shard.offsets) != len(whole) or shard.tensor.dtype != dtype:
                raise ValueError(f"a {shard.tensor.dtype} shard {tuple(shape)} of {tuple(whole)} {dtype}")
            if any(not 0 <= o <= w - s for o, s, w in zip(shard.offsets, shape, whole, strict=True)):
                raise ValueError(f"a shard {tuple(shape)} at {shard.offsets} outside of {tuple(whole)}")
        table = Tensor._make_wrapper_subclass(cls, whole, dtype=dtype)
        table.shards = held
        return table

    def snapshot(self) -> ShardedTable:
        """A copy of what this process writes, to be saved while training goes on."""
        copies = [shard._replace(tensor=shard.tensor.clone()) for shard in self.shards if shard.writes]
        return ShardedTable(self.shape, self.dtype, copies)

    @property
    def held_bytes(self) -> int:
        return sum(shard.tensor.numel() * shard.tensor.element_size() for shard in self.shards)

    def __create_write_items__(self, key: str, _: Any) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(key, torch.Size(shard.offsets)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=_chunk(shard), properties=TensorProperties(dtype=self.dtype), size=self.shape
                ),
            )
            for shard in self.shards
            if shard.writes and shard.tensor.numel()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [_chunk(shard) for shard in self.shards]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        # Position first: where a process holds two copies of a rectangle, both are read.
        if index.index is not None and index.index < len(self.shards):
            shard = self.shards[index.index]
            if torch.Size(shard.offsets) == index.offset:
                return shard.tensor
        for shard in self.shards:
            if torch.Size(shard.offsets) == index.offset:
                return shard.tensor
        raise ValueError(f"this process holds no shard of '{index.fqn}' at {index.offset}")

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        if function is torch.ops.aten.detach.default:
            return arguments[0]
        raise NotImplementedError(f"{function} of a ShardedTable; use the tensors of its shards")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        held = ", ".join(f"{tuple(one.tensor.shape)} at {one.offsets}" for one in self.shards)
        return f"ShardedTable({tuple(self.shape)}, {self.dtype}, holds {held or 'nothing'})"


def _chunk(shard: TableShard) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size(shard.offsets), sizes=shard.tensor.shape)
