"""What a partition knows of a model, from a shape, a program and a manifest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megalith.core.errors import ConfigError, ServeError
from megalith.export.partition.served.dense_work import DenseShape, work_of_program, work_of_shape
from megalith.export.partition.served.from_manifest import served_manifest, tensor_shapes
from megalith.export.partition.served.shape_file import served_shape, shape_names, shipped_shape
from small_frozen import PROGRAM, SHAPES, manifest, weights


def shape(name: str, **options: str) -> Any:
    path = shipped_shape(name)
    assert path is not None
    return served_shape(path, **options)


def test_shapes_are_those_that_were_published() -> None:
    assert shape_names() == ["dlrm-v2", "large", "rm1", "rm2", "rm3"]
    rm1, rm2, rm3, dlrm = (shape(name) for name in ("rm1", "rm2", "rm3", "dlrm-v2"))
    assert [(len(m.tables), m.tables[0].rows, m.tables[0].dim) for m in (rm1, rm2, rm3)] == [
        (8, 4_000_000, 32),
        (32, 500_000, 64),
        (10, 2_000_000, 32),
    ]
    assert [m.tables[0].item_lookups for m in (rm1, rm2, rm3)] == [80, 120, 20]
    assert sum(table.item_lookups for table in dlrm.tables) == 214
    assert sum(table.rows for table in dlrm.tables) == 204_184_588
    # MLPerf: 32 MFLOP an item.
    assert dlrm.dense.operations == {"int8": pytest.approx(32e6, rel=0.01)}
    assert dlrm.table_bytes == 204_184_588 * 132
    assert shape("rm1", precision="int4").table_bytes == 32_000_000 * 20


def test_the_large_shape_barely_fits_six_cards_of_16_gigabytes() -> None:
    assert 0.9 < shape("large").table_bytes / (6 * 0.95 * 16 * 2**30) < 0.97


def test_layers_of_a_shape_by_hand() -> None:
    described = DenseShape(inputs=3, bottom=(4, 2), interaction="dot", top=(5,))
    work = work_of_shape(described, [2, 2, 2], "int8")
    # 3-4-2; four vectors of two columns in six pairs; 2 + 6 columns through 5 to 1.
    assert work.operations == {"int8": 2 * (12 + 8 + 40 + 5), "float16": 2 * 6 * 2}
    assert work.weight_bytes == (12 + 8 + 40 + 5) + 4 * (4 + 2 + 5 + 1)
    joined = work_of_shape(described.model_copy(update={"interaction": "concat"}), [2, 2, 2], "float32")
    assert joined.operations == {"float32": 2 * (12 + 8 + 8 * 5 + 5)}
    with pytest.raises(ConfigError, match=r"dcn needs dense\.cross"):
        work_of_shape(described.model_copy(update={"interaction": "dcn"}), [2], "int8")


def test_products_of_a_program_by_hand() -> None:
    work = work_of_program(PROGRAM, SHAPES, 3)
    assert work.operations == {"int8": 2 * (12 + 8), "float16": 2 * 6 * 2, "float32": 2 * 11}
    assert work.weight_bytes == 12 + 8 + 4 * 11 + 4 * (4 + 2 + 1)
    # dense, embedded, h, v, [v | 6 pairs], all, logit.
    assert work.columns == 3 + 6 + 4 + 2 + 8 + 11 + 1


def test_a_weight_that_the_model_lacks_is_named() -> None:
    with pytest.raises(ConfigError, match="'w1' of the program is no matrix"):
        work_of_program(PROGRAM, {"w0": (4, 3), "w2": (1, 11)}, 3)


def test_a_manifest_says_what_is_looked_up_once(tmp_path: Path) -> None:
    model = served_manifest(manifest(), weights(tmp_path))
    users, items = model.tables
    assert (users.user_lookups, users.user_vectors, users.item_lookups) == (5, 1, 0)
    assert (items.item_lookups, items.item_vectors, items.user_vectors) == (3.5, 2, 0)
    assert items.row_bytes == 4.5
    assert users.lookups(100) == 5
    assert users.lookups(100, user_once=False) == 500
    assert model.user_features == ("user",)
    assert model.precision == "int8"


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, (2).to_bytes(8, "little") + b"[]", b"\0" * 8])
def test_a_damaged_file_of_weights_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "dense.safetensors"
    path.write_bytes(content)
    with pytest.raises(
        ServeError, match=r"dense\.safetensors is no safetensors file; export the model again"
    ):
        tensor_shapes(path)


def test_partitions_start_without_torch() -> None:
    code = (
        "import sys, megalith.export.partition.guidance, megalith.export.partition.lessons, "
        "megalith.export.partition.served.shape_file, megalith.export.partition.served.from_manifest; "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
