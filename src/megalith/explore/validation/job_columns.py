"""Tables of measured steps: a column for each setting of a job, under the setting's own name.

Columns: id, source, stack, family; gpu, gpus, gpus_per_node, node_link, zone_link; every field of the job's
model, parallel and training sections (hidden, kv_heads, gated, tp, cp, ep, sharding, precision, ...), or
`model` with a name of the catalog; step_seconds, or metric and value; memory_gb, out_of_memory. A blank is
what the source does not say. Any other column is refused by name.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from megalith.core.errors import DataError, nearest
from megalith.explore.job import Parallel, Training, TransformerModel

TableRow = dict[str, str]
"""Column -> text."""
_SECTIONS = {
    "model": tuple(TransformerModel.model_fields),
    "parallel": tuple(Parallel.model_fields),
    "training": tuple(Training.model_fields),
}
_CLUSTER = ("gpu", "gpus", "gpus_per_node", "node_link", "zone_link")
_MEASURED = ("id", "source", "stack", "family", "params_b", "metric", "value", "step_seconds", "memory_gb")
_COLUMNS = {
    *_CLUSTER,
    *_MEASURED,
    "out_of_memory",
    "model",
    *(name for fields in _SECTIONS.values() for name in fields),
}
_INNER = {"h100": "nvlink4", "h200": "nvlink4", "h800": "nvlink4", "a100": "nvlink3", "v100": "nvlink2"}
_OUTER = {"h100": "ib-ndr400x8", "h200": "ib-ndr400x8", "h800": "ib-ndr400x8"}


def read_table(text: str, path: Path, example: Path) -> list[TableRow]:
    """The rows of a table; unknown columns are refused by name."""
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""))
        rows = list(reader)
    except csv.Error as error:
        raise DataError(f"{path} is not CSV ({error}); write a table like {example}.") from error
    names = [name or "" for name in reader.fieldnames or ()]
    unknown = next((name for name in names if name not in _COLUMNS), None)
    if unknown is not None:
        raise DataError(f"{path}: unknown column '{unknown}'; {nearest(unknown, sorted(_COLUMNS))}")
    for wanted in ("gpu", "gpus", "global_batch"):
        if wanted not in names:
            raise DataError(f"{path} has no column '{wanted}'; write a table like {example}.")
    for number, row in enumerate(rows, start=1):
        if None in row or any(value is None for value in row.values()):
            raise DataError(
                f"{path}, row {number} has {'more' if None in row else 'fewer'} fields than the table has "
                f"columns; fix the row."
            )
    return rows


def job_content(row: Mapping[str, str], where: str) -> dict[str, Any]:
    """The job of a row, as a mapping that `load_job` takes."""
    sections: dict[str, Any] = {
        section: {name: _value(row[name]) for name in fields if row.get(name)}
        for section, fields in _SECTIONS.items()
    }
    if row.get("model"):
        base = {"base": row["model"]} if sections["model"] else row["model"]
        sections["model"] = {**base, **sections["model"]} if isinstance(base, dict) else base
    parallel, training = sections["parallel"], sections["training"]
    if "stack" in training:
        # The row's stack may say more than the profile's name.
        del training["stack"]
    older = row["gpu"].startswith(("a100", "v100"))
    if not row.get("stack") and row.get("source", "").startswith(
        ("vTrain", "Narayanan", "Korthikanti", "Megatron-Core")
    ):
        training["stack"] = "megatron-2021" if older else "mcore-0.8"
    if row.get("vpp") and not row.get("schedule"):
        training["schedule"] = "interleaved" if str(parallel["vpp"]) != "1" else "1f1b"
    sections["cluster"] = _cluster(row, where)
    return sections


def _cluster(row: Mapping[str, str], where: str) -> dict[str, Any]:
    device = row["gpu"]
    family = device.split("-")[0]
    try:
        devices, each = int(row["gpus"]), int(row.get("gpus_per_node") or 8)
    except ValueError as error:
        raise DataError(f"{where}: gpus and gpus_per_node must be whole numbers; fix the row.") from error
    if devices < 1 or each < 1:
        raise DataError(f"{where}: gpus and gpus_per_node must be at least 1; fix the row.")
    # vTrain's machines have 800 Gb/s a node; Selene and Eos one adapter of 200 or 400 Gb/s per GPU.
    vtrain = row.get("source", "").startswith("vTrain")
    outer = (
        "ib-hdr200x4" if vtrain else _OUTER.get(family, "ib-hdr200x8" if family == "a100" else "ib-ndr400x8")
    )
    return {
        "device": device,
        "levels": [
            {"name": "node", "count": each, "link": row.get("node_link") or _INNER.get(family, "nvlink5")},
            {
                "name": "zone",
                "count": max(1, -(-devices // each)),
                "link": row.get("zone_link") or outer,
            },
        ],
    }


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
