"""Codecs of exchanged vectors: rows of float32 to rows of bytes and back.

    fp32   as they are
    fp16   half precision, each row scaled by a power of two of its own: gradients of large batches are so
           small that plain half precision would lose them
    bf16   the upper half of a float32
    int8   a scale for every vector, and its numbers as shares of the largest in steps of 1/127

A row is what one sample gets from one source: vectors of `widths` columns side by side. Encoded rows all
have the same number of bytes, so a block of them can be cut anywhere between rows. `output_dist` and
`sequence_dist` of the runtime make one codec for every source; `wire_format.py` knows the bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from megalith.sharding.plan import Codec
from megalith.sharding.wire_format import CODEC_BYTES, row_bytes


class RowCodec(Protocol):
    """Encodes and decodes rows of one shape."""

    row_bytes: int

    def encode(self, rows: Tensor) -> Tensor:
        """float32 [rows, columns] to uint8 [rows, row_bytes]."""

    def decode(self, encoded: Tensor) -> Tensor:
        """uint8 [rows, row_bytes] to float32 [rows, columns]; fp32 shares memory where it can."""


def row_codec(codec: Codec, widths: Sequence[int]) -> RowCodec:
    """The codec of that name for rows of vectors of these widths."""
    if codec == "int8":
        return _Int8(widths)
    columns = sum(widths)
    if codec == "fp16":
        return _ScaledHalf(columns)
    return _Cast(columns, torch.float32 if codec == "fp32" else torch.bfloat16)


class _Cast:
    """fp32 and bf16: a change of type."""

    def __init__(self, columns: int, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self.row_bytes = row_bytes("fp32" if dtype == torch.float32 else "bf16", [columns])

    def encode(self, rows: Tensor) -> Tensor:
        return _as_bytes(rows.to(self._dtype))

    def decode(self, encoded: Tensor) -> Tensor:
        return _from_bytes(encoded, self._dtype).float()


class _ScaledHalf:
    """fp16: the scale of the row, then its numbers."""

    def __init__(self, columns: int) -> None:
        self._columns, self.row_bytes = columns, row_bytes("fp16", [columns])
        self._scale_bytes = CODEC_BYTES["fp16"].row

    def encode(self, rows: Tensor) -> Tensor:
        encoded = torch.empty(len(rows), self.row_bytes, dtype=torch.uint8, device=rows.device)
        if encoded.numel():
            # Magnitudes come to lie below 2**15, a factor of two below the end of the range.
            largest = torch.linalg.vector_norm(rows, torch.inf, dim=1, keepdim=True)
            power = (15 - torch.frexp(largest).exponent).clamp(-126, 126)
            scale = torch.ldexp(torch.ones_like(largest), power)
            encoded[:, : self._scale_bytes] = _as_bytes(torch.ldexp(torch.ones_like(largest), -power))
            encoded[:, self._scale_bytes :] = _as_bytes((rows * scale).half())
        return encoded

    def decode(self, encoded: Tensor) -> Tensor:
        if not encoded.numel():
            return torch.empty(len(encoded), self._columns, device=encoded.device)
        scale = _from_bytes(encoded[:, : self._scale_bytes], torch.float32)
        return _from_bytes(encoded[:, self._scale_bytes :], torch.float16).float().mul_(scale)


class _EqualVectors(NamedTuple):
    """Vectors of one width that stand side by side."""

    first_vector: int
    first_column: int
    num_vectors: int
    width: int


class _Int8:
    """int8: the scales of the row's vectors, then their numbers."""

    def __init__(self, widths: Sequence[int]) -> None:
        self._num_vectors, self._columns = len(widths), sum(widths)
        self.row_bytes = row_bytes("int8", widths)
        self._scales_bytes = CODEC_BYTES["int8"].vector * len(widths)
        self._groups: list[_EqualVectors] = []
        vector = column = 0
        for width, same in itertools.groupby(widths):
            count = len(list(same))
            self._groups.append(_EqualVectors(vector, column, count, width))
            vector, column = vector + count, column + count * width

    def encode(self, rows: Tensor) -> Tensor:
        encoded = torch.empty(len(rows), self.row_bytes, dtype=torch.uint8, device=rows.device)
        if not encoded.numel():
            return encoded
        scales = torch.empty(len(rows), self._num_vectors, device=rows.device)
        numbers = encoded[:, self._scales_bytes :].view(torch.int8)
        for vector, column, count, width in self._groups:
            vectors = rows[:, column : column + count * width].reshape(len(rows), count, width)
            scale = torch.linalg.vector_norm(vectors, torch.inf, dim=2) / 127
            scales[:, vector : vector + count] = scale
            shares = (vectors / torch.where(scale > 0, scale, 1.0).unsqueeze(2)).round_()
            numbers[:, column : column + count * width] = shares.view(len(rows), count * width).to(torch.int8)
        encoded[:, : self._scales_bytes] = _as_bytes(scales)
        return encoded

    def decode(self, encoded: Tensor) -> Tensor:
        rows = torch.empty(len(encoded), self._columns, device=encoded.device)
        if not rows.numel():
            return rows
        scales = _from_bytes(encoded[:, : self._scales_bytes], torch.float32)
        numbers = encoded[:, self._scales_bytes :].view(torch.int8)
        for vector, column, count, width in self._groups:
            columns = slice(column, column + count * width)
            vectors = numbers[:, columns].reshape(len(encoded), count, width)
            decoded = vectors * scales[:, vector : vector + count].unsqueeze(2)
            rows[:, columns] = decoded.view(len(encoded), count * width)
        return rows


def _as_bytes(rows: Tensor) -> Tensor:
    """The memory of a matrix, row by row."""
    if not rows.numel():
        return torch.empty(len(rows), rows.shape[1] * rows.element_size(), dtype=torch.uint8)
    return rows.contiguous().view(-1).view(torch.uint8).view(len(rows), -1)


def _from_bytes(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as rows of numbers; shares memory unless it is misaligned."""
    columns = rows.shape[1] // dtype.itemsize
    if not rows.numel():
        return torch.empty(len(rows), columns, dtype=dtype, device=rows.device)
    flat = rows.reshape(-1)
    if flat.storage_offset() % dtype.itemsize:
        flat = flat.clone()
    return flat.view(dtype).view(len(rows), columns)
