"""Text files as streams of chunks that end at a line end; .gz and .zst are decompressed on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megalith.core.errors import DataError

CHUNK_BYTES = 4 << 20
MAX_LINE_BYTES = 64 << 20
_CODECS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Whole lines of a file."""

    path: Path
    first_line: int
    """From 1."""
    text: memoryview


@contextmanager
def open_text(path: Path) -> Iterator[Any]:
    """The decompressed bytes of a file, as an object with `readinto`; failures name the file."""
    # pyarrow's decompression holds no interpreter lock, so that reading and parsing overlap.
    import pyarrow

    codec = _CODECS.get(path.suffix)
    try:
        with path.open("rb", buffering=0) as file:
            yield file if codec is None else pyarrow.CompressedInputStream(file, codec)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path.") from error
    except IsADirectoryError as error:
        raise DataError(f"{path} is a folder; name the files in it.") from error
    except PermissionError as error:
        raise DataError(f"No permission to read {path}; change its permissions.") from error
    except OSError as error:
        if codec and "Truncated" in str(error):
            raise DataError(
                f"{path} is cut off in the middle of its {codec} stream; get the file again."
            ) from error
        if codec and error.errno is None:
            raise DataError(
                f"{path} is not a valid {codec} file ({error}); get it again or rename it."
            ) from error
        raise DataError(f"{path} cannot be read ({error.strerror or error}); check the disk.") from error


def read_chunks(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Iterator[TextChunk]:
    """The lines of a file in chunks of about `chunk_bytes`, none of which cuts a line."""
    with open_text(path) as stream:
        yield from cut_at_lines(stream, path, chunk_bytes)


def cut_at_lines(stream: Any, path: Path, chunk_bytes: int = CHUNK_BYTES) -> Iterator[TextChunk]:
    """What is left of an open text in chunks of about `chunk_bytes`, none of which cuts a line."""
    carry = b""
    first_line = 1
    size = chunk_bytes
    while True:
        buffer = bytearray(len(carry) + size)
        buffer[: len(carry)] = carry
        filled = fill_buffer(stream, buffer, len(carry))
        at_end = filled < len(buffer)
        cut = filled if at_end else buffer.rfind(b"\n") + 1
        if cut == 0 and not at_end:
            size = len(buffer)
            if size > MAX_LINE_BYTES:
                raise DataError(
                    f"{path}, line {first_line} is longer than {MAX_LINE_BYTES >> 20} MiB; is it text?"
                )
            carry = bytes(buffer)
            continue
        view = memoryview(buffer)
        if cut:
            yield TextChunk(path, first_line, view[:cut])
            first_line += int(np.count_nonzero(np.frombuffer(view[:cut], np.uint8) == 10))
        if at_end:
            return
        carry, size = bytes(view[cut:filled]), chunk_bytes


def fill_buffer(stream: Any, buffer: bytearray, filled: int) -> int:
    """Reads on from `filled` bytes until the buffer is full or the stream ends; how many bytes it holds."""
    view = memoryview(buffer)
    while filled < len(buffer):
        count = stream.readinto(view[filled:])
        if not count:
            break
        filled += count
    return filled
