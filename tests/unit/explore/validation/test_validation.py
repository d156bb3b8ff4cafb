"""How accurate predictions are: the standard that the cost model is held to, on models left out too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megalith.core.errors import DataError
from megalith.explore.candidates import candidate_plans
from megalith.explore.intervals import band_of, left_out_steps
from megalith.explore.validation import ValidationReport, validate
from megalith.explore.validation.measurements import (
    FOLDER,
    LINES,
    TABLE,
    MeasuredStep,
    read_steps,
    shipped_steps,
)

MOST = {
    "dense TP/PP H100 bf16": 0.05,
    "FP8 dense H100": 0.05,
    "FSDP A100": 0.08,
    "FSDP H100": 0.08,
    "FP8 FSDP H100": 0.10,
    "MoE H100": 0.12,
    "dense Blackwell": 0.10,
    "MoE Blackwell": 0.16,
    "stack megatron-2021": 0.062,
    "stack megatron-deepspeed-2022": 0.055,
    "stack mcore-0.8": 0.06,
    "stack nemo-25": 0.05,
    "stack llm-foundry": 0.06,
}
"""Mean absolute error of rows predicted by a fit without their model, where decision 34 states one."""


@pytest.fixture(scope="module")
def report() -> ValidationReport:
    return validate()


@pytest.fixture(scope="module")
def steps() -> dict[str, MeasuredStep]:
    return {step.id: step for step in shipped_steps()}


def test_every_published_row_is_replayed(report: ValidationReport) -> None:
    assert len(report.rows) == 88 + 187
    assert len(report.bubbles) == 16


def test_models_left_out_of_the_fit_are_predicted_as_stated(report: ValidationReport) -> None:
    for name, most in MOST.items():
        assert report.left_out[name].mean <= most, name


def test_rows_on_a100_of_2021_stay_within_six_percent(report: ValidationReport) -> None:
    assert report.groups["stack megatron-2021"].rows == 79
    assert report.groups["stack megatron-2021"].mean <= 0.058


def test_fitted_profiles_are_nearer_than_left_out_ones(report: ValidationReport) -> None:
    assert report.groups["all"].mean <= report.left_out["all"].mean


def test_intervals_hold_four_fifths_of_left_out_rows(steps: dict[str, MeasuredStep]) -> None:
    families: dict[str, list[tuple[float, float]]] = {}
    for row in left_out_steps():
        step = steps[row.id]
        half = band_of(candidate_plans(step.job)[0]).half_width
        families.setdefault(step.family, []).append((abs(row.error), half))
    large = {name: pairs for name, pairs in families.items() if len(pairs) >= 20}
    assert len(large) >= 3
    for name, pairs in large.items():
        inside = sum(error <= half for error, half in pairs) / len(pairs)
        mean = sum(error for error, _ in pairs) / len(pairs)
        halves = sorted(half for _, half in pairs)
        assert 0.7 <= inside <= 0.9, name
        assert halves[len(halves) // 2] <= 1.6 * mean, name


def test_no_row_that_ran_is_refused(report: ValidationReport) -> None:
    assert [
        row.id for row in report.rows if not row.fits and row.family != "dense TP/PP A100, megatron-2021"
    ] == []


def test_logged_peaks_are_within_a_tenth(report: ValidationReport) -> None:
    errors = {check.id: check.error for check in report.memory if check.error is not None}
    assert len(errors) == 13
    assert all(abs(error) <= 0.10 for error in errors.values()), errors
    assert sum(abs(error) for error in errors.values()) / len(errors) <= 0.06


def test_real_failures_for_want_of_memory_are_caught(report: ValidationReport) -> None:
    failed = [check for check in report.memory if check.measured_gibibytes is None]
    assert len(failed) == 2
    assert not any(check.fits for check in failed)


def test_bubble_rates_are_within_two_hundredths(report: ValidationReport) -> None:
    for bubble in report.bubbles:
        assert abs(bubble.error) <= 0.02, bubble


def test_figures_name_their_sources() -> None:
    assert {step.source.split()[0] for step in shipped_steps()} == {
        "vTrain",
        "Narayanan",
        "Korthikanti",
        "Megatron-Core",
        "nemo-25",
        "llm-foundry",
        "megatron-deepspeed",
        "megatron-bridge",
        "torchtitan",
    }


@pytest.mark.parametrize("source", [TABLE, LINES])
def test_other_rows_can_be_replayed(source: Path, tmp_path: Path) -> None:
    lines = source.read_text().splitlines()
    path = tmp_path / source.name
    path.write_text("\n".join(lines[:3]) + "\n")
    again = validate(path)
    assert len(again.rows) == (2 if source is TABLE else 3)
    assert all(row.left_out is None for row in again.rows)
    assert again.to_dict()["bubbles"] == []


def test_a_table_may_name_every_setting_of_a_job(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "id,stack,gpu,gpus,hidden,layers,heads,kv_heads,ffn,gated,vocab,seq,tp,cp,dp,sharding,micro_batch,"
        "global_batch,precision,step_seconds\n"
        "mine,torchtitan,h100-80g,16,4096,32,32,8,14336,yes,128256,8192,2,2,4,zero3,1,8,fp8,1.5\n"
    )
    (step,) = read_steps(path)
    assert step.job.parallel is not None
    assert (step.job.parallel.cp, step.job.parallel.sharding, step.job.training.precision) == (
        2,
        "zero3",
        "fp8",
    )
    assert step.stack == "torchtitan"


def test_an_unknown_column_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("id,gpu,gpus,global_batch,hiden\n")
    with pytest.raises(DataError, match="unknown column 'hiden'; did you mean 'hidden'"):
        validate(path)


def test_an_unknown_key_of_a_line_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    content = json.loads(LINES.read_text().splitlines()[0])
    path.write_text(json.dumps({**content, "speed": 3}) + "\n")
    with pytest.raises(DataError, match="unknown key 'speed'"):
        validate(path)


@pytest.mark.parametrize("text", ["", "id,gpu,gpus,global_batch,step_seconds\n"])
def test_an_empty_table_is_refused_in_a_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=r"mine\.csv"):
        validate(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.csv does not exist"):
        validate(tmp_path / "rows.csv")


def test_the_figures_ship_with_the_package() -> None:
    assert sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".csv", ".json", ".jsonl")) == [
        "bubbles.csv",
        "left_out.json",
        "llm_training.csv",
        "measured_steps.jsonl",
    ]
