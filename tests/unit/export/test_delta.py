"""Deltas: what changed between two versions, written whole, refused where damaged, right when applied."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.core.errors import ServeError, StorageError
from megalith.export.backends.conformance.models import ModelInMemory, probe_model
from megalith.export.backends.conformance.requests import RequestMaker
from megalith.export.delta import write_delta
from megalith.export.delta.folder import DELTA, ROWS_FILE, FrozenDelta, content_checksum, read_delta
from megalith.export.delta.source import DeltaModel
from megalith.ops.frozen.changed_rows import change_index, changed_numbers, merge_changes
from served_models import in_process, opened, write_model


def with_rows(changes: dict[str, list[int]], weight: float = 0.0) -> ModelInMemory:
    """The probe with the bytes of some rows turned over, and its dense part moved by `weight`."""
    model = probe_model()
    tables = {name: dict(held) for name, held in model.tables.items()}
    for name, numbers in changes.items():
        rows = tables[name]["rows"].clone()
        rows[numbers, -1] = 255 - rows[numbers, -1]
        tables[name]["rows"] = rows
    dense = {name: tensor + weight for name, tensor in model.dense.items()}
    return ModelInMemory(model.manifest, tables, dense)


@pytest.fixture
def versions(tmp_path: Path) -> list[Path]:
    steps = [{}, {"t_int8": [1, 5], "t_dynamic": [7]}, {"t_int8": [1, 5, 6], "t_int4": [0], "t_dynamic": [7]}]
    return [write_model(tmp_path / f"v{n}", with_rows(rows, 0.01 * n)) for n, rows in enumerate(steps)]


def test_a_delta_has_only_the_rows_that_changed(versions: list[Path], tmp_path: Path) -> None:
    delta = write_delta(versions[0], versions[1], tmp_path / "delta")
    assert {(one.name, one.kind, one.rows) for one in delta.tables} == {
        ("t_int8", "rows", 2),
        ("t_dynamic", "rows", 1),
    }
    assert FrozenDelta(tmp_path / "delta").tensors("t_int8")["changed"].tolist() == [1, 5]
    assert read_delta(tmp_path / "delta") == delta
    assert delta.result == content_checksum(opened(versions[1]).manifest)


def test_a_delta_over_its_base_scores_as_the_whole_version_and_so_does_a_delta_over_that(
    versions: list[Path], tmp_path: Path
) -> None:
    model = opened(versions[0])
    for number in (1, 2):
        write_delta(versions[number - 1], versions[number], tmp_path / f"d{number}")
        model = DeltaModel(model, FrozenDelta(tmp_path / f"d{number}"))
        whole = opened(versions[number])
        for seed in range(5):
            request = RequestMaker(whole, "whole").request(30, seed=seed)
            got, wanted = in_process(model, request), in_process(whole, request)
            assert all(torch.equal(got[task], wanted[task]) for task in wanted)


def test_tables_whose_rows_are_of_unequal_length_come_whole(tmp_path: Path) -> None:
    model = probe_model()
    tables = {name: dict(held) for name, held in model.tables.items()}
    tables["t_adaptive"]["rows"] = tables["t_adaptive"]["rows"] ^ 1
    old = write_model(tmp_path / "old")
    new = write_model(tmp_path / "new", ModelInMemory(model.manifest, tables, model.dense))
    delta = write_delta(old, new, tmp_path / "delta")
    assert [(one.name, one.kind) for one in delta.tables] == [("t_adaptive", "whole")]
    request = RequestMaker(opened(new), "whole").request(30)
    got = in_process(DeltaModel(opened(old), FrozenDelta(tmp_path / "delta")), request)
    assert all(torch.equal(got[task], one) for task, one in in_process(opened(new), request).items())


def test_a_delta_over_another_version_is_refused(versions: list[Path], tmp_path: Path) -> None:
    write_delta(versions[1], versions[2], tmp_path / "delta")
    with pytest.raises(ServeError, match="over another version"):
        DeltaModel(opened(versions[0]), FrozenDelta(tmp_path / "delta"))


@pytest.mark.parametrize("name", [DELTA, ROWS_FILE, "dense.safetensors"])
def test_a_delta_with_a_byte_changed_is_refused_by_name(
    versions: list[Path], tmp_path: Path, name: str
) -> None:
    write_delta(versions[0], versions[1], tmp_path / "delta")
    path = tmp_path / "delta" / name
    content = bytearray(path.read_bytes())
    if name == DELTA:
        changed = json.loads(content)
        changed["base"] += 1
        content = bytearray(json.dumps(changed).encode())
    else:
        content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ServeError, match=f"{name} is damaged"):
        FrozenDelta(tmp_path / "delta")


def test_a_delta_does_not_overwrite_what_is_none(versions: list[Path]) -> None:
    with pytest.raises(StorageError, match="is no delta"):
        write_delta(versions[0], versions[1], versions[2])


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 400), st.data())
def test_an_index_of_changed_rows_gives_them_back_and_merges(num_rows: int, data: st.DataObject) -> None:
    numbers = st.lists(st.integers(0, num_rows - 1), unique=True).map(sorted)
    first, second = (torch.tensor(data.draw(numbers), dtype=torch.int64) for _ in range(2))
    assert changed_numbers(change_index(first, num_rows)).tolist() == first.tolist()
    rows = [torch.full((len(one), 3), value, dtype=torch.uint8) for value, one in ((1, first), (2, second))]
    merged, content = merge_changes((first, rows[0]), (second, rows[1]))
    assert merged.tolist() == sorted({*first.tolist(), *second.tolist()})
    assert content[:, 0].tolist() == [2 if one in second.tolist() else 1 for one in merged.tolist()]
