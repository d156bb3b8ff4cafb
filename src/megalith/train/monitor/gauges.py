"""The newest numbers of a run in Prometheus' text format: the trainer sets them, the endpoint reads them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from megalith.core.trace_totals import SpanTotals
from megalith.train.monitor.anomalies import NAMES

Samples = Iterable[tuple[Mapping[str, str], float | None]]


class Gauges:
    """All numbers by family; families without a number are left out."""

    def __init__(self, total_steps: int, batch_size: int) -> None:
        self._lock = threading.Lock()
        self._total_steps, self._batch_size = total_steps, batch_size
        self._step = 0
        self._loss: float | None = None
        self._norm: float | None = None
        self._entry: Mapping[str, Any] = {}
        self._evaluation: Mapping[str, Any] = {}
        self._totals = SpanTotals()
        self._anomalies: Mapping[str, int] = {}

    def stepped(self, step: int, loss: float | None, norm: float | None) -> None:
        """After every step; None leaves what was."""
        with self._lock:
            self._step = step
            self._loss = self._loss if loss is None else loss
            self._norm = self._norm if norm is None else norm

    def reported(self, entry: Mapping[str, Any], totals: SpanTotals, anomalies: Mapping[str, int]) -> None:
        """After every line of metrics.jsonl."""
        with self._lock:
            if entry["kind"] == "eval":
                self._evaluation = entry
            elif entry["kind"] == "train":
                self._entry = entry
            self._totals, self._anomalies = totals, dict(anomalies)

    def text(self) -> str:
        """As Prometheus reads them."""
        with self._lock:
            return "".join(_family(*each) for each in self._families())

    def _families(self) -> Iterable[tuple[str, str, str, Samples]]:
        entry = self._entry
        none: Mapping[str, str] = {}
        yield "step", "gauge", "Steps taken", [(none, self._step)]
        yield "steps", "gauge", "Steps of the whole run", [(none, self._total_steps)]
        yield "samples_total", "counter", "Samples trained on", [(none, self._step * self._batch_size)]
        yield "loss", "gauge", "Loss of the newest step", [(none, self._loss)]
        yield (
            *("dense_gradient_norm", "gauge", "Norm of the dense gradient, where it was last measured"),
            [(none, self._norm)],
        )
        yield (
            *("learning_rate_factor", "gauge", "What the schedule multiplies learning rates by"),
            [(none, entry.get("lr_factor"))],
        )
        yield (
            *("samples_per_second", "gauge", "Samples trained on a second, between two reports"),
            [(none, entry.get("samples_per_second"))],
        )
        yield (
            *("data_wait_share", "gauge", "Share of the time in which steps waited for data"),
            [(none, entry.get("wait_share"))],
        )
        yield "window", "gauge", "Metrics of the newest samples", _by("metric", entry.get("window"))
        yield "evaluation", "gauge", "The newest evaluation", _by("metric", self._evaluation, _EVALUATED)
        yield from _rank_families(entry.get("ranks") or [])
        tiers = entry.get("tiers") or {}
        yield "cache_hit_rate", "gauge", "Rows found in memory", [(none, tiers.get("hit_rate"))]
        yield (
            *("disk_reads_per_sample", "gauge", "Rows read from disk a sample"),
            [(none, tiers.get("reads_per_sample"))],
        )
        yield (
            *(
                "span_seconds_total",
                "counter",
                "Seconds of the first rank in a span, without spans within it",
            ),
            [
                ({"thread": thread, "span": name}, seconds)
                for thread, spans in self._totals.own.items()
                for name, seconds in spans.items()
            ],
        )
        yield (
            *("anomalies_total", "counter", "Anomalies found"),
            [({"anomaly": name}, self._anomalies.get(name, 0)) for name in NAMES],
        )


_EVALUATED = ("ne", "log_loss", "auc", "calibration")


def _rank_families(ranks: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, str, str, Samples]]:
    numbered = [({"rank": str(number)}, load) for number, load in enumerate(ranks)]
    yield (
        *("wait_seconds", "gauge", "Seconds that a rank waited since the last report, and for what"),
        [
            ({**rank, "for": what}, load[key])
            for rank, load in numbered
            for what, key in (("data", "data_wait_seconds"), ("ranks", "rank_wait_seconds"))
        ],
    )
    for name, about in (
        ("lookups", "Ids looked up by a rank since the last report"),
        ("sent_bytes", "Bytes sent to other ranks since the last report"),
        ("resident_bytes", "Memory of the process"),
    ):
        yield name, "gauge", about, [(rank, load[name]) for rank, load in numbered]
    yield (
        *("table_bytes", "gauge", "Bytes of embedding tables by tier and by what they are"),
        [
            ({**rank, "tier": "disk" if part == "disk" else "memory", "part": part}, taken)
            for rank, load in numbered
            for part, taken in load["table_bytes"].items()
        ],
    )


def _by(label: str, values: Mapping[str, Any] | None, names: Sequence[str] | None = None) -> Samples:
    return [({label: name}, (values or {}).get(name)) for name in names or list(values or {})]


def _family(name: str, kind: str, about: str, samples: Samples) -> str:
    known = [(labels, value) for labels, value in samples if value is not None]
    if not known:
        return ""
    full = f"megalith_train_{name}"
    lines = [f"# HELP {full} {about}", f"# TYPE {full} {kind}"]
    lines += [f"{full}{_labels(labels)} {_number(value)}" for labels, value in known]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() else f"{value:.9g}"
