"""One safetensors file: written in a single pass over the tensors, which also gives its checksum.

The library's own writer gives no checksum, which would take a second pass over the file. Reading is the
library's: it checks a header before it uses it.
"""

from __future__ import annotations

import itertools
import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from megalith.checkpoint.manifest import FileRecord
from megalith.core.errors import CheckpointError

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT, _PIECE_BYTES = 64, 1 << 22


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileRecord:
    """Writes the file, forces it to disk, and returns its size and checksum."""
    header: dict[str, Any] = {}
    end = 0
    # Wide types first, so that each begins at a multiple of its size.
    ordered = dict(sorted(tensors.items(), key=lambda pair: -pair[1].element_size()))
    for name, tensor in ordered.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    checksum = size = 0
    with path.open("wb") as file:
        head = memoryview(len(text).to_bytes(8, "little") + text)
        for content in itertools.chain([head], map(_content, ordered.values())):
            for begin in range(0, len(content), _PIECE_BYTES):
                piece = content[begin : begin + _PIECE_BYTES]
                # In the pieces that are written, while they lie in the cache.
                checksum = zlib.crc32(piece, checksum)
                file.write(piece)
            size += len(content)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(bytes=size, crc32=checksum)


def is_intact(path: Path, record: FileRecord, between: Callable[[], None] = lambda: None) -> bool:
    """Whether the file is there, a plain one, with the size and checksum that it was written with. `between`
    is called after every piece of it."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size != record.bytes:
        return False
    checksum = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            checksum = zlib.crc32(piece, checksum)
            between()
    return checksum == record.crc32


class TensorFile:
    """A safetensors file, open for reading; a tensor that is missing or damaged is one sentence."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: Any = safe_open(str(path), framework="pt")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"Checkpoint file {path} is damaged ({error}).") from error

    def tensor(self, name: str) -> Tensor:
        """A whole tensor."""
        try:
            tensor: Tensor = self._file.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"Checkpoint file {self.path} has no tensor '{name}'.") from error
        return tensor

    def part(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
        """A tensor to be sliced: only what is asked of it is read."""
        try:
            part = self._file.get_slice(name)
        except SafetensorError as error:
            raise CheckpointError(f"Checkpoint file {self.path} has no tensor '{name}'.") from error
        if tuple(part.get_shape()) != shape or part.get_dtype() != _NAMES[dtype]:
            raise CheckpointError(f"Checkpoint file {self.path} is damaged: '{name}' has another shape.")
        return part


def _content(tensor: Tensor) -> memoryview:
    if tensor.numel() == 0:
        return memoryview(b"")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    content: Any = flat.view(torch.uint8).numpy()
    return memoryview(content)
