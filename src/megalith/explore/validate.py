"""How accurate is it? Published measurements, replayed: error of each row, by group, and which rows were
fitted on.

    report = validate()
    report.groups["TP at most 8"].mean

The constants of cost/calibration.yaml were fitted on every second row of the table (`fitted`); the others
are held out, and their errors are given apart.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from megalith.core.errors import DataError, MegalithError
from megalith.core.files import read_text
from megalith.explore.job import ClusterSpec, Job, LevelSpec, Network, Parallel, Training, TransformerModel
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.explore.plan import make_plan
from megalith.explore.predict import predict
from megalith.explore.prediction import Prediction
from megalith.explore.step import build_step

FOLDER = Path(__file__).parent / "validation"
Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class RowResult:
    id: str
    source: str
    group: str
    fitted: bool
    metric: str
    measured: float
    predicted: float
    error: float
    """(predicted - measured) / measured of the metric."""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Absolute relative errors over some rows."""

    rows: int
    mean: float
    median: float
    worst: float
    bias: float
    """Mean of the signed errors."""


@dataclass(frozen=True, slots=True)
class BubbleResult:
    model: str
    schedule: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted - self.measured


@dataclass(frozen=True, slots=True)
class ValidationReport:
    rows: tuple[RowResult, ...]
    groups: dict[str, GroupResult]
    held_out: dict[str, GroupResult]
    """The same groups over the rows that nothing was fitted on."""
    bubbles: tuple[BubbleResult, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "rows": [asdict(row) for row in self.rows],
            "groups": {name: asdict(group) for name, group in self.groups.items()},
            "held_out": {name: asdict(group) for name, group in self.held_out.items()},
            "bubbles": [{**asdict(one), "error": one.error} for one in self.bubbles],
            "bubbles_worst": max((abs(one.error) for one in self.bubbles), default=0.0),
        }


def read_rows(path: Path | None = None) -> list[Row]:
    """The rows of a file of measurements; one of the user's must have the columns of ours."""
    shipped = FOLDER / "llm_training.csv"
    text = read_text(path or shipped, fix=f"write a table like {shipped}", missing="check the path")
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""))
        rows = list(reader)
    except csv.Error as error:
        raise DataError(f"{path} is not CSV ({error}); write a table like {shipped}.") from error
    if path is not None and path.parent != FOLDER:
        wanted = list(read_rows()[0])
        lacking = next((name for name in wanted if name not in (reader.fieldnames or ())), None)
        if lacking is not None:
            raise DataError(f"{path} has no column '{lacking}'; write a table like {shipped}.")
        if not rows:
            raise DataError(f"{path} holds no measurements; add a row for each.")
    return rows


