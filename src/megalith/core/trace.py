"""Spans of a run as JSONL, exportable to the Chrome/Perfetto format.

    tracer = Tracer(path)
    with tracer.span("forward", step=3):
        ...

A span is one line: name, start and duration in seconds since the tracer began, thread, attributes; where
several processes work together, also the rank of this one.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from megalith.core.files import write_atomic


class Tracer:
    """Writes spans to a JSONL file; with no path every span costs next to nothing and writes nothing."""

    def __init__(self, path: Path | None = None, rank: int | None = None) -> None:
        self._file: TextIO | None = path.open("a", encoding="utf-8") if path else None
        self._rank = {} if rank is None else {"rank": rank}
        self._begin = time.perf_counter()
        self._lock = threading.Lock()

    @contextmanager
    def span(self, name: str, **attributes: Any) -> Iterator[None]:
        if self._file is None:
            yield
            return
        start = time.perf_counter()
        try:
            yield
        finally:
            self.record(name, start - self._begin, time.perf_counter() - start, **attributes)

    def record(self, name: str, start_seconds: float, duration_seconds: float, **attributes: Any) -> None:
        """Writes a span that was timed elsewhere."""
        if self._file is None:
            return
        line = json.dumps(
            {
                "name": name,
                "start": round(start_seconds, 7),
                "duration": round(duration_seconds, 7),
                "thread": threading.current_thread().name,
                "process": os.getpid(),
                **self._rank,
                **({"attributes": attributes} if attributes else {}),
            }
        )
        with self._lock:
            self._file.write(line + "\n")

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_spans(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The spans of several files, such as one for each rank. Half a line, as a kill leaves it, is passed over
    wherever it is: a resumed run has written on after it."""
    spans = []
    for path in paths:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                span = json.loads(line)
                if isinstance(span, dict) and {"name", "start", "duration", "thread"} <= span.keys():
                    spans.append(span)
    return spans


def to_chrome(spans: list[dict[str, Any]], path: Path) -> None:
    """Writes spans as Chrome trace events, for Perfetto and chrome://tracing; each rank is a process."""
    lanes = dict.fromkeys((span.get("process", 0), span["thread"]) for span in spans)
    numbers = {lane: number for number, lane in enumerate(lanes)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": process, "tid": number, "args": {"name": thread}}
        for (process, thread), number in numbers.items()
    ]
    ranks = {span.get("process", 0): span["rank"] for span in spans if "rank" in span}
    for process, rank in ranks.items():
        about = {"ph": "M", "pid": process}
        events.append({**about, "name": "process_name", "args": {"name": f"rank {rank}"}})
        events.append({**about, "name": "process_sort_index", "args": {"sort_index": rank}})
    events += [
        {
            "ph": "X",
            "name": span["name"],
            "pid": span.get("process", 0),
            "tid": numbers[span.get("process", 0), span["thread"]],
            "ts": span["start"] * 1e6,
            "dur": span["duration"] * 1e6,
            "args": span.get("attributes", {}),
        }
        for span in spans
    ]
    write_atomic(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
