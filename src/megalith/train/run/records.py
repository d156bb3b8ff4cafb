"""What a run has written down about itself, checked when it is read again: a damaged file is named with the
line or key, never met as a missing key far from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from megalith.core.config import parse_config
from megalith.core.errors import DataError
from megalith.core.files import read_json_object, read_jsonl

Values = dict[str, Any]


class _Record(BaseModel):
    """Names what readers rely on; whatever else a newer release adds is let through."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Entry(_Record):
    """A line of metrics.jsonl."""

    kind: str
    step: int


class _Tiers(_Record):
    """What tiers did since the last report; bytes are those at its moment."""

    lookups: int
    hit_rate: float | None = None
    reads_per_sample: float | None = None
    reads: int
    written_rows: int
    memory_bytes: int
    index_bytes: int
    disk_bytes: int


class _Adaptive(_Record):
    """What adaptive tables are at a report, and what rankings changed since the last."""

    budget_bytes: int | None = None
    total_bytes: int
    dense_bytes: int
    weights_bytes: int
    state_bytes: int
    utility_bytes: int
    index_bytes: int
    sketch_bytes: int
    free_bytes: int
    bookkeeping_bytes: int
    resident_bytes: int | None = None
    pruned: int
    grown: int
    mean_dims: dict[str, float]


class _Dynamic(_Record):
    """What dynamic tables did since the last report; ids, bound and bytes are those at its moment."""

    ids: int
    bound: int
    map_bytes: int
    lookups: int
    admitted: int
    refused: int
    evicted: int
    unknown_share: float | None = None


class _RankLoad(_Record):
    """What one rank carried since the last report; bytes are those at its moment."""

    data_wait_seconds: float
    rank_wait_seconds: float
    lookups: int
    sent_bytes: int
    table_bytes: dict[str, int]
    resident_bytes: int | None = None


class _Anomaly(_Entry):
    """What was wrong with the run, from this step on."""

    anomaly: str
    message: str


class _TrainEntry(_Entry):
    samples: int
    loss: float | None = None
    seconds: float
    samples_per_second: float
    window: dict[str, float | None]
    tiers: _Tiers | None = None
    adaptive: _Adaptive | None = None
    dynamic: _Dynamic | None = None
    ranks: list[_RankLoad] | None = None
    wait_share: float | None = None


class _EvalEntry(_Entry):
    split: str
    samples: float | None = None
    ne: float | None = None
    log_loss: float | None = None
    auc: float | None = None
    calibration: float | None = None


class _CalibrationBin(_Record):
    low: float
    high: float
    mean_prediction: float
    click_rate: float
    count: float


class _Evaluation(_Record):
    """evaluation-SPLIT.json"""

    split: str
    step: int
    samples: int
    click_rate: float | None = None
    ne: float | None = None
    best_ne: float | None = None
    log_loss: float | None = None
    best_log_loss: float | None = None
    above_best: float | None = None
    auc: float | None = None
    calibration: float | None = None
    calibration_error: float | None = None
    calibration_curve: list[_CalibrationBin] | None = None


class _Machine(_Record):
    cpu: str
    cores: int
    memory_bytes: int | None = None
    simd: list[str]
    system: str


class _Summary(_Record):
    """summary.json"""

    finished: bool
    stopped_by: str | None = None
    step: int
    total_steps: int | None = None
    seconds: float
    samples_per_second: float
    best_step: int | None = None
    dense_parameters: int | None = None
    machine: _Machine | None = None


class _Prediction(_Record):
    """prediction.json"""

    hit_rate: float
    reads_per_sample: float
    step_seconds: float
    disk_bytes: float
    bound_by: str


_ENTRIES: dict[str, type[_Entry]] = {"train": _TrainEntry, "eval": _EvalEntry, "anomaly": _Anomaly}


def read_metrics(path: Path) -> list[Values]:
    """The lines of metrics.jsonl, none if it is missing."""
    entries = read_jsonl(path)
    for number, entry in enumerate(entries, start=1):
        cls = _ENTRIES.get(str(entry.get("kind")), _Entry)
        parse_config(cls, entry, f"{path}, line {number}", "delete the line", DataError)
    return entries


def read_summary(path: Path) -> Values:
    """How the run ended."""
    fix = f"delete it, or regenerate it with `megalith train {path.parent}`"
    content = read_json_object(path, fix=fix)
    parse_config(_Summary, content, str(path), fix, DataError)
    return content


def read_evaluation(path: Path) -> Values:
    """A full evaluation on one split."""
    fix = f"delete it and regenerate it with `megalith eval {path.parent}`"
    content = read_json_object(path, fix=fix)
    parse_config(_Evaluation, content, str(path), fix, DataError)
    return content


def read_prediction(path: Path) -> Values:
    """What was predicted of a run's tiers before it started."""
    fix = "delete it"
    content = read_json_object(path, fix=fix)
    parse_config(_Prediction, content, str(path), fix, DataError)
    return content


def without_curve(result: Values) -> Values:
    """An evaluation without its calibration curve: the numbers that fit on a line."""
    return {key: value for key, value in result.items() if key != "calibration_curve"}
