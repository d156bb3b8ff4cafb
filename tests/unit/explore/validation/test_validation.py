"""How accurate predictions are: the standard that the cost model is held to, on rows it was not fitted on
too."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from megalith.core.errors import DataError
from megalith.explore.cost.uncertainty import HELD_OUT
from megalith.explore.validation import ValidationReport, validate
from megalith.explore.validation.measurements import FOLDER, fitted_rows, read_rows


@pytest.fixture(scope="module")
def report() -> ValidationReport:
    return validate()


def test_every_published_row_is_replayed(report: ValidationReport) -> None:
    assert len(report.rows) == 88
    assert len(report.bubbles) == 16


def test_at_most_half_of_the_rows_were_fitted_on() -> None:
    rows = read_rows()
    assert len(fitted_rows(rows)) == len(rows) / 2


def test_tensor_parallelism_inside_a_node_is_within_five_percent(report: ValidationReport) -> None:
    assert report.groups["TP at most 8"].rows == 78
    assert report.groups["TP at most 8"].mean <= 0.05


def test_tensor_parallelism_across_nodes_is_within_ten_percent(report: ValidationReport) -> None:
    assert report.groups["TP=16"].rows == 6
    assert report.groups["TP=16"].mean <= 0.10
    assert report.held_out["TP=16"].mean <= 0.10


def test_noisy_rows_are_listed_apart(report: ValidationReport) -> None:
    assert report.groups["TP=2 of 39.1B"].rows == 4


def test_held_out_rows_are_nearly_as_good_as_fitted_ones(report: ValidationReport) -> None:
    held_out = report.held_out["TP at most 8"]
    assert held_out.rows == 39
    assert held_out.mean <= 0.06
    assert held_out.median <= 0.05


def test_bubble_rates_are_within_two_hundredths(report: ValidationReport) -> None:
    for bubble in report.bubbles:
        assert abs(bubble.error) <= 0.02, bubble


def test_stated_uncertainty_is_the_held_out_error(report: ValidationReport) -> None:
    inside = [row for row in report.rows if not row.fitted and row.group == "TP at most 8"]
    devices = {row["id"]: row["gpu"].split("-")[0] for row in read_rows()}
    for family in ("a100", "h100"):
        errors = [abs(row.error) for row in inside if devices[row.id] == family]
        assert HELD_OUT[family] == pytest.approx(sum(errors) / len(errors), abs=0.003)
    assert HELD_OUT["a100 across nodes"] == pytest.approx(report.held_out["TP=16"].mean, abs=0.003)


def test_figures_name_their_sources() -> None:
    assert {row["source"].split()[0] for row in read_rows()} == {
        "vTrain",
        "Narayanan",
        "Korthikanti",
        "Megatron-Core",
    }


def test_other_rows_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows = [row for row in read_rows() if row["id"] in ("vtrain-60", "korthikanti-175b-selective")]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "id": f"{row['id']}-again"} for row in rows)
    again = validate(path)
    assert len(again.rows) == 2
    assert not any(row.fitted for row in again.rows)
    assert again.groups["all"].mean < 0.05
    assert again.to_dict()["bubbles"] == []


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.csv does not exist"):
        validate(tmp_path / "rows.csv")


def test_the_figures_ship_with_the_package() -> None:
    assert sorted(path.name for path in FOLDER.glob("*.csv")) == ["bubbles.csv", "llm_training.csv"]
