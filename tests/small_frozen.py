"""A frozen model of a few rows, as far as its manifest and the header of its weights go."""

import json
from pathlib import Path
from typing import Any

from megalith.export.program import Concat, DotInteraction, Linear, ModelProgram, ProgramOutput

PROGRAM = ModelProgram(
    inputs={"dense": 3, "embedded": 6},
    operations=(
        Linear(inputs=("dense",), output="h", weight="w0", bias="b0", function="relu", precision="int8"),
        Linear(inputs=("h",), output="v", weight="w1", precision="int8"),
        DotInteraction(inputs=("v", "embedded"), output="pairs", dim=2),
        Concat(inputs=("pairs", "dense"), output="all"),
        Linear(inputs=("all",), output="logit", weight="w2", precision="float32"),
    ),
    outputs=(ProgramOutput(value="logit"),),
)
SHAPES = {"w0": (4, 3), "b0": (4,), "w1": (2, 4), "w2": (1, 11)}


def manifest() -> Any:
    """Two tables, of which one is the user's."""
    from megalith.export.manifest import Contract, FeatureRecord, FrozenTableRecord, ModelManifest

    features = (
        FeatureRecord(name="user", user_side=True, average_length=5.0),
        FeatureRecord(name="item", average_length=2.5),
        FeatureRecord(name="seen"),
    )
    common: dict[str, Any] = {"precision": "int8", "scale": "float16", "file": "tables-00000.safetensors"}
    tables = (
        FrozenTableRecord(
            name="users", rows=1000, dim=2, features=("user",), row_bytes=6, bytes=6000, **common
        ),
        FrozenTableRecord(name="items", rows=100, dim=4, features=("item", "seen"), bytes=450, **common),
    )
    contract = Contract(simd="portable", versions={})
    return ModelManifest(
        name="m",
        step=1,
        num_dense=3,
        features=features,
        tables=tables,
        program=PROGRAM,
        contract=contract,
        files={},
    )


def weights(folder: Path) -> Path:
    """A file with the header of the program's weights and no numbers."""
    header = json.dumps(
        {
            "__metadata__": {"a": "b"},
            **{
                name: {"dtype": "F32", "shape": list(size), "data_offsets": [0, 0]}
                for name, size in SHAPES.items()
            },
        }
    ).encode()
    path = folder / "dense.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    return path
