"""Safetensors files larger than memory: made at full size and filled in place, read without a copy."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from megalith.checkpoint.manifest import FileRecord
from megalith.core.errors import ServeError

_NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int8: "I8",
    torch.uint8: "U8",
}
_ALIGNMENT, _PIECE_BYTES = 64, 1 << 22


def create_tensors(
    path: Path, shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
) -> dict[str, Tensor]:
    """Tensors of zeros that are a file: what is written to them is in it."""
    header: dict[str, Any] = {}
    end = 0
    # Wide types first, so that each begins at a multiple of its size.
    ordered = dict(sorted(shapes.items(), key=lambda pair: -pair[1][0].itemsize))
    for name, (dtype, shape) in ordered.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    head = len(text).to_bytes(8, "little") + text
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + end)
    if not end:
        return {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in ordered.items()}
    storage: Any = torch.UntypedStorage.from_file(str(path), shared=True, nbytes=len(head) + end)
    content = torch.tensor([], dtype=torch.uint8).set_(storage)[len(head) :]
    return {
        name: content[slice(*header[name]["data_offsets"])].view(dtype).view(shape)
        for name, (dtype, shape) in ordered.items()
    }


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a file of some tensors."""
    shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    for name, target in create_tensors(path, shapes).items():
        target.copy_(tensors[name])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, mapped: their bytes are read when they are used."""
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError) as error:
        raise ServeError(f"{path} is damaged ({error}); export the model again.") from error


def file_record(path: Path) -> FileRecord:
    """Size and checksum of a file."""
    checksum = size = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            checksum, size = zlib.crc32(piece, checksum), size + len(piece)
    return FileRecord(bytes=size, crc32=checksum)
