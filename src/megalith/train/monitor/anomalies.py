"""Anomalies: what is wrong with a run, in one sentence that says what to do. Each is told when it begins, and
again only if it has ended meanwhile."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

NOT_FINITE, EXPLODING = "loss not finite", "exploding norm"
DEAD_TABLE, STALLED = "dead table", "stalled reader"
NAMES = (NOT_FINITE, EXPLODING, DEAD_TABLE, STALLED)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding."""

    name: str
    """Of NAMES."""
    step: int
    message: str
    table: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As a line of metrics.jsonl."""
        found = {"kind": "anomaly", "step": self.step, "anomaly": self.name, "message": self.message}
        return found if self.table is None else {**found, "table": self.table}


class AnomalyLog:
    """What goes on now; `tell` hears of each as it begins, on the thread that found it."""

    def __init__(self, tell: Callable[[Anomaly], None]) -> None:
        self._tell = tell
        self._open: set[tuple[str, str | None]] = set()
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def begin(self, anomaly: Anomaly) -> None:
        """Tells of it, unless that goes on already."""
        key = anomaly.name, anomaly.table
        with self._lock:
            if key in self._open:
                return
            self._open.add(key)
            self.counts[anomaly.name] += 1
            self._tell(anomaly)

    def end(self, name: str, table: str | None = None) -> None:
        """It is over; the next one is told again."""
        with self._lock:
            self._open.discard((name, table))


class LossWatch:
    """Tells of a loss that is NaN or infinite."""

    def __init__(self, log: AnomalyLog) -> None:
        self._log = log

    def see(self, step: int, loss: float) -> None:
        """The loss of a step."""
        if math.isfinite(loss):
            self._log.end(NOT_FINITE)
            return
        self._log.begin(
            Anomaly(
                NOT_FINITE,
                step,
                f"The loss of step {step:,} is {loss}: start again with a lower dense.lr and "
                "embeddings.optimizer.lr or with train.clip_norm, and look for numbers that are not finite "
                "in the numeric columns.",
            )
        )


class NormWatch:
    """Tells of a gradient that is `FACTOR` times as long as the median of those before."""

    FACTOR = 100.0
    KEPT = 64
    NEEDED = 8
    """Before so many were seen nothing is known of what is usual."""

    def __init__(self, log: AnomalyLog) -> None:
        self._log = log
        self._usual: deque[float] = deque(maxlen=self.KEPT)

    def see(self, step: int, norm: float) -> None:
        """The norm of a step's dense gradient."""
        usual = median(self._usual) if len(self._usual) >= self.NEEDED else math.inf
        if math.isfinite(norm) and norm <= self.FACTOR * usual:
            self._usual.append(norm)
            self._log.end(EXPLODING)
            return
        before = f", the median before {usual:.3g}" if math.isfinite(usual) else ""
        self._log.begin(
            Anomaly(
                EXPLODING,
                step,
                f"The norm of the dense gradient at step {step:,} is {norm:.3g}{before}: set "
                "train.clip_norm, lower dense.lr, or look for outliers in the numeric columns.",
            )
        )


class StalledReader:
    """A reader that gives no batch, as an anomaly after the last step."""

    def __init__(self, log: AnomalyLog, seconds: float | None) -> None:
        self._log, self._seconds = log, seconds
        self.step = 0

    def begin(self) -> None:
        """No batch has come for so long."""
        message = (
            f"No batch has come for {self._seconds or 0:g} s after step {self.step:,}: see whether the disk "
            "of data.path answers and its readers live; killing the run and resuming it loses nothing but "
            "the steps since the last checkpoint."
        )
        self._log.begin(Anomaly(STALLED, self.step, message))

    def end(self) -> None:
        """A batch has come."""
        self._log.end(STALLED)
