"""Streams: chunks that never cut a line, whatever the chunk size and the compression."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from megalith.data.readers import AVAZU, DelimitedFormat, DelimitedSource, TextColumn, read_chunks

CONTENT = b"one\ntwo\r\n\nfour is longer than the others\n\nlast has no end"


def pack(path: Path, content: bytes) -> Path:
    if path.suffix == ".gz":
        # Two members, as `cat a.gz b.gz` makes them.
        content = gzip.compress(content[:20]) + gzip.compress(content[20:])
    elif path.suffix == ".zst":
        codec = pa.Codec("zstd")
        content = codec.compress(content[:20], asbytes=True) + codec.compress(content[20:], asbytes=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("suffix", ["txt", "gz", "zst"])
def test_chunks_hold_whole_lines_for_every_chunk_size(tmp_path: Path, suffix: str) -> None:
    path = pack(tmp_path / f"text.{suffix}", CONTENT)
    for chunk_bytes in range(1, len(CONTENT) + 3):
        chunks = list(read_chunks(path, chunk_bytes))
        assert b"".join(chunk.text for chunk in chunks) == CONTENT
        assert all(bytes(chunk.text).endswith(b"\n") for chunk in chunks[:-1])
        lines = 1
        for chunk in chunks:
            assert chunk.first_line == lines
            lines += bytes(chunk.text).count(b"\n")


def test_rows_are_the_same_wherever_chunks_end(tmp_path: Path) -> None:
    small = DelimitedFormat(
        "small", ";", (TextColumn("label", "label"), TextColumn("size", "number"), TextColumn("kind"))
    )
    path = tmp_path / "small.txt"
    path.write_bytes(b"1;5;a\n0;;bb\nbad\n1;-3;\n0;1e3;a long value of a kind\r\n1;7;x")
    whole: list[object] | None = None
    for chunk_bytes in range(1, 60):
        source = DelimitedSource(small, [path], "none", -1.0, chunk_bytes)
        rows: list[object] = []
        bad_rows: list[object] = []
        for block in map(source.parse, source.items()):
            columns = (block.labels, *block.numbers, *block.keys)
            rows += zip(*(column.tolist() for column in columns), strict=True)
            bad_rows += [(bad.line, bad.problem) for bad in block.bad_rows]
        rows += bad_rows
        whole = whole or rows
        assert rows == whole
    assert whole is not None
    assert len(whole) == 6
    assert (3, "has 1 fields instead of 3") in whole


def test_a_format_lists_its_features() -> None:
    source = DelimitedSource(AVAZU, [])
    assert source.numeric == ()
    assert [feature.name for feature in source.features][:3] == ["hour_of_day", "weekday", "C1"]
