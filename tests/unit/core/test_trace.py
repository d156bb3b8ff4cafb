"""Spans as JSONL and as Chrome events."""

import json
from itertools import pairwise

import pytest

from megalith.core.errors import DataError, StorageError
from megalith.core.files import read_jsonl
from megalith.core.trace import Tracer, read_spans, read_totals, to_chrome, trace_parts


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


def written(path):
    return sum(part.stat().st_size for part in trace_parts(path))


def record_steps(path, steps, max_bytes, first=0):
    with Tracer(path, max_bytes=max_bytes) as tracer:
        for step in range(first, first + steps):
            tracer.record("read", float(step), 0.25)
            tracer.record("step", step + 0.25, 0.5, step=step)
            tracer.record("inner", step + 0.25, 0.125)
            if step % 50 == 0:
                tracer.flush()
                assert written(path) <= max_bytes


def test_a_long_trace_stays_within_its_bound_and_keeps_both_ends(tmp_path):
    path = tmp_path / "trace.jsonl"
    record_steps(path, 1500, 1 << 16)
    assert (1 << 16) * 0.6 < written(path) <= 1 << 16
    kept = [span["attributes"]["step"] for span in read_spans(trace_parts(path)) if span["name"] == "step"]
    assert kept[0] == 0
    assert kept[-1] == 1499
    assert kept[:50] == list(range(50))
    assert kept[-50:] == list(range(1450, 1500))
    # One gap, between the beginning and the recent part.
    assert sum(after - before > 1 for before, after in pairwise(kept)) == 1


def test_totals_count_what_was_dropped(tmp_path):
    path = tmp_path / "trace.jsonl"
    record_steps(path, 1500, 1 << 16)
    totals = read_totals(path)
    assert totals.steps == 1500
    assert (totals.seconds["read"], totals.seconds["step"]) == (375.0, 750.0)
    assert totals.session_seconds == [1499.75]


@pytest.mark.parametrize("steps", [3, 200, 600])
def test_sessions_of_a_resumed_run_share_the_bound_and_the_totals(tmp_path, steps):
    path = tmp_path / "trace.jsonl"
    for _ in range(3):
        record_steps(path, steps, 1 << 16)
    assert written(path) <= 1 << 16
    totals = read_totals(path)
    assert totals.steps == 3 * steps
    assert totals.session_seconds == [steps - 0.25] * 3


def test_a_kill_while_parts_change_loses_no_totals(tmp_path):
    path = tmp_path / "trace.jsonl"
    record_steps(path, 1500, 1 << 16)
    # The newer part has taken the older one's place, and the next was not yet begun.
    (tmp_path / "trace.2.jsonl").replace(tmp_path / "trace.1.jsonl")
    record_steps(path, 1500, 1 << 16)
    totals = read_totals(path)
    assert totals.steps == 3000
    assert totals.session_seconds == [1499.75] * 2


def test_a_trace_without_a_bound_is_cut_to_it_when_it_is_written_on(tmp_path):
    path = tmp_path / "trace.jsonl"
    record_steps(path, 600, 1 << 30)
    assert written(path) > 1 << 16
    record_steps(path, 10, 1 << 16)
    assert written(path) <= 1 << 16
    totals = read_totals(path)
    assert totals.steps == 610
    assert totals.session_seconds == [599.75, 9.75]


def test_a_full_disk_is_one_sentence_that_names_the_trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.symlink_to("/dev/full")
    tracer = Tracer(path)
    tracer.record("step", 0.0, 1.0)
    with pytest.raises(StorageError, match=r"disk is full .* while writing .*trace\.jsonl; free space"):
        tracer.flush()
    # Nothing is left that could fail once more.
    tracer.close()


def test_what_went_wrong_in_a_span_is_said_before_a_full_disk(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(KeyError), Tracer(path) as tracer, tracer.span("step"):
        raise KeyError
