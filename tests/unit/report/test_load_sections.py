"""What a report says of the machine: spans of a step, ranks, waits, memory, anomalies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from megalith.report.charts.ranks import lookup_chart, rank_memory_chart, rank_time_chart, wait_matrix_chart
from megalith.report.charts.step_time import step_chart, wait_chart
from megalith.report.collect import RunFacts, collect
from megalith.report.page import render
from megalith.report.waits import read_rank_times, read_waits
from megalith.train.run.folder import RunFolder


@pytest.fixture
def facts(two_runs: tuple[Path, Path]) -> RunFacts:
    return collect(two_runs[0])


def wait(rank: int, number: int, start: float, duration: float, process: int = 7) -> str:
    span = {"name": "wait for vectors", "start": start, "duration": duration, "thread": "MainThread"}
    return json.dumps({**span, "process": process + rank, "rank": rank, "attributes": {"number": number}})


def write_traces(folder: Path, *ranks: list[str]) -> RunFolder:
    run = RunFolder(folder)
    for rank, lines in enumerate(ranks):
        run.trace_of(rank).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return run


def test_the_spans_of_the_loop_add_up_to_its_steps(facts: RunFacts) -> None:
    chart, spent = step_chart(facts), facts.time_spent
    assert chart is not None
    assert spent is not None
    unit = {"us a step": 1e6, "ms a step": 1e3, "s a step": 1.0}[
        chart.figure["layout"]["xaxis"]["title"]["text"]
    ]
    own = [bar for bar in chart.figure["data"] if bar["name"] != "on other threads, ahead"]
    shown = sum(sum(bar["x"]) for bar in own) / unit * spent.steps
    parts = sum(spent.parts[name] for name in ("read", "step", "metrics"))
    # What evaluations look up and compute has spans of the same names.
    assert 0.999 * parts < shown < 1.001 * (parts + spent.parts["evaluate"])
    assert {"forward: layers", "look up rows", "update rows"} <= {label for bar in own for label in bar["y"]}


def test_a_run_without_a_trace_or_loads_has_no_such_charts(facts: RunFacts) -> None:
    bare = replace(facts, time_spent=None, rank_times=[], training=[], anomalies=[])
    assert [chart(bare) for chart in (step_chart, wait_chart, rank_memory_chart, lookup_chart)] == [None] * 4
    text = render(replace(facts, time_spent=None, rank_times=[]))
    assert "Where a step" not in text
    assert "<h2>Anomalies" not in text


def test_the_rank_that_comes_last_is_the_one_that_was_waited_for(tmp_path: Path) -> None:
    first = [wait(0, 1, 1.0, 0.5), wait(0, 2, 2.0, 0.1)]
    second = [wait(1, 1, 1.4, 0.1), wait(1, 2, 1.5, 0.6)]
    waits = read_waits(write_traces(tmp_path, first, second))
    assert waits is not None
    assert waits.exchanges == 2
    # Rank 0 stood 0.4 s until rank 1 came and 0.1 s in the exchange; then it was the other way round.
    assert waits.for_whom[0] == pytest.approx([0.0, 0.4])
    assert waits.for_whom[1] == pytest.approx([0.5, 0.0])
    assert waits.exchanging == pytest.approx([0.2, 0.2])


def test_exchanges_of_an_earlier_session_are_not_taken_for_those_of_the_last(tmp_path: Path) -> None:
    first = [wait(0, 1, 1.0, 9.0), wait(0, 1, 1.0, 0.5, process=20)]
    second = [wait(1, 1, 9.0, 1.0), wait(1, 1, 1.5, 0.0, process=20)]
    waits = read_waits(write_traces(tmp_path, first, second))
    assert waits is not None
    assert waits.for_whom == [pytest.approx([0.0, 0.5]), [0.0, 0.0]]


def test_one_rank_waits_for_nobody(facts: RunFacts) -> None:
    run = RunFolder(facts.folder)
    assert read_waits(run) is None
    assert [times.rank for times in read_rank_times(run)] == [0]
    assert wait_matrix_chart(facts) is None
    assert rank_time_chart(facts) is None


def test_bytes_and_lookups_of_ranks_are_those_reported(facts: RunFacts) -> None:
    assert lookup_chart(facts) is None
    load = facts.training[-1]["ranks"][0]
    memory = rank_memory_chart(facts)
    assert memory is not None
    bars = {bar["name"]: bar["x"] for bar in memory.figure["data"]}
    assert bars["weights"] == [load["table_bytes"]["weights"]]
    assert sum(values[0] for values in bars.values()) == load["resident_bytes"]
    doubled = [
        {**entry, "ranks": [entry["ranks"][0], {**entry["ranks"][0], "lookups": 0}]}
        for entry in facts.training
    ]
    lookups = lookup_chart(replace(facts, training=doubled))
    assert lookups is not None
    assert lookups.figure["data"][0]["x"] == pytest.approx([26.0, 0.0])
    assert "100.0% above" in lookups.caption


def test_anomalies_stand_above_everything_but_the_headline(facts: RunFacts) -> None:
    found = {
        "kind": "anomaly",
        "step": 7,
        "anomaly": "dead table",
        "message": "Table 'C1' <was> not looked up.",
    }
    told = replace(facts, anomalies=[found])
    text = render(told)
    assert text.index("<h2>Anomalies") < text.index("<h2>Evaluations")
    assert "&lt;was&gt;" in text
    assert told.headline()["anomalies"] == 1
