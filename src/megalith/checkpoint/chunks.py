"""Large tensors are written in chunks of rows, so that a rank which needs a part reads little more than that.

torch.distributed.checkpoint reads what was written as one piece as one piece: without this, every one of many
ranks would hold a whole table in memory to take its own rows from it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

CHUNK_BYTES = 64 << 20


class ChunkedSavePlanner(DefaultSavePlanner):
    """What every rank has is written by the first; what is larger than `chunk_bytes`, in several chunks."""

    def __init__(self, chunk_bytes: int = CHUNK_BYTES) -> None:
        super().__init__(dedup_save_to_lowest_rank=True)
        self._chunk_bytes = chunk_bytes
        self._origins: dict[MetadataIndex, tuple[MetadataIndex, int]] = {}
        """Of each chunk: the tensor that it is a part of, and the row at which it begins there."""

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        items = [chunk for item in plan.items for chunk in self._chunks(item)]
        self.plan = dataclasses.replace(plan, items=items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        origin, _ = self._origins.get(_key(index), (index, 0))
        return super().lookup_object(origin)

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        found = self._origins.get(_key(write_item.index))
        if found is not None and isinstance(object, Tensor):
            assert write_item.tensor_data is not None
            object = object.narrow(0, found[1], write_item.tensor_data.chunk.sizes[0])
        return super().transform_object(write_item, object)

    def _chunks(self, item: WriteItem) -> list[WriteItem]:
        data = item.tensor_data
        if data is None or not data.chunk.sizes or not data.chunk.sizes.numel():
            return [item]
        offsets, sizes = data.chunk.offsets, data.chunk.sizes
        row_bytes = sizes.numel() // sizes[0] * data.properties.dtype.itemsize
        rows = max(1, self._chunk_bytes // row_bytes)
        if rows >= sizes[0]:
            return [item]
        chunks = []
        for start in range(0, sizes[0], rows):
            place = torch.Size((offsets[0] + start, *offsets[1:]))
            extent = torch.Size((min(rows, sizes[0] - start), *sizes[1:]))
            index = MetadataIndex(item.index.fqn, place)
            self._origins[index] = item.index, start
            chunk = dataclasses.replace(data, chunk=ChunkStorageMetadata(place, extent))
            chunks.append(WriteItem(index, WriteItemType.SHARD, tensor_data=chunk))
        return chunks


def _key(index: MetadataIndex) -> MetadataIndex:
    """The index without its hint, which the first rank adds while it plans for all."""
    return MetadataIndex(index.fqn, index.offset)
