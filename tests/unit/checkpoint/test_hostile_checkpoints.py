"""Checkpoints from a stranger: nothing in them runs code, leaves its folder or ends in a traceback."""

import json
import os
import pickle
import zlib

import pytest
import torch

from megalith.checkpoint.manifest import MANIFEST, read_manifest
from megalith.checkpoint.store import CheckpointStore
from megalith.core.errors import CheckpointError
from megalith.embeddings.row_block import PartSpec
from megalith.embeddings.stores.dense_shard import DenseShard
from megalith.embeddings.table_state import TableState


def state(value=0.0):
    weight = torch.full((6, 2), value)
    table = TableState(
        6, 2, {"weight": PartSpec(torch.float32, "element")}, (DenseShard(0, 0, {"weight": weight}),)
    )
    return {"step": int(value), "rate": value, "best": None, "weight": torch.full((3,), value), "t": table}


@pytest.fixture
def store(tmp_path):
    made = CheckpointStore(tmp_path / "run" / "checkpoints")
    made.save(1, state(1.0), {})
    made.save(2, state(2.0), {})
    return made


class Bomb:
    """Pickled, it makes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def change(store, edit):
    """Rewrites the manifest of step 2 as a stranger could, checksum included."""
    path = store.path(2) / MANIFEST
    content = json.loads(path.read_text())
    content.pop("crc32")
    content = edit(content) or content
    content["crc32"] = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    path.write_text(json.dumps(content))


def listed(path):
    content = path.read_bytes()
    return {"bytes": len(content), "crc32": zlib.crc32(content)}


def refused(store, *words):
    before = state(7.0)
    with pytest.raises(CheckpointError) as error:
        store.load(2, before)
    for word in words:
        assert word in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "name", [".metadata", "__0_0.distcp", "dense.safetensors", "rows-00000-000.safetensors"]
)
@pytest.mark.parametrize("is_listed", [True, False])
def test_a_pickle_anywhere_in_a_checkpoint_is_never_loaded(store, tmp_path, name, is_listed):
    bomb = store.path(2) / name
    bomb.write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    if is_listed:
        change(store, lambda content: content["files"].update({name: listed(bomb)}))
    if is_listed and name in (".metadata", "__0_0.distcp"):
        store.load(2, state())
    else:
        refused(store, name)
    assert not (tmp_path / "exploded").exists()


def test_a_file_that_the_manifest_does_not_list_is_refused(store):
    (store.path(2) / "more.safetensors").write_bytes(b"")
    refused(store, "more.safetensors is not listed", "--from-step 1")


def test_a_file_that_the_manifest_no_longer_lists_is_refused(store):
    """Dropping a file from the manifest must not avoid its checksum."""
    change(store, lambda content: content["files"].pop("rows-00000-000.safetensors") and None)
    refused(store, "rows-00000-000.safetensors is not listed")


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "a/b", "..", "manifest.json", ""])
def test_a_manifest_cannot_name_a_file_outside_of_its_folder(store, name):
    (store.folder / "outside").write_bytes(b"")

    def edit(content):
        content["files"][name] = {"bytes": 0, "crc32": 0}

    change(store, edit)
    refused(store, "own folder")


def test_a_block_cannot_name_a_file_that_is_not_listed(store):
    def edit(content):
        content["tables"]["t"]["blocks"][0]["file"] = "other.safetensors"

    change(store, edit)
    refused(store, MANIFEST, "damaged")


def test_a_link_out_of_the_folder_is_refused(store, tmp_path):
    path = store.path(2) / "dense.safetensors"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    refused(store, "dense.safetensors is damaged or missing")


def test_a_step_folder_must_hold_the_step_that_it_is_named_after(store):
    store.path(2).rename(store.path(3))
    with pytest.raises(CheckpointError, match="holds step 2, not the one that it is named after"):
        store.load(3, state())


def test_a_checkpoint_of_the_version_before_is_refused(store):
    (store.path(2) / MANIFEST).write_text(json.dumps({"version": 1, "step": 2, "files": {}}))
    refused(store, "has checkpoint version 1", "use the release that wrote it")


NULL, LIST, NUMBER, TEXT, DEEP = "null", "[]", "7", '"x"', "[" * 100_000


@pytest.mark.parametrize("content", [NULL, LIST, NUMBER, TEXT, DEEP, "", "{", "{}", b"\xff\xfe"])
def test_a_manifest_that_is_none_is_one_sentence(store, content):
    path = store.path(2) / MANIFEST
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(store, "step-00000002")


def test_a_manifest_that_is_a_directory_is_one_sentence(store):
    path = store.path(2) / MANIFEST
    path.unlink()
    path.mkdir()
    refused(store, str(path), "--from-step 1")


def test_a_flipped_byte_of_the_manifest_is_noticed(store):
    path = store.path(2) / MANIFEST
    text = path.read_text()
    path.write_text(text.replace('"step": 2', '"step": 3', 1))
    refused(store, "manifest.json is damaged")


EDITS = {
    "step": lambda c: c["values"].update(step="many"),
    "rate": lambda c: c["values"].update(rate=[1]),
    "best": lambda c: c["values"].update(best={"a": 1}),
    "no value": lambda c: c["values"].pop("step") and None,
    "no tensor": lambda c: c.update(tensors=[]),
    "no table": lambda c: c.update(tables={}),
    "rows": lambda c: c["tables"]["t"].update(rows=10**18),
    "columns": lambda c: c["tables"]["t"]["blocks"][0].update(columns=[0, 3]),
    "backwards": lambda c: c["tables"]["t"]["blocks"][0].update(columns=[2, 0]),
    "first": lambda c: c["tables"]["t"]["blocks"][0].update(first=5),
    "count": lambda c: c["tables"]["t"]["blocks"][0].update(count=10**12),
    "ids": lambda c: c["tables"]["t"]["blocks"][0].update(first=None),
    "name": lambda c: c["tables"]["t"]["blocks"][0].update(name="x"),
    "part": lambda c: c["tables"]["t"]["parts"].update(more={"dtype": "float32", "per": "row"}),
    "no block": lambda c: c["tables"]["t"].update(blocks=[]),
    "kind": lambda c: c.update(kind="other"),
    "format": lambda c: c.update(format="other"),
    "more": lambda c: c.update(more=1),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_manifest_that_lies_is_one_sentence(store, edit):
    change(store, edit)
    refused(store, str(store.path(2)))


def test_a_tensor_file_that_lies_is_one_sentence(store):
    path = store.path(2) / "dense.safetensors"
    for header in (
        b"{}",
        b"null",
        b'{"weight":{"dtype":"F32","shape":[1000000],"data_offsets":[0,4000000]}}',
    ):
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        change(store, lambda content: content["files"].update({path.name: listed(path)}))
        refused(store, "dense.safetensors")
    path.write_bytes((1 << 62).to_bytes(8, "little"))
    change(store, lambda content: content["files"].update({path.name: listed(path)}))
    refused(store, "dense.safetensors")


def test_no_file_of_a_checkpoint_is_a_pickle(store):
    names = sorted(path.name for path in store.path(2).iterdir())
    assert names == ["dense.safetensors", MANIFEST, "rows-00000-000.safetensors"]
    assert read_manifest(store.path(2)).step == 2
