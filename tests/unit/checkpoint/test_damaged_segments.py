"""Segment files of a checkpoint that are not what was saved: one sentence that names them, whoever loads."""

import json
import zlib

import pytest
import torch
from safetensors.torch import load_file, save_file

from megalith.checkpoint.manifest import MANIFEST
from megalith.checkpoint.store import CheckpointStore
from megalith.core.errors import CheckpointError, StorageError
from row_pools import Table, make_pool, train

TABLE, BLOCK = Table("t", 1000, 16), 4096
POOL = "segments-00000-0"


@pytest.fixture
def store(tmp_path):
    """Two checkpoints with some segments each."""
    made = CheckpointStore(tmp_path / "run" / "checkpoints")
    for step in (1, 2):
        pool = make_pool(tmp_path / f"rows-{step}", [(TABLE, TABLE.whole())])
        train(pool, 0, range(900), TABLE.truth(range(900)), 1)
        made.save(step, state_of(pool.shard(0)), {})
        pool.rows.close()
    return made


def state_of(shard):
    return {"t": TABLE.state([shard])}


def into_a_pool(store, tmp_path):
    store.load(2, state_of(make_pool(tmp_path / "new", [(TABLE, TABLE.whole())]).shard(0)))


def into_memory(store, tmp_path):
    del tmp_path
    store.load(2, state_of(TABLE.dense(TABLE.truth(()), TABLE.whole())))


def verify(store, tmp_path):
    del tmp_path
    store.verify(2)


LOADS = [into_a_pool, into_memory, verify]


def segment(store, number=1):
    return sorted((store.path(2) / POOL).iterdir())[number]


def rewrite(path, content):
    """Other content under the name: a link elsewhere keeps the old."""
    path.unlink()
    path.write_bytes(content)


def flip(path, byte):
    content = bytearray(path.read_bytes())
    content[byte] ^= 0x40
    rewrite(path, content)


def refused(load, store, tmp_path, *words):
    with pytest.raises(CheckpointError) as error:
        load(store, tmp_path)
    assert str(error.value).count("\n") == 0
    for word in words:
        assert word in str(error.value), str(error.value)


FLIPS = {
    0: "no segment of rows",
    8: "version",
    16: "header is not what was written",
    40: "header is not what was written",
    -BLOCK: "the keys of its rows are not what was written",
}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("byte", FLIPS)
def test_a_flipped_byte_of_header_or_keys_is_named(store, tmp_path, load, byte):
    path = segment(store)
    flip(path, byte if byte >= 0 else path.stat().st_size + byte)
    refused(load, store, tmp_path, str(path), FLIPS[byte], "go back to step 1 with `megalith train")


@pytest.mark.parametrize("load", [into_memory, verify])
def test_a_flipped_byte_of_a_row_is_named(store, tmp_path, load):
    flip(segment(store), BLOCK + 100)
    refused(load, store, tmp_path, str(segment(store)), "a row is not what was written", "go back to step 1")


def test_a_pool_that_took_a_damaged_row_says_so_when_it_reads_it(store, tmp_path):
    flip(segment(store), BLOCK + 100)
    pool = make_pool(tmp_path / "new", [(TABLE, TABLE.whole())])
    store.load(2, state_of(pool.shard(0)))
    with pytest.raises(StorageError, match=f"{segment(store).name} is damaged"):
        pool.rows.read(0, torch.arange(TABLE.rows))


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("kept", [0, 100, BLOCK, 3 * BLOCK + 17])
def test_a_file_that_was_cut_off_is_named(store, tmp_path, load, kept):
    path = segment(store)
    rewrite(path, path.read_bytes()[:kept])
    refused(load, store, tmp_path, f"{path} is damaged or missing; go back to step 1")


