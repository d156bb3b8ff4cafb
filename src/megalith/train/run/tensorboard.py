"""Scalars for TensorBoard, written at once and in this thread.

TensorBoard's own writer has a thread that keeps what it is given for up to two minutes; if the disk is full
then, its error is lost. A report every few dozen steps needs no thread.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from megalith.core.errors import storage_errors
from megalith.core.files import append


class EventFile:
    """One event file of a session, in `folder`, from which TensorBoard reads all of them."""

    def __init__(self, folder: Path) -> None:
        now = time.time()
        self._path = folder / f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{time.time_ns()}"
        with storage_errors(self._path):
            folder.mkdir(parents=True, exist_ok=True)
        self._write(Event(wall_time=now, file_version="brain.Event:2"))

    def add_scalars(self, scalars: Iterable[tuple[str, float]], step: int) -> None:
        """Writes (tag, value) pairs of one step."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars]
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _write(self, event: Event) -> None:
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        append(self._path, record.getvalue())
