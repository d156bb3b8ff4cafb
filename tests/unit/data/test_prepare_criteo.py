"""Preparing Criteo-like files: as plain Python would, and the same whatever the machinery did."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from criteo_rows import criteo_lines, plain_prepare, read_split, write_text

from megalith.core.errors import ConfigError, DataError
from megalith.data.dataset import Dataset
from megalith.data.prepare import PrepareOptions, prepare, writer

LINES = criteo_lines(1500)


def run(out: Path, *files: Path, **options: Any) -> Dataset:
    prepare(PrepareOptions(source="criteo", files=files, out=out, **{"min_count": 2, **options}))
    return Dataset(out)


def digest(folder: Path) -> dict[str, str]:
    """The content of every file but schema.json, which names the input."""
    paths = sorted(path for path in folder.rglob("*.parquet"))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "train.tsv", LINES)


@pytest.mark.parametrize(("min_count", "max_vocabulary"), [(1, None), (3, None), (1, 7)])
def test_every_column_is_what_plain_python_makes_of_it(
    text: Path, tmp_path: Path, min_count: int, max_vocabulary: int | None
) -> None:
    dataset = run(tmp_path / "out", text, min_count=min_count, max_vocabulary=max_vocabulary)
    wanted = plain_prepare(LINES, LINES, min_count, max_vocabulary)
    found = read_split(tmp_path / "out")
    assert list(found) == list(wanted)
    for name, column in wanted.items():
        assert found[name] == column, name
    for feature in dataset.schema.categorical:
        assert max(wanted[feature.name]) < feature.num_ids
    split = dataset.split("train")
    assert (split.rows, split.positives) == (len(LINES), sum(wanted["label"]))


def test_output_is_the_same_for_any_threads_chunks_and_memory(text: Path, tmp_path: Path) -> None:
    variants = {
        "plain": {"threads": 1},
        "threads": {"threads": 3, "chunk_bytes": 5000},
        "spilled": {"threads": 2, "chunk_bytes": 20_000, "memory_bytes": 1},
    }
    results = {
        name: prepare(
            PrepareOptions(
                source="criteo",
                files=(text,),
                out=tmp_path / name,
                min_count=1,
                valid_fraction=0.2,
                test_files=(text,),
                **options,
            )
        )
        for name, options in variants.items()
    }
    assert results["plain"].num_spills == 0
    assert results["spilled"].num_spills > 0
    assert digest(tmp_path / "plain") == digest(tmp_path / "threads") == digest(tmp_path / "spilled")
    assert not (tmp_path / "spilled" / ".work").exists()


def test_compressed_and_split_files_give_the_same_rows(text: Path, tmp_path: Path) -> None:
    write_text(tmp_path / "train.tsv.gz", LINES)
    write_text(tmp_path / "train.tsv.zst", LINES)
    halves = [
        write_text(tmp_path / "a.tsv", LINES[:700], ending="\r\n"),
        write_text(tmp_path / "b.tsv.gz", LINES[700:]),
    ]
    # A file whose last line has no end.
    halves[0].write_bytes(halves[0].read_bytes().rstrip(b"\r\n"))
    run(tmp_path / "plain", text)
    run(tmp_path / "gzip", tmp_path / "train.tsv.gz", chunk_bytes=10_000)
    run(tmp_path / "zstd", tmp_path / "train.tsv.zst", chunk_bytes=10_000)
    run(tmp_path / "halves", *halves)
    wanted = digest(tmp_path / "plain")
    assert digest(tmp_path / "gzip") == digest(tmp_path / "zstd") == digest(tmp_path / "halves") == wanted


def test_rows_come_in_even_groups_and_parts(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "GROUP_ROWS", 100)
    monkeypatch.setattr(writer, "PART_ROWS", 400)
    dataset = run(tmp_path / "out", text, chunk_bytes=7000)
    groups = []
    for path in dataset.files("train"):
        metadata = pq.read_metadata(path)
        groups.append([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)])
    assert groups == [[100] * 4, [100] * 4, [100] * 4, [100] * 3]
    assert read_split(tmp_path / "out") == plain_prepare(LINES, LINES, 2)


def test_the_test_split_has_the_vocabulary_of_train(text: Path, tmp_path: Path) -> None:
    others = criteo_lines(300, seed=1)
    run(tmp_path / "out", text, test_files=(write_text(tmp_path / "test.tsv", others),))
    assert read_split(tmp_path / "out", "test") == plain_prepare(LINES, others, 2)


def test_random_validation_rows_depend_on_seed_and_row_number_only(text: Path, tmp_path: Path) -> None:
    first = run(tmp_path / "first", text, valid_fraction=0.25, seed=5)
    assert 300 < first.split("valid").rows < 450
    assert first.split("valid").rows + first.split("train").rows == len(LINES)
    run(tmp_path / "again", text, valid_fraction=0.25, seed=5, chunk_bytes=3000)
    run(tmp_path / "other", text, valid_fraction=0.25, seed=6)
    assert digest(tmp_path / "again") == digest(tmp_path / "first") != digest(tmp_path / "other")
    # A longer file leaves the choice among its first rows as it was.
    from megalith.data.prepare.splits import ValidRule

    mask = ValidRule(0.25, 5).mask(0, len(LINES))
    assert mask is not None
    kept = [line for line, held_out in zip(LINES, mask.tolist(), strict=True) if not held_out]
    held = [line for line, held_out in zip(LINES, mask.tolist(), strict=True) if held_out]
    assert read_split(tmp_path / "first") == plain_prepare(kept, kept, 2)
    assert read_split(tmp_path / "first", "valid") == plain_prepare(kept, held, 2)


def test_tail_validation_rows_are_the_last_ones(text: Path, tmp_path: Path) -> None:
    run(tmp_path / "out", text, valid_fraction=0.1, valid_from="tail")
    assert read_split(tmp_path / "out") == plain_prepare(LINES[:1350], LINES[:1350], 2)
    assert read_split(tmp_path / "out", "valid") == plain_prepare(LINES[:1350], LINES[1350:], 2)


@pytest.mark.parametrize("chunk_bytes", [2000, 1 << 20])
def test_a_limit_keeps_the_first_rows(text: Path, tmp_path: Path, chunk_bytes: int) -> None:
    run(tmp_path / "out", text, limit_rows=333, chunk_bytes=chunk_bytes)
    assert read_split(tmp_path / "out") == plain_prepare(LINES[:333], LINES[:333], 2)


def test_an_existing_vocabulary_is_applied_to_new_files(text: Path, tmp_path: Path) -> None:
    others = write_text(tmp_path / "new.tsv", criteo_lines(300, seed=1))
    old = run(tmp_path / "old", text, missing_number=-1.0, test_files=(others,))
    new = run(tmp_path / "new", others, vocabulary_from=tmp_path / "old")
    assert read_split(tmp_path / "new") == read_split(tmp_path / "old", "test")
    assert new.schema.categorical == old.schema.categorical
    # The new data set is complete: its own vocabulary serves in turn.
    run(tmp_path / "newer", others, vocabulary_from=tmp_path / "new")
    assert read_split(tmp_path / "newer") == read_split(tmp_path / "new")
    with pytest.raises(ConfigError, match="--numeric log"):
        run(tmp_path / "no", others, vocabulary_from=tmp_path / "old", numeric="none")
    with pytest.raises(ConfigError, match="criteo files"):
        prepare(
            PrepareOptions(
                source="libfm", files=(others,), out=tmp_path / "no", vocabulary_from=tmp_path / "old"
            )
        )
    with pytest.raises(DataError, match="not a prepared data set"):
        run(tmp_path / "no", others, vocabulary_from=tmp_path)
    assert not (tmp_path / "no").exists()


def test_hashed_ids_need_no_vocabulary(text: Path, tmp_path: Path) -> None:
    from megalith.ops.text.keys_twin import hash_keys_twin, token_key_twin

    dataset = run(tmp_path / "out", text, hash_buckets=1000)
    assert {feature.num_ids for feature in dataset.schema.categorical} == {1002}
    assert not (tmp_path / "out" / "vocabulary").exists()
    keys = [token_key_twin(line.split("\t")[14].encode()) for line in LINES]
    assert read_split(tmp_path / "out")["C1"] == hash_keys_twin(keys, 1000).tolist()
    run(tmp_path / "again", text, vocabulary_from=tmp_path / "out")
    assert digest(tmp_path / "again") == digest(tmp_path / "out")


def test_buckets_are_categorical_features(text: Path, tmp_path: Path) -> None:
    dataset = run(tmp_path / "out", text, numeric="bucket", min_count=1)
    assert dataset.schema.numeric == ()
    assert dataset.schema.feature_names[:14] == (*(f"I{number}" for number in range(1, 14)), "C1")
    ids = read_split(tmp_path / "out")["I1"]
    tokens = [line.split("\t")[1] for line in LINES]
    assert [id_ == 0 for id_ in ids] == [token == "" for token in tokens]
    known = pq.read_table(tmp_path / "out" / "vocabulary" / "I1.parquet").to_pydict()
    texts = dict(zip(known["id"], known["text"], strict=True))
    seen = {(token, texts[id_]) for token, id_ in zip(tokens, ids, strict=True) if token}
    assert {("-1", "-1"), ("0", "0"), ("2", "2"), ("3", "4"), ("20", "11")} <= seen


def test_numbers_can_stay_as_they_are(text: Path, tmp_path: Path) -> None:
    run(tmp_path / "out", text, numeric="none", missing_number=-7)
    tokens = [line.split("\t")[2] for line in LINES]
    assert read_split(tmp_path / "out")["I2"] == [float(token) if token else -7.0 for token in tokens]


def test_the_vocabulary_can_be_read_by_people(text: Path, tmp_path: Path) -> None:
    run(tmp_path / "out", text, min_count=1)
    table = pq.read_table(tmp_path / "out" / "vocabulary" / "C2.parquet").to_pydict()
    assert table["id"] == list(range(2, 2 + len(table["id"])))
    assert sum(table["count"]) == sum(line.split("\t")[15] != "" for line in LINES)
    assert table["count"] == sorted(table["count"], reverse=True)
    assert set(table["text"]) == {line.split("\t")[15] for line in LINES} - {""}
    long = pq.read_table(tmp_path / "out" / "vocabulary" / "C1.parquet").to_pydict()
    assert set(long["text"]) == {line.split("\t")[14] for line in LINES} - {""}