def job_of(row: Row) -> Job:
    """A row of llm_training.csv as a job; what the source does not say stays blank."""
    hopper = row["gpu"].startswith(("h100", "h200"))
    per_node = int(row["gpus_per_node"])
    # vTrain's machines have 800 Gb/s a node; Selene and Eos one adapter of 200 or 400 Gb/s per GPU.
    outer = (
        "ib-ndr400x8" if hopper else "ib-hdr200x4" if row["source"].startswith("vTrain") else "ib-hdr200x8"
    )
    nodes = max(1, -(-int(row["gpus"]) // per_node))
    levels = [LevelSpec(name="node", count=per_node, link="nvlink4" if hopper else "nvlink3")]
    levels.append(LevelSpec(name="zone", count=nodes, link=outer))
    pp, vpp = int(row["pp"]), row["vpp"]
    parallel: dict[str, Any] = {
        "tp": int(row["tp"]),
        "pp": pp,
        "dp": int(row["dp"]),
        "global_batch": int(row["global_batch"]),
        "sequence_parallel": row["sequence_parallel"] == "yes",
    }
    if vpp:
        parallel["vpp"] = int(vpp)
    if row["micro_batch"]:
        parallel["micro_batch"] = int(row["micro_batch"])
    training: dict[str, Any] = {"precision": row["precision"]}
    if row["recompute"]:
        training["recompute"] = row["recompute"]
    if vpp:
        training["schedule"] = "interleaved" if int(vpp) > 1 else "1f1b"
    return Job(
        name=row["id"],
        model=TransformerModel(
            hidden=int(row["hidden"]),
            layers=int(row["layers"]),
            heads=int(row["heads"]),
            vocab=int(row["vocab"]),
            seq=int(row["seq"]),
        ),
        cluster=ClusterSpec(device=row["gpu"], levels=tuple(levels)),
        parallel=Parallel(**parallel),
        training=Training(**training),
        network=Network(),
    )


def fitted_rows(rows: Sequence[Row]) -> set[str]:
    """Ids of the rows that constants were fitted on: every second row of the table, beginning with the
    first."""
    return {row["id"] for row in rows[::2]}


def group_of(row: Row) -> str:
    if int(row["tp"]) > 8:
        return "TP=16"
    if int(row["tp"]) == 2 and row["params_b"] == "39.1":
        return "TP=2 of 39.1B"
    return "TP at most 8"


def metric_of(prediction: Prediction, metric: str) -> float:
    value = getattr(prediction, metric)
    assert isinstance(value, float)
    return value


def validate(path: Path | None = None) -> ValidationReport:
    """Every row predicted and compared; `path` names another file of the same columns."""
    rows = read_rows(path)
    known = fitted_rows(read_rows())
    results = []
    for number, row in enumerate(rows, start=1):
        try:
            results.append(_result(row, row["id"] in known))
        except (MegalithError, ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
            if path is None:
                raise
            said = str(error).splitlines() or [type(error).__name__]
            raise DataError(f"{path}, row {number} ({row['id']}): {said[0]}; fix the row.") from error
    held_out = [result for result in results if not result.fitted]
    bubbles = tuple(_bubble(row) for row in read_rows(FOLDER / "bubbles.csv")) if path is None else ()
    return ValidationReport(tuple(results), _groups(results), _groups(held_out), bubbles)


def _result(row: Row, fitted: bool) -> RowResult:
    # It ran, so it fitted, whatever our count of memory says.
    prediction = predict(job_of(row), must_fit=False)
    measured = float(row["value"])
    predicted = metric_of(prediction, row["metric"])
    return RowResult(
        row["id"],
        row["source"],
        group_of(row),
        fitted,
        row["metric"],
        measured,
        predicted,
        predicted / measured - 1,
    )


def _groups(results: Iterable[RowResult]) -> dict[str, GroupResult]:
    found: dict[str, list[float]] = {}
    for result in results:
        found.setdefault(result.group, []).append(result.error)
        found.setdefault(result.source, []).append(result.error)
        found.setdefault("all", []).append(result.error)
    return {name: _summary(errors) for name, errors in found.items()}


def _summary(errors: list[float]) -> GroupResult:
    absolute = [abs(error) for error in errors]
    return GroupResult(len(errors), mean(absolute), median(absolute), max(absolute), mean(errors))


def _bubble(row: Row) -> BubbleResult:
    """One row of bubbles.csv: pipeline only, first and last stage one layer fewer than the others.

    The paper's rate is of a schedule simulated with the mean seconds of a stage and of a message, as
    profiled: cost less m (F + B + W), over cost.
    """
    pp, layers, schedule = int(row["p"]), int(row["layers"]), row["schedule"]
    each = (layers + 2) // pp
    # The paper interleaves single layers: as many chunks as a stage has layers.
    vpp = each if schedule == "interleaved" else 1
    stages = [each // vpp] * (pp * vpp)
    stages[0] -= 1
    stages[-1] -= 1
    micro_batch = int(row["micro_batch"])
    levels = (
        LevelSpec(name="node", count=8, link="nvlink3"),
        LevelSpec(name="zone", count=max(1, pp // 8), link="roce-200x8"),
    )
    job = Job(
        model=TransformerModel(
            hidden=int(row["hidden"]),
            layers=layers,
            heads=int(row["heads"]),
            vocab=51200,
            seq=int(row["seq"]),
        ),
        cluster=ClusterSpec(device="a100-80g", levels=levels),
        parallel=Parallel(
            pp=pp,
            vpp=vpp,
            micro_batch=micro_batch,
            global_batch=micro_batch * int(row["m"]),
            layers_per_stage=tuple(stages),
        ),
        training=Training.model_validate({"precision": "bf16", "schedule": schedule, "overlap": True}),
    )
    plan = make_plan(job, micro_batch, "none")
    built = build_schedule(schedule, pp, plan.micro_batches, vpp)
    costs = build_step(plan, built).costs

    def level(seconds: tuple[float, ...]) -> tuple[float, ...]:
        return (mean(seconds),) * len(seconds)

    even = replace(
        costs,
        forward=level(costs.forward),
        backward_input=level(costs.backward_input),
        backward_weight=level(costs.backward_weight),
        optimizer_seconds=(),
    )
    rate = simulate(built, even).bubble_rate
    return BubbleResult(row["model"], schedule, float(row["bubble_rate"]), rate)
