"""How accurate predictions are: published measurements, replayed.

    report = validate()
    report.groups["TP at most 8"].mean

The constants of cost/calibration.yaml were fitted on every second row of the table (`fitted`); the others
are held out, and their errors are given apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import mean, median

from megalith.core.errors import DataError, MegalithError
from megalith.explore.predict import predict
from megalith.explore.prediction import Prediction
from megalith.explore.validation.bubbles import replay_bubble
from megalith.explore.validation.measurements import (
    FOLDER,
    MeasurementRow,
    fitted_rows,
    group_of,
    job_of,
    read_rows,
)
from megalith.explore.validation.report import ErrorSummary, ValidationReport, ValidationRow


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
            lines = str(error).splitlines() or [type(error).__name__]
            raise DataError(f"{path}, row {number} ({row['id']}): {lines[0]}; fix the row.") from error
    held_out = [result for result in results if not result.fitted]
    bubbles = tuple(replay_bubble(row) for row in read_rows(FOLDER / "bubbles.csv")) if path is None else ()
    return ValidationReport(tuple(results), _groups(results), _groups(held_out), bubbles)


def _result(row: MeasurementRow, fitted: bool) -> ValidationRow:
    # It ran, so it fitted, whatever our count of memory says.
    prediction = predict(job_of(row), must_fit=False)
    measured = float(row["value"])
    predicted = metric_of(prediction, row["metric"])
    return ValidationRow(
        row["id"],
        row["source"],
        group_of(row),
        fitted,
        row["metric"],
        measured,
        predicted,
        predicted / measured - 1,
    )


def _groups(results: Iterable[ValidationRow]) -> dict[str, ErrorSummary]:
    """Summaries by group, by source and of all rows."""
    groups: dict[str, list[float]] = {}
    for result in results:
        for name in (result.group, result.source, "all"):
            groups.setdefault(name, []).append(result.error)
    return {name: _summary(errors) for name, errors in groups.items()}


def _summary(errors: list[float]) -> ErrorSummary:
    absolute = [abs(error) for error in errors]
    return ErrorSummary(len(errors), mean(absolute), median(absolute), max(absolute), mean(errors))


def metric_of(prediction: Prediction, metric: str) -> float:
    """The field of a prediction that a row measured, such as step_seconds."""
    value = getattr(prediction, metric)
    assert isinstance(value, float)
    return value
