"""Measured training steps: what ran, on which software, and how long it took.

    shipped_steps()                  llm_training.csv and measured_steps.jsonl, which lie beside this module
    read_steps(Path("mine.jsonl"))   one JSON object a line: id, stack, family, step_seconds, memory_gb, job
    read_steps(Path("mine.csv"))     one row a step (job_columns.py)

Sources of measured_steps.jsonl: NVIDIA dgxc-benchmarking v25.04 and v25.05 (NeMo), Megatron-Bridge's
performance summaries 25.09 to 26.08, llm-foundry's FSDP throughput tables, torchtitan's performance pages,
BLOOM's chronicles (Megatron-DeepSpeed).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megalith.core.errors import DataError, MegalithError, nearest
from megalith.core.files import read_text
from megalith.explore.job import Job, TransformerModel
from megalith.explore.load import load_job
from megalith.explore.plan import stack_of
from megalith.explore.stacks import release_of, stack_names
from megalith.explore.validation.job_columns import job_content, read_table

FOLDER = Path(__file__).parent
TABLE, LINES, HARDWARE, BUBBLES = (
    FOLDER / name
    for name in ("llm_training.csv", "measured_steps.jsonl", "measured_hardware.yaml", "bubbles.csv")
)
_KEYS = ("id", "stack", "family", "source", "step_seconds", "memory_gb", "out_of_memory", "job")


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One measured step and the job that ran it; what the source does not say is blank in the job."""

    id: str
    job: Job
    stack: str
    """The profile it is predicted with."""
    family: str
    model: str
    """What is left out together when a fit is tried on models that it has not seen."""
    source: str
    metric: str
    value: float
    """Of the metric; 0 where the run failed for want of memory."""
    memory_gibibytes: float | None = None
    """Logged peak."""
    out_of_memory: bool = False


def shipped_steps() -> list[MeasuredStep]:
    """Every published step of the package."""
    return [*read_steps(TABLE), *read_steps(LINES)]


def read_steps(path: Path) -> list[MeasuredStep]:
    """The steps of a file; DataError names the row and the column or key that is wrong."""
    text = read_text(path, fix=f"write a table like {TABLE}", missing="check the path")
    steps = _lines(text, path) if path.suffix in (".jsonl", ".json") else _rows(text, path)
    if not steps:
        raise DataError(f"{path} holds no measurements; add a row for each.")
    return steps


def _lines(text: str, path: Path) -> list[MeasuredStep]:
    steps = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            content = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where} is not JSON ({error}); fix the line.") from error
        if not isinstance(content, dict) or not isinstance(content.get("job"), dict):
            raise DataError(f"{where} has no key 'job'; write objects like those of {LINES}.")
        unknown = next((key for key in content if key not in _KEYS), None)
        if unknown is not None:
            raise DataError(f"{where}: unknown key '{unknown}'; {nearest(unknown, _KEYS)}")
        steps.append(_step(content, content["job"], where, "step_seconds", content.get("step_seconds")))
    return steps


def _rows(text: str, path: Path) -> list[MeasuredStep]:
    steps = []
    for number, row in enumerate(read_table(text, path, TABLE), start=1):
        where = f"{path}, row {number} ({row.get('id', '')})"
        metric = row.get("metric") or "step_seconds"
        value = row.get("value") or row.get("step_seconds")
        steps.append(_step(row, job_content(row, where), where, metric, value))
    return steps


def _step(
    content: Mapping[str, Any], job: dict[str, Any], where: str, metric: str, value: Any
) -> MeasuredStep:
    failed = str(content.get("out_of_memory") or "").lower() in ("true", "yes", "1")
    try:
        measured = float(value) if value not in (None, "") else 0.0
        memory = content.get("memory_gb")
        peak = float(memory) if memory not in (None, "") else None
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: {error}; write a number.") from error
    if not failed and not measured > 0:
        raise DataError(f"{where}: step_seconds must be above 0; add it, or out_of_memory for a failed run.")
    if metric not in ("step_seconds", "model_tflops_per_gpu", "hardware_tflops_per_gpu"):
        raise DataError(f"{where}: unknown metric '{metric}'; take step_seconds.")
    named = str(content.get("stack") or "")
    training = dict(job.get("training") or {})
    if named and "stack" not in training:
        training["stack"] = _profile_name(named, str(content.get("id") or ""), where)
    try:
        loaded = load_job({**job, "training": training}, hardware=[HARDWARE])
        stack = stack_of(loaded).name
    except MegalithError as error:
        raise DataError(f"{where}: {str(error).splitlines()[0]}") from error
    return MeasuredStep(
        id=str(content.get("id") or where),
        job=loaded.model_copy(update={"name": str(content.get("id") or "")}),
        stack=stack,
        family=str(content.get("family") or f"{_family(loaded)}, {stack}"),
        model=model_key(loaded),
        source=str(content.get("source") or named or stack),
        metric=metric,
        value=measured,
        memory_gibibytes=peak,
        out_of_memory=failed,
    )


def _profile_name(named: str, identifier: str, where: str) -> str:
    """The profile that a row's stack means: `nemo-25 (release ...)` is nemo-25, a path of a YAML file
    itself. A release that the row's id begins with decides between profiles of one software."""
    name = named.split(" (")[0].strip()
    if name.endswith((".yaml", ".yml")):
        return name
    name = name.replace(" ", "-")
    if name not in stack_names():
        raise DataError(f"{where}: there is no stack '{name}'; {nearest(name, stack_names())}")
    release = re.match(r"\d\d\.\d\d(?=-)", identifier)
    return release_of(name, release[0]) if release else name


def model_key(job: Job) -> str:
    """Which model a job trains: its name, else what tells it from others but depth and length."""
    model = job.model
    if not isinstance(model, TransformerModel):
        return model.name or model.kind
    if model.name:
        return model.name
    return f"h{model.hidden}-f{model.ffn or 4 * model.hidden}-v{model.vocab}-e{model.experts}"


def _family(job: Job) -> str:
    """The family of a row that names none: by model, precision, sharding and device."""
    model, parallel = job.model, job.parallel
    experts = isinstance(model, TransformerModel) and model.experts > 0
    sharded = parallel is not None and parallel.sharding in ("zero2", "zero3", "hybrid")
    kind = "MoE" if experts else "FSDP" if sharded else "dense TP/PP"
    narrow = "FP8 " if job.training.precision in ("fp8", "mxfp8", "nvfp4") else ""
    return f"{narrow}{kind} {job.cluster.device.split('-')[0].upper()}"
