"""Bad input: one sentence that names file and line, and nothing left where good output is expected."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest
from criteo_rows import criteo_lines, plain_prepare, read_split, write_text

from megalith.core.errors import DataError, MegalithError, StorageError
from megalith.data.dataset import Dataset
from megalith.data.prepare import PrepareOptions, prepare

LINES = criteo_lines(40)


def options(out: Path, *files: Path, **others: object) -> PrepareOptions:
    return PrepareOptions.model_validate(
        {"source": "criteo", "files": files, "out": out, "min_count": 1, **others}
    )


def with_bad_line(line: str) -> list[str]:
    return [*LINES[:10], line, *LINES[10:]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (LINES[0].rsplit("\t", 1)[0], "line 11 has 39 fields instead of 40"),
        (LINES[0] + "\tx", "line 11 has 41 fields instead of 40"),
        ("nothing here", "line 11 has 1 fields instead of 40"),
        ("2" + LINES[0][1:], "line 11 has '2' in field 1 (label), which is not 0 or 1"),
        (LINES[0][1:], "line 11 has '' in field 1 (label), which is not 0 or 1"),
        (
            "\t".join(["1", "2", "many", *LINES[0].split("\t")[3:]]),
            "line 11 has 'many' in field 3 (I2), which is not a number",
        ),
    ],
)
def test_a_bad_row_is_named_and_can_be_left_out(tmp_path: Path, line: str, message: str) -> None:
    path = write_text(tmp_path / "train.tsv", with_bad_line(line))
    with pytest.raises(DataError) as caught:
        prepare(options(tmp_path / "out", path, chunk_bytes=900))
    assert f"{path}, {message}; correct it" in str(caught.value)
    assert [one.name for one in tmp_path.iterdir()] == ["train.tsv"]

    prepare(options(tmp_path / "out", path, max_bad_rows=1))
    schema = Dataset(tmp_path / "out").schema
    assert schema.bad_rows == 1
    [bad] = schema.preparation["first_bad_rows"]
    assert bad["line"] == 11
    assert read_split(tmp_path / "out") == plain_prepare(LINES, LINES, 1)


def test_the_first_bad_row_is_reported_whatever_the_threads_do(tmp_path: Path) -> None:
    lines = [*LINES[:30], "bad", *LINES[:20], "worse", *LINES]
    path = write_text(tmp_path / "train.tsv", lines)
    for threads in (1, 4):
        with pytest.raises(DataError, match="line 31 has 1 fields"):
            prepare(options(tmp_path / "out", path, threads=threads, chunk_bytes=300))
    with pytest.raises(DataError, match=r"line 52 has 1 fields.*\(More than 1 rows are bad.\)"):
        prepare(options(tmp_path / "out", path, max_bad_rows=1, chunk_bytes=300))


def test_bad_rows_beyond_the_limit_do_not_matter(tmp_path: Path) -> None:
    path = write_text(tmp_path / "train.tsv", [*LINES[:20], "bad", *LINES[20:]])
    for chunk_bytes in (200, 1 << 20):
        prepare(options(tmp_path / "out", path, limit_rows=20, chunk_bytes=chunk_bytes, overwrite=True))
        assert Dataset(tmp_path / "out").schema.bad_rows == 0


def test_empty_lines_are_passed_over_and_counted(tmp_path: Path) -> None:
    path = write_text(tmp_path / "train.tsv", [*LINES[:5], "", *LINES[5:], "bad", ""], ending="\r\n")
    with pytest.raises(DataError, match="line 42 has 1 fields"):
        prepare(options(tmp_path / "out", path))
    prepare(options(tmp_path / "out", path, max_bad_rows=5))
    assert read_split(tmp_path / "out") == plain_prepare(LINES, LINES, 1)


def _content() -> bytes:
    return "".join(line + "\n" for line in LINES).encode() * 20


def test_each_unreadable_file_has_its_sentence(tmp_path: Path) -> None:
    compressed, packed = gzip.compress(_content()), pa.Codec("zstd").compress(_content(), asbytes=True)
    damaged = bytearray(compressed)
    damaged[-6] ^= 255
    cases = {
        "empty.tsv": (b"", "is empty"),
        "empty.gz": (b"", "is empty"),
        "cut.gz": (compressed[:-500], "is cut off"),
        "cut.zst": (packed[:-100], "is cut off"),
        "damaged.gz": (bytes(damaged), "is not a valid gzip file"),
        "plain.gz": (_content(), "is not a valid gzip file"),
        "plain.zst": (_content(), "is not a valid zstd file"),
        "blank.tsv": (b"\n\n", "holds no rows"),
    }
    for name, (content, message) in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            prepare(options(tmp_path / "out", path))
        assert str(caught.value).startswith(f"{path} {message}"), name
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r"absent.tsv does not exist"):
        prepare(options(tmp_path / "out", tmp_path / "absent.tsv"))
    with pytest.raises(DataError, match="is a folder"):
        prepare(options(tmp_path / "out", tmp_path))
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(cases)


def test_a_missing_test_file_is_found_before_any_work(tmp_path: Path) -> None:
    bad = write_text(tmp_path / "train.tsv", ["bad"])
    with pytest.raises(DataError, match=r"absent.tsv does not exist"):
        prepare(options(tmp_path / "out", bad, test_files=[tmp_path / "absent.tsv"]))


def test_a_failure_keeps_the_folder_that_was_to_be_overwritten(tmp_path: Path) -> None:
    good, bad = write_text(tmp_path / "good.tsv", LINES), write_text(tmp_path / "bad.tsv", [*LINES, "bad"])
    prepare(options(tmp_path / "out", good))
    with pytest.raises(StorageError, match="--overwrite"):
        prepare(options(tmp_path / "out", good))
    with pytest.raises(DataError):
        prepare(options(tmp_path / "out", bad, overwrite=True))
    assert Dataset(tmp_path / "out").split("train").rows == len(LINES)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["bad.tsv", "good.tsv", "out"]
    prepare(options(tmp_path / "out", good, overwrite=True, limit_rows=7))
    assert Dataset(tmp_path / "out").split("train").rows == 7


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from megalith.data.readers import streams

    monkeypatch.setattr(streams, "MAX_LINE_BYTES", 4096)
    (tmp_path / "train.tsv").write_bytes(b"x" * 100_000)
    with pytest.raises(DataError, match="line 1 is longer than"):
        prepare(options(tmp_path / "out", tmp_path / "train.tsv", chunk_bytes=512))


def test_options_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    from megalith.core.config import parse_config

    content = {"source": "criteo", "files": ["a"], "out": "b", "hash_buckets": 5, "max_vocabulary": 3}
    with pytest.raises(MegalithError, match="leave out --max-vocabulary"):
        parse_config(PrepareOptions, content, "megalith data prepare")
