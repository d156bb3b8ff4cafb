"""Folders of frozen models: whole or not there, and no byte of them changes unseen."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from megalith.core.errors import ServeError, StorageError
from megalith.export.folder import (
    FrozenModel,
    is_model,
    list_files,
    new_model,
    read_manifest,
    table_file,
    write_manifest,
)
from megalith.export.manifest import Contract, FeatureRecord, FrozenTableRecord, ModelManifest
from megalith.export.program import Linear, ModelProgram, ProgramOutput
from megalith.export.tensor_file import create_tensors, read_tensors, write_tensors


def write(path: Path) -> None:
    """A small model, by hand."""
    with new_model(path) as folder:
        rows = create_tensors(folder / table_file(0), {"t/rows": (torch.uint8, (5, 16))})["t/rows"]
        rows.copy_(torch.arange(80, dtype=torch.uint8).view(5, 16))
        write_tensors(folder / "dense.safetensors", {"w": torch.ones(1, 4)})
        write_tensors(folder / "checks.safetensors", {"values": torch.arange(3)})
        (folder / "inputs").mkdir()
        (folder / "inputs" / "schema.json").write_text("{}\n")
        (folder / "report.json").write_text('{"gate": null}\n')
        table = FrozenTableRecord(
            name="t", rows=5, dim=4, features=("f",), precision="float32", file=table_file(0), bytes=80
        )
        layer = Linear(inputs=("embedded",), output="y", weight="w")
        write_manifest(
            folder,
            ModelManifest(
                name="m",
                step=3,
                num_dense=0,
                features=(FeatureRecord(name="f"),),
                tables=(table,),
                program=ModelProgram(
                    inputs={"dense": 0, "embedded": 4},
                    operations=(layer,),
                    outputs=(ProgramOutput(value="y"),),
                ),
                contract=Contract(simd="none", versions={}),
                files=list_files(folder),
            ),
        )


@pytest.fixture
def model(tmp_path):
    write(tmp_path / "model")
    return tmp_path / "model"


FILES = [
    *("manifest.json", table_file(0), "dense.safetensors", "checks.safetensors"),
    *("inputs/schema.json", "report.json"),
]


def test_a_folder_gives_back_what_was_written(model):
    opened = FrozenModel(model)
    assert torch.equal(opened.table("t")["rows"], torch.arange(80, dtype=torch.uint8).view(5, 16))
    assert torch.equal(opened.weights()["w"], torch.ones(1, 4))
    assert torch.equal(opened.checks()["values"], torch.arange(3))
    assert opened.report() == {"gate": None}
    assert is_model(model)
    assert set(FILES) == {*opened.manifest.files, "manifest.json"}


def test_rows_are_mapped_and_not_copied(model):
    before = FrozenModel(model).table("t")["rows"]
    path = model / table_file(0)
    content = bytearray(path.read_bytes())
    content[-1] = 7
    with path.open("r+b") as file:
        file.write(content)
    # What is mapped sees the change of the file.
    assert int(before[-1, -1]) == 7


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "empty", "longer"])
def test_every_damaged_file_is_named(model, name, damage):
    path = model / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        changed = {
            "cut": content[:-2],
            "flipped": content[: len(content) // 2]
            + bytes([content[len(content) // 2] ^ 1])
            + content[len(content) // 2 + 1 :],
            "empty": b"",
            "longer": content + b"x",
        }
        path.write_bytes(changed[damage])
    with pytest.raises(ServeError) as caught:
        FrozenModel(model)
    assert name in str(caught.value) or (name == "manifest.json" and damage == "missing")
    assert "\n" not in str(caught.value)


def test_every_flipped_byte_of_every_file_is_seen(model):
    for name in FILES:
        path = model / name
        content = path.read_bytes()
        step = max(1, len(content) // 40)
        for place in range(0, len(content), step):
            changed = bytearray(content)
            changed[place] ^= 0x11
            path.write_bytes(bytes(changed))
            if name == "manifest.json" and chr(content[place]).isspace():
                # White space of the manifest is no content of it.
                continue
            with pytest.raises(ServeError, match=re.escape(str(path))):
                FrozenModel(model)
        path.write_bytes(content)


def test_a_file_that_is_not_listed_and_another_version_are_refused(model):
    (model / "extra.py").write_text("print('hello')")
    with pytest.raises(ServeError, match=r"extra\.py is not listed"):
        FrozenModel(model)
    (model / "extra.py").unlink()
    content = json.loads((model / "manifest.json").read_text())
    (model / "manifest.json").write_text(json.dumps({**content, "version": 9}))
    with pytest.raises(ServeError, match="version 9, this package reads 1 to 2"):
        FrozenModel(model)
    (model / "manifest.json").write_text(json.dumps({**content, "format": "other"}))
    with pytest.raises(ServeError, match=r"manifest\.json is not the manifest"):
        FrozenModel(model)


def test_a_manifest_cannot_name_files_elsewhere(model, tmp_path):
    (tmp_path / "other").write_text("x")
    manifest = read_manifest(model)
    files = {**manifest.files, "../other": next(iter(manifest.files.values()))}
    write_manifest(model, manifest.model_copy(update={"files": files}))
    with pytest.raises(ServeError, match="a file elsewhere"):
        FrozenModel(model)


def _fail_within(path):
    with new_model(path) as folder:
        (folder / "half").write_text("x")
        raise RuntimeError


def test_an_error_leaves_nothing_and_an_older_model_as_it_was(model, tmp_path):
    for path in (model, tmp_path / "new"):
        with pytest.raises(RuntimeError):
            _fail_within(path)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert FrozenModel(model).manifest.step == 3
    write(model)
    assert FrozenModel(model).manifest.name == "m"


def test_a_folder_of_something_else_is_not_replaced(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(StorageError, match="is no exported model"), new_model(tmp_path / "notes"):
        pass
    assert (tmp_path / "notes" / "a.txt").read_text() == "mine"
    shutil.rmtree(tmp_path / "notes")


def test_tensors_of_no_rows_and_of_every_type(tmp_path):
    given = {
        "a": torch.empty(0, 5, dtype=torch.uint8),
        "b": torch.tensor([1, 2**32 - 1], dtype=torch.uint32),
        "c": torch.tensor([-(2**63)]),
        "d": torch.randn(3).bfloat16(),
    }
    write_tensors(tmp_path / "x.safetensors", given)
    found = read_tensors(tmp_path / "x.safetensors")
    assert all(torch.equal(found[name].view(torch.uint8), given[name].view(torch.uint8)) for name in given)
    write_tensors(tmp_path / "y.safetensors", {"a": given["a"]})
    assert read_tensors(tmp_path / "y.safetensors")["a"].shape == (0, 5)
