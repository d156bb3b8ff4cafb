"""Frozen models of a few rows in folders, requests for them, and what the plain model says of these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from megalith.export.backends.conformance.models import ModelInMemory, manifest_of, random_table
from megalith.export.folder import list_files, table_file, write_manifest
from megalith.export.frozen_part import frozen_lookup
from megalith.export.interpret import run_program
from megalith.export.manifest import DENSE_FILE, FeatureRecord
from megalith.export.program import DotInteraction, Linear, ModelProgram, ProgramOutput

NUM_DENSE, ROWS, DIM = 3, 50, 4
FEATURES = ("user", "item", "seen")


def small_model(seed: int = 0, name: str = "small") -> ModelInMemory:
    """A dot product model with two tasks, of three features of which one is the user's."""
    tables = [
        random_table("users", ("user",), "int8", seed=seed, rows=ROWS, dim=DIM),
        random_table("items", ("item", "seen"), "int8", seed=seed + 1, rows=ROWS, dim=DIM),
    ]
    program = ModelProgram(
        inputs={"dense": NUM_DENSE, "embedded": 3 * DIM},
        operations=(
            Linear(inputs=("dense",), output="h", weight="w0", bias="b0", function="relu"),
            Linear(inputs=("h",), output="v", weight="w1"),
            DotInteraction(inputs=("v", "embedded"), output="pairs", dim=DIM),
            Linear(inputs=("pairs",), output="click", weight="w2", bias="b2"),
            Linear(inputs=("pairs",), output="price", weight="w3"),
        ),
        outputs=(ProgramOutput(value="click"), ProgramOutput(name="price", value="price", kind="number")),
    )
    draw = torch.Generator().manual_seed(seed)
    shapes = {"w0": (8, NUM_DENSE), "b0": (8,), "w1": (DIM, 8), "w2": (1, 10), "b2": (1,), "w3": (1, 10)}
    weights = {key: torch.randn(*shape, generator=draw) for key, shape in shapes.items()}
    features = [FeatureRecord(name=each, user_side=each == "user") for each in FEATURES]
    manifest = manifest_of(name, program, "float32", NUM_DENSE, features, tables)
    return ModelInMemory(manifest, {record.name: tensors for record, tensors in tables}, weights)


def write_model(folder: Path, model: ModelInMemory) -> Path:
    """Writes a model as `megalith export` would, raw columns that are ids included."""
    inputs = folder / "inputs"
    inputs.mkdir(parents=True)
    tensors = {
        f"{table}/{key}": tensor.contiguous()
        for table, held in model.tables.items()
        for key, tensor in held.items()
    }
    save_file(tensors, folder / table_file(0))
    save_file({key: tensor.contiguous() for key, tensor in model.weights().items()}, folder / DENSE_FILE)
    (inputs / "schema.json").write_text(json.dumps(_schema(model)))
    write_manifest(folder, model.manifest.model_copy(update={"files": list_files(folder)}))
    return folder


def _schema(model: ModelInMemory) -> dict[str, Any]:
    from megalith.core.schema import FeatureSpec
    from megalith.data.dataset import DatasetSchema

    categorical = tuple(FeatureSpec(name=name, num_ids=ROWS) for name in FEATURES)
    numeric = tuple(f"n{place}" for place in range(NUM_DENSE))
    made = DatasetSchema(source="drawn", numeric=numeric, categorical=categorical, splits={})
    return made.model_dump(mode="json")


def draw_inputs(samples: int, seed: int = 0, ids: Any = np.int64, apart: bool = False) -> dict[str, Any]:
    """A request: tiled, or with the ids of the user once."""
    draw = np.random.default_rng(seed)
    user = draw.integers(0, 4, (1, 1)).astype(np.int32)
    lengths = draw.integers(0, 4, (2, samples)).astype(np.int32)
    user_ids = draw.integers(0, ROWS, int(user.sum())).astype(ids)
    item_ids = draw.integers(0, ROWS, int(lengths.sum())).astype(ids)
    dense = draw.standard_normal((samples, NUM_DENSE)).astype(np.float32)
    if apart:
        return {
            "dense": dense,
            "values": item_ids,
            "lengths": lengths,
            "user_values": user_ids,
            "user_lengths": user,
        }
    tiled = np.concatenate([np.tile(user_ids, samples), item_ids])
    whole = np.concatenate([np.tile(user, (1, samples)), lengths]).astype(np.int32)
    return {"dense": dense, "values": tiled, "lengths": whole}


def expected(model: ModelInMemory, inputs: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """What the plain model gives for a tiled request."""
    manifest = model.manifest
    lookup = frozen_lookup(model, manifest.tables, [each.name for each in manifest.features])
    offsets = np.concatenate([[0], np.cumsum(inputs["lengths"].reshape(-1))])
    values = torch.from_numpy(inputs["values"].astype(np.int64))
    with torch.inference_mode():
        pooled = lookup(values, torch.from_numpy(offsets))
        found = run_program(manifest.program, model.weights(), torch.from_numpy(inputs["dense"]), pooled)
        return {"score": torch.sigmoid(found[:, 0]).numpy(), "price": found[:, 1].numpy()}
