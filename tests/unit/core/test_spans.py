"""Spans of code that is handed no tracer, and the seconds that are a span's own."""

from __future__ import annotations

import threading
from pathlib import Path

from megalith.core.spans import span, tracing
from megalith.core.trace import Tracer, read_spans, read_totals


def test_spans_of_all_threads_go_to_the_tracer_of_the_block(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    with Tracer(trace) as tracer, tracing(tracer):
        with span("forward"):
            pass

        def read() -> None:
            with span("read window"):
                pass

        reader = threading.Thread(target=read, name="megalith-loader_1")
        reader.start()
        reader.join()
    with span("later"):
        pass
    assert {(each["name"], each["thread"]) for each in read_spans([trace])} == {
        ("forward", "MainThread"),
        ("read window", "megalith-loader_1"),
    }
    assert set(read_totals(trace).own) == {"loop", "megalith-loader"}


def test_own_seconds_leave_out_spans_within(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    with Tracer(trace) as tracer, tracing(tracer):
        with tracer.span("step"):
            with span("forward"), span("look up rows"):
                pass
            with span("backward"):
                pass
        live = tracer.totals().own["loop"]
    spans = {each["name"]: each for each in read_spans([trace])}
    inner = spans["forward"]["duration"] + spans["backward"]["duration"]
    assert abs(spans["step"]["own"] - (spans["step"]["duration"] - inner)) < 1e-6
    assert "own" not in spans["backward"]
    own = read_totals(trace).own["loop"]
    assert own == live
    # Nothing counts twice: all own seconds are those of the outermost span.
    assert abs(sum(own.values()) - spans["step"]["duration"]) < 1e-6


def test_totals_keep_own_seconds_of_spans_that_the_trace_dropped(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    with Tracer(trace, max_bytes=4000) as tracer, tracing(tracer):
        for _ in range(200):
            with span("step"), span("forward"):
                pass
        live = tracer.totals()
    assert len(read_spans([trace])) < 100
    kept = read_totals(trace)
    assert kept.steps == live.steps == 200
    assert abs(kept.own["loop"]["forward"] - live.own["loop"]["forward"]) < 1e-9
