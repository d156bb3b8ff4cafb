"""Spans of a run as JSONL, exportable to the Chrome/Perfetto format.

    tracer = Tracer(path)
    with tracer.span("forward", step=3):
        ...

A span is one line: name, start and duration in seconds since the tracer began, thread, attributes; where
several processes work together, also the rank of this one; where other spans lie within it on the same
thread, `own` seconds, which are not theirs.

A trace has a bound, however long the run: its beginning and its most recent part are kept.

    trace.jsonl      the first half of the bound, kept for good
    trace.1.jsonl    then a quarter each: when the second is full it takes the place of the first
    trace.2.jsonl    and a new one is begun

What is dropped is not forgotten: each of the later parts begins with the totals of everything before it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from megalith.core.errors import DataError, StorageError, storage_errors
from megalith.core.files import append, parse_json, write_atomic
from megalith.core.trace_totals import SpanTotals

MAX_BYTES = 64 << 20
_PENDING_BYTES = 1 << 16
TOTALS_KEY = "totals_before"


class Tracer:
    """Writes spans to a JSONL file and the parts beside it, `max_bytes` in all; with no path every span costs
    next to nothing and writes nothing. Use as a context, or close it.

    A trace that exists is written on, within the same bound.
    """

    def __init__(self, path: Path | None = None, rank: int | None = None, max_bytes: int = MAX_BYTES) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._rank = {} if rank is None else {"rank": rank}
        self._begin = time.perf_counter()
        self._lock = threading.Lock()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._totals = SpanTotals()
        self._open_spans = threading.local()
        self._part, self._size = path, 0
        if path is not None:
            self._open(path)

    def __enter__(self) -> Tracer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # What went wrong before is what must be said.
        with suppress(StorageError):
            self.close()

    @contextmanager
    def span(self, name: str, **attributes: Any) -> Iterator[None]:
        """Times the block it is used around."""
        if self._path is None:
            yield
            return
        around = self._open_spans.__dict__
        outer, around["inner"] = around.get("inner", 0.0), 0.0
        start, failed = time.perf_counter(), True
        try:
            yield
            failed = False
        finally:
            duration = time.perf_counter() - start
            inner, around["inner"] = around["inner"], outer + duration
            # What went wrong before is what must be said.
            with suppress(StorageError) if failed else nullcontext():
                own = duration - inner if inner else None
                self._record(name, start - self._begin, duration, own, attributes)

    def record(self, name: str, start_seconds: float, duration_seconds: float, **attributes: Any) -> None:
        """Writes a span that was timed elsewhere."""
        self._record(name, start_seconds, duration_seconds, None, attributes)

    def totals(self) -> SpanTotals:
        """What all spans so far come to, those of earlier sessions included."""
        with self._lock:
            return self._totals.copy()

    def _record(
        self, name: str, start: float, duration: float, own: float | None, attributes: dict[str, Any]
    ) -> None:
        if self._path is None:
            return
        span = {
            "name": name,
            "start": round(start, 7),
            "duration": round(duration, 7),
            **({} if own is None else {"own": round(own, 7)}),
            "thread": threading.current_thread().name,
            "process": os.getpid(),
            **self._rank,
            **({"attributes": attributes} if attributes else {}),
        }
        line = json.dumps(span).encode() + b"\n"
        with self._lock:
            if self._size + len(line) > self._room():
                self._next_part()
            self._totals.add(span)
            self._pending.append(line)
            self._pending_bytes += len(line)
            self._size += len(line)
            if self._pending_bytes >= _PENDING_BYTES:
                self._write()

    def flush(self) -> None:
        """Writes what is still in memory."""
        with self._lock:
            self._write()

    def close(self) -> None:
        """Writes what is still in memory and ends the trace."""
        try:
            self.flush()
        finally:
            self._path = None

    def _room(self) -> int:
        """Bytes that the part which is being written may have."""
        return self._max_bytes // 2 if self._part == self._path else self._max_bytes // 4

    def _open(self, path: Path) -> None:
        """Finds the part to write on; what earlier sessions wrote is taken into the totals."""
        self._totals = read_totals(path)
        newer = _later_part(path, 2)
        if newer.exists():
            self._part, self._size = newer, newer.stat().st_size
        elif _later_part(path, 1).exists():
            # A kill has come while `_next_part` was at work.
            self._next_part()
        elif path.exists():
            self._size = path.stat().st_size
            if self._size > self._room():
                # Written without a bound, or with another.
                self._size = self._room()
                with storage_errors(path):
                    os.truncate(path, self._size)

    def _next_part(self) -> None:
        self._write()
        assert self._path is not None
        older, newer = _later_part(self._path, 1), _later_part(self._path, 2)
        with storage_errors(newer):
            if newer.exists():
                newer.replace(older)
        line = json.dumps({TOTALS_KEY: self._totals.to_dict()}).encode() + b"\n"
        self._part, self._size = newer, len(line)
        self._pending, self._pending_bytes = [line], len(line)

    def _write(self) -> None:
        if not self._pending or self._part is None:
            return
        content = b"".join(self._pending)
        self._pending, self._pending_bytes = [], 0
        append(self._part, content)


def trace_parts(path: Path) -> list[Path]:
    """The files of a trace that there are, in the order in which they were written."""
    parts = (path, _later_part(path, 1), _later_part(path, 2))
    return [part for part in parts if part.exists()]


def read_totals(path: Path) -> SpanTotals:
    """The totals of all spans of a trace, dropped ones included; of none where there is no trace."""
    totals = SpanTotals()
    parts = trace_parts(path)
    # The first of the later parts knows all that was before it.
    for entry in _entries([part for part in parts if part != path] or parts):
        before = entry.get(TOTALS_KEY)
        if before is None:
            totals.add(entry)
        else:
            totals = SpanTotals.from_dict(before) or totals
    return totals


def read_spans(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The spans of several files, such as one for each rank. Half a line, as a kill leaves it, is passed over
    wherever it is: a resumed run has written on after it."""
    return list(iterate_spans(paths))


def iterate_spans(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The same one by one, where they are not to be held."""
    for span in _entries(paths):
        if (
            isinstance(span.get("name"), str)
            and isinstance(span.get("thread"), str)
            and isinstance(span.get("start"), (int, float))
            and isinstance(span.get("duration"), (int, float))
            and all(isinstance(span.get(key, 0), int) for key in ("process", "rank"))
        ):
            yield span


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


def _entries(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The objects of some JSONL files, line by line: a trace is large and never held."""
    for path in paths:
        if path.is_char_device():
            continue
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    with suppress(ValueError):
                        entry = parse_json(line)
                        if isinstance(entry, dict):
                            yield entry
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}); move it away.") from error


def _later_part(path: Path, number: int) -> Path:
    return path.with_suffix(f".{number}{path.suffix}")
