"""Spans as JSONL and as Chrome events."""

import json

import pytest

from megalith.core.errors import DataError
from megalith.core.files import read_jsonl
from megalith.core.trace import Tracer, read_spans, to_chrome


def test_spans_are_written_and_nest(tmp_path):
    tracer = Tracer(tmp_path / "trace.jsonl")
    with tracer.span("outer", step=1), tracer.span("inner"):
        pass
    tracer.close()
    inner, outer = read_jsonl(tmp_path / "trace.jsonl")
    assert (inner["name"], outer["name"], outer["attributes"]) == ("inner", "outer", {"step": 1})
    assert outer["start"] <= inner["start"]
    assert outer["duration"] >= inner["duration"]


def test_a_tracer_without_a_path_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tracer = Tracer()
    with tracer.span("anything"):
        pass
    tracer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_half_written_last_line_is_passed_over(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"name": "a"}\n{"na')
    assert read_jsonl(path) == [{"name": "a"}]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"na\n{"name": "a"}\n')
    with pytest.raises(DataError, match="line 1"):
        read_jsonl(path)


def test_chrome_events_keep_microseconds_and_threads(tmp_path):
    spans = [{"name": "a", "start": 1.5, "duration": 0.25, "thread": "MainThread", "process": 7}]
    to_chrome(spans, tmp_path / "chrome.json")
    events = json.loads((tmp_path / "chrome.json").read_text())["traceEvents"]
    assert events[0] == {"ph": "M", "name": "thread_name", "pid": 7, "tid": 0, "args": {"name": "MainThread"}}
    assert (events[1]["ts"], events[1]["dur"], events[1]["pid"]) == (1_500_000, 250_000, 7)


def test_ranks_become_processes_of_one_chrome_file_and_half_lines_are_passed_over(tmp_path):
    paths = [tmp_path / "trace.jsonl", tmp_path / "trace-rank-1.jsonl"]
    for rank, path in enumerate(paths):
        path.write_text('{"name": "half a li\n')
        tracer = Tracer(path, rank)
        tracer.record("step", 0.5, 0.25)
        tracer.close()
    spans = [{**span, "process": 100 + span["rank"]} for span in read_spans(paths)]
    to_chrome(spans, tmp_path / "chrome.json")
    events = json.loads((tmp_path / "chrome.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {100: "rank 0", 101: "rank 1"}
    assert [event["pid"] for event in events if event["ph"] == "X"] == [100, 101]