@pytest.mark.parametrize("load", LOADS)
def test_missing_and_unlisted_files_are_named(store, tmp_path, load):
    more = store.path(2) / POOL / "00000000000000ff.rows"
    more.write_bytes(b"")
    refused(load, store, tmp_path, f"{more} is not listed in {POOL}.safetensors; remove it or go back")
    more.unlink()
    path = segment(store)
    path.rename(tmp_path / "elsewhere")
    refused(load, store, tmp_path, f"{path} is damaged or missing")
    path.symlink_to(tmp_path / "elsewhere")
    refused(load, store, tmp_path, f"{path} is damaged or missing")
    (store.path(2) / POOL).rename(tmp_path / "pool")
    refused(load, store, tmp_path, f"{store.path(2) / POOL} is missing")
    (store.path(2) / POOL).symlink_to(tmp_path / "pool")
    refused(load, store, tmp_path, f"{store.path(2) / POOL} is missing")


def change(store, edit):
    """Rewrites the manifest as a stranger could, checksums included."""
    path = store.path(2) / MANIFEST
    content = json.loads(path.read_text())
    content.pop("crc32")
    edit(content)
    for name in content["files"]:
        if (store.path(2) / name).is_file():
            data = (store.path(2) / name).read_bytes()
            content["files"][name] = {"bytes": len(data), "crc32": zlib.crc32(data)}
    content["crc32"] = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    path.write_text(json.dumps(content))


def last_twice(lists):
    lists["numbers"][-1] = lists["numbers"][0]


def one_word_less(lists):
    lists["live"], lists["words"][0] = lists["live"][1:].clone(), lists["words"][0] - 1


LISTS = {
    "numbers": lambda lists: lists["numbers"].neg_(),
    "names a file twice": last_twice,
    "words": lambda lists: lists["words"].add_(1),
    "fewer words than records": one_word_less,
    "type": lambda lists: lists.update(live=lists["live"].float()),
    "shape": lambda lists: lists.update(live=lists["live"][:, None]),
    "missing": lambda lists: lists.__delitem__("bytes"),
}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("edit", LISTS.values(), ids=LISTS)
def test_a_list_of_segments_that_lies_is_one_sentence(store, tmp_path, load, edit):
    path = store.path(2) / f"{POOL}.safetensors"
    lists = load_file(path)
    edit(lists)
    save_file({name: tensor.contiguous() for name, tensor in lists.items()}, path)
    change(store, lambda content: None)
    refused(load, store, tmp_path, str(store.path(2) / POOL))


def layout(**values):
    return lambda content: content["pools"][0]["layout"].update(values)


def window(**values):
    return lambda content: content["pools"][0]["layout"]["tables"][0].update(values)


def rectangle(**values):
    return lambda content: content["tables"]["t"]["sparse"][0].update(values)


EDITS = {
    "rectangle": rectangle(rows=[0, 5000]),
    "another rectangle": rectangle(rows=[0, 500]),
    "rectangle of columns": rectangle(columns=[-1, 16]),
    "version": layout(version=9),
    "digest": layout(digest=1),
    "row bytes": layout(row_bytes=8),
    "segment bytes": layout(segment_bytes=-1),
    "dtype": layout(parts={"weight": {"dtype": "load", "per": "element"}}),
    "parts": layout(parts={}),
    "tables": layout(tables=[]),
    "fewer rows": window(rows=[0, 10]),
    "rows of no table": window(rows=[500, 1500]),
    "columns": window(columns=[0, 3]),
    "columns of no table": window(columns=[4, 20]),
    "path": lambda content: content["pools"][0].update(name="../outside"),
    "paths": lambda content: content["pools"][0].update(paths=[]),
    "no list": lambda content: content["files"].pop(f"{POOL}.safetensors") and None,
}


@pytest.mark.parametrize("load", [into_a_pool, into_memory])
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_manifest_that_lies_about_a_pool_is_one_sentence(store, tmp_path, load, edit):
    (store.folder / "outside").mkdir()
    change(store, edit)
    refused(load, store, tmp_path, str(store.path(2)))


def test_reading_a_checkpoint_changes_none_of_its_files(store, tmp_path):
    def stamps():
        return {
            path: (path.stat().st_mtime_ns, path.stat().st_ino, path.stat().st_size)
            for path in store.path(2).rglob("*")
        }

    before = stamps()
    for load in LOADS:
        load(store, tmp_path)
    assert stamps() == before
    assert any((tmp_path / "new").iterdir())
