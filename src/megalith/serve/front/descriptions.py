"""Models and the server as the protocol describes them; the same for every transport, as JSON."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from megalith.core.errors import MegalithError
from megalith.serve.front.raw_features import open_transform, raw_columns, version_folder
from megalith.serve.front.service import InferenceService
from megalith.serve.request import ModelDescription, TensorDescription
from megalith.serve.status.statistics import VersionCounts

PLATFORM = "megalith"
EXTENSIONS = (
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "parameters",
    "raw_binary",
    "statistics",
)
_OPTIONAL = ("user_values", "user_lengths")


def server_metadata() -> dict[str, Any]:
    """Name, version and what the server has beyond the protocol."""
    return {"name": "megalith", "version": version("megalith"), "extensions": list(EXTENSIONS)}


def model_metadata(model: ModelDescription) -> dict[str, Any]:
    """Versions, inputs and outputs."""
    return {
        "name": model.name,
        "versions": list(model.versions),
        "platform": PLATFORM,
        "inputs": [_tensor(tensor) for tensor in model.inputs],
        "outputs": [_tensor(tensor) for tensor in model.outputs],
    }


def model_config(service: InferenceService, model: ModelDescription, version: str | None) -> dict[str, Any]:
    """The configuration extension: inputs and outputs once more, cards, and what draws a valid request."""
    facts = _facts(service, model, version)
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": model.backend,
        "version_policy": {
            "specific": {"versions": [int(each) for each in model.versions if each.isdigit()]}
        },
        "max_batch_size": 0,
        "input": [
            {
                "name": tensor.name,
                "data_type": f"TYPE_{tensor.datatype}",
                "dims": list(tensor.shape),
                "optional": tensor.name in _OPTIONAL,
            }
            for tensor in model.inputs
        ],
        "output": [
            {"name": tensor.name, "data_type": f"TYPE_{tensor.datatype}", "dims": list(tensor.shape)}
            for tensor in model.outputs
        ],
        "parameters": {name: {"string_value": json.dumps(value)} for name, value in facts.items()},
    }


def model_statistics(service: InferenceService, name: str | None, version: str | None) -> dict[str, Any]:
    """The statistics extension, of one model or of all."""
    models = [service.model(name, version)] if name else list(service.models().values())
    listed = []
    for model in models:
        for each in model.versions:
            if not version or each == version:
                counts = service.statistics.versions.get((model.name, each), VersionCounts())
                listed.append(_version_statistics(model.name, each, counts))
    return {"model_stats": listed}


def repository_index(service: InferenceService, ready: bool) -> list[dict[str, str]]:
    """Models and versions, those that can answer alone if asked so."""
    listed = []
    for model in service.models().values():
        state = "READY" if model.ready else "UNAVAILABLE"
        if model.ready or not ready:
            listed += [
                {"name": model.name, "version": version, "state": state, "reason": ""}
                for version in model.versions
            ]
    return listed


def _tensor(tensor: TensorDescription) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def _facts(service: InferenceService, model: ModelDescription, version: str | None) -> dict[str, Any]:
    """Of a version's manifest, what a client may want to know."""
    manifest = service.engine.manifest(model.name, version).manifest
    rows: dict[str, int | None] = {}
    for table in manifest.tables:
        for feature in table.features:
            known = table.rows if table.ids == "rows" else None
            earlier = rows.get(feature, known)
            rows[feature] = None if known is None or earlier is None else min(known, earlier)
    features = [
        {
            "name": feature.name,
            "user_side": feature.user_side,
            "max_length": feature.max_length,
            "average_length": feature.average_length,
            "rows": rows.get(feature.name),
        }
        for feature in manifest.features
    ]
    columns = _raw_columns(version_folder(model, version))
    return {
        "num_dense": manifest.num_dense,
        "features": features,
        "step": manifest.step,
        "raw_columns": list(columns),
    }


@lru_cache(maxsize=32)
def _raw_columns(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(raw_columns(open_transform(folder)))
    except MegalithError:
        return ()


def _version_statistics(name: str, version: str, counts: VersionCounts) -> dict[str, Any]:
    done = counts.success

    def duration(count: int, taken_ns: int) -> dict[str, int]:
        return {"count": count, "ns": taken_ns}

    return {
        "name": name,
        "version": version,
        "last_inference": counts.last_ms,
        "inference_count": counts.samples,
        "execution_count": counts.execution_count,
        "inference_stats": {
            "success": duration(done, counts.success_ns),
            "fail": duration(counts.failed, counts.failure_ns),
            "queue": duration(done, counts.queue_ns),
            "compute_input": duration(done, counts.input_ns),
            "compute_infer": duration(done, counts.compute_ns),
            "compute_output": duration(done, counts.output_ns),
            "cache_hit": duration(0, 0),
            "cache_miss": duration(0, 0),
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": duration(requests, input_ns),
                "compute_infer": duration(requests, compute_ns),
                "compute_output": duration(requests, output_ns),
            }
            for size, (requests, input_ns, compute_ns, output_ns) in sorted(counts.batches.items())
        ],
    }
