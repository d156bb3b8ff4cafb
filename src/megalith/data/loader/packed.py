"""The batches of a window in one buffer, as a reader in another process hands them over.

    dense, labels, [weights], [times], values, [offsets]      of the first batch, then of the second, ...

Each is as `Batch` holds it, so batches are views of the buffer: where memory is shared, nothing is copied
between the process that filled it and the model. Offsets are left out where every feature has one id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from megalith.data.batch import Batch
from megalith.data.loader.pieces import one_hot_offsets

_ALIGNED = 64
Buffer = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """What a buffer of batches holds."""

    sizes: tuple[tuple[int, int], ...]
    """Of each batch: samples, and ids of all features."""
    num_dense: int
    num_features: int
    weighted: bool
    timed: bool
    one_hot: bool
    """Whether every sample has one id of every feature."""

    def parts(self, size: tuple[int, int]) -> list[tuple[str, type, int]]:
        """The arrays of a batch in their order: name, type and length."""
        rows, ids = size
        return [
            ("dense", np.float32, rows * self.num_dense),
            ("labels", np.float32, rows),
            *([("weights", np.float32, rows)] if self.weighted else []),
            *([("event_times", np.int64, rows)] if self.timed else []),
            ("values", np.int64, ids),
            *([] if self.one_hot else [("offsets", np.int64, rows * self.num_features + 1)]),
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return sum(
            _aligned(length * np.dtype(kind).itemsize)
            for size in self.sizes
            for _, kind, length in self.parts(size)
        )


def pack(batches: Sequence[Batch], num_features: int) -> tuple[Buffer, BatchLayout]:
    """One buffer of all batches, which are of one window, and what is where in it."""
    first = batches[0]
    layout = BatchLayout(
        tuple((batch.batch_size, len(batch.values)) for batch in batches),
        first.dense.shape[1],
        num_features,
        first.weights is not None,
        first.event_times is not None,
        all(_is_one_hot(batch, num_features) for batch in batches),
    )
    buffer = np.zeros(layout.nbytes, np.uint8)
    place = 0
    for batch, size in zip(batches, layout.sizes, strict=True):
        for name, kind, length in layout.parts(size):
            array = getattr(batch, name).numpy().reshape(-1)
            buffer[place : place + array.nbytes].view(kind)[:] = array
            place += _aligned(length * np.dtype(kind).itemsize)
    return buffer, layout


def unpack(buffer: Buffer, layout: BatchLayout) -> list[Batch]:
    """The batches as views of the buffer, which may be in read-only memory: nobody writes into a batch."""
    writable = _as_writable(buffer)
    place, batches = 0, []
    for size in layout.sizes:
        found: dict[str, Tensor] = {}
        for name, kind, length in layout.parts(size):
            nbytes = length * np.dtype(kind).itemsize
            found[name] = torch.from_numpy(writable[place : place + nbytes].view(kind))
            place += _aligned(nbytes)
        if layout.one_hot:
            found["offsets"] = one_hot_offsets(size[1])
        found["dense"] = found["dense"].view(size[0], layout.num_dense)
        batches.append(Batch(**found))
    return batches


def _is_one_hot(batch: Batch, num_features: int) -> bool:
    bags = batch.batch_size * num_features
    return len(batch.values) == bags and torch.equal(batch.offsets, one_hot_offsets(bags))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED


class _Memory:
    """Memory of an array under another description; holds on to the array."""

    def __init__(self, array: Buffer) -> None:
        self._array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__: dict[str, Any] = {**array.__array_interface__, "data": (address, False)}


def _as_writable(buffer: Buffer) -> Buffer:
    # torch warns of read-only arrays, once a process and with a sentence that is of no use to a user.
    return buffer if buffer.flags.writeable else np.asarray(_Memory(buffer))
