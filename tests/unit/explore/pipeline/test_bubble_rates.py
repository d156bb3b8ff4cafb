"""The published rates of the zero-bubble paper, and the trace of a step."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import megalith.explore
from megalith.core.errors import DataError, PlanError
from megalith.explore.pipeline.bubble_rates import PROFILED, StageTimes, bubble_rate, read_row, replay_bubbles
from megalith.explore.pipeline.chrome_trace import write_chrome
from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.pipeline.simulate import simulate

TABLE = Path(megalith.explore.__file__).parent / "validation" / "bubbles.csv"


def test_stage_times_with_the_right_ratios_give_the_published_rates() -> None:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [read_row(row) for row in csv.DictReader(file)]
    assert len(rows) == 16
    for replayed in replay_bubbles(rows, lambda row: PROFILED[row.model]):
        limit = 0.004 if replayed.row.schedule == "interleaved" else 0.00006
        assert abs(replayed.error) < limit


def test_equal_times_and_free_messages_give_the_closed_form() -> None:
    row = read_row(
        {"model": "", "p": "8", "m": "24", "seq": "1", "micro_batch": "1", "layers": "22", "hidden": "1"}
        | {"heads": "1", "schedule": "1f1b", "bubble_rate": ".1"}
    )
    layer = StageTimes(1.0, 1.0, 1.0)
    even = StageTimes.of_layers(layer, layers=22, stages=8, first=layer, last=layer)
    assert even == StageTimes(3.0, 3.0, 3.0)
    assert bubble_rate(row, even) == 7 / 31


def test_a_row_without_its_columns_is_refused() -> None:
    with pytest.raises(DataError, match=r"bubbles\.csv lacks"):
        read_row({"model": "x"})


def test_a_step_opens_in_a_trace_viewer(tmp_path: Path) -> None:
    schedule = build_schedule("1f1b", 2, 3)
    costs = StepCosts.uniform(2, 1.0, 1.0, 1.0, transfer_seconds=0.25)
    write_chrome(simulate(schedule, costs, record=True), tmp_path / "step.json")
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    lanes = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert lanes == ["device 0", "device 1", "link backward 0", "link forward 0"]
    first = next(event for event in events if event["ph"] == "X")
    assert (first["name"], first["ts"], first["dur"]) == ("F 0", 0.0, 1e6)
    assert first["args"] == {"chunk": 0, "micro_batch": 0}
    assert sum(event["ph"] == "X" for event in events) == 2 * 6 + 2 * 3


def test_a_step_without_spans_has_no_trace(tmp_path: Path) -> None:
    step = simulate(build_schedule("1f1b", 2, 3), StepCosts.uniform(2, 1.0, 1.0, 1.0))
    with pytest.raises(PlanError, match="record=True"):
        write_chrome(step, tmp_path / "step.json")
    assert not (tmp_path / "step.json").exists()
