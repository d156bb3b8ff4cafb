"""Prometheus metrics, with the names and labels that dashboards of Triton expect, and some of our own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from megalith.serve.status.statistics import BUCKET_SECONDS, REASONS, ServerStatistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]
Family = tuple[str, str, str, Iterable[tuple[Labels, float]]]
"""Name, kind, what it is, and values by labels."""


def metrics_text(
    statistics: ServerStatistics,
    pending: Mapping[tuple[str, str], int],
    gauges: Mapping[str, float],
    families: Iterable[Family] = (),
) -> str:
    """All metrics; `pending` requests by model and version, `gauges` by name as the engine has them, and
    `families` of what else there is."""
    lines: list[str] = []
    versions = sorted(statistics.versions.items())

    def family(name: str, kind: str, about: str, samples: Iterable[tuple[Labels, float]]) -> None:
        lines.append(f"# HELP {name} {about}")
        lines.append(f"# TYPE {name} {kind}")
        lines.extend(f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples)

    def counted(name: str, about: str, field: str, scale: float = 1.0) -> None:
        values = ((_of(key), getattr(counts, field) * scale) for key, counts in versions)
        family(name, "counter", about, values)

    counted("nv_inference_request_success", "Requests that were answered", "success")
    family(
        "nv_inference_request_failure",
        "counter",
        "Requests that got no answer, by reason",
        (
            ({**_of(key), "reason": reason}, counts.failures[reason])
            for key, counts in versions
            for reason in REASONS
        ),
    )
    counted("nv_inference_count", "Samples scored", "samples")
    counted("nv_inference_exec_count", "Batches run", "execution_count")
    family(
        "nv_inference_pending_request_count",
        "gauge",
        "Requests that wait or run",
        ((_of(key), value) for key, value in sorted(pending.items())),
    )
    for name, about, field in (
        ("request", "Microseconds of requests from first byte to answer", "success_ns"),
        ("queue", "Microseconds of requests in the queue", "queue_ns"),
        ("compute_input", "Microseconds of preparing inputs", "input_ns"),
        ("compute_infer", "Microseconds of running models", "compute_ns"),
        ("compute_output", "Microseconds of handing out outputs", "output_ns"),
    ):
        counted(f"nv_inference_{name}_duration_us", about, field, 1e-3)
    counted("megalith_degraded_answers", "Answers without the tables of a lost card", "degraded")
    _latency(lines, statistics)
    family(
        "megalith_requests",
        "counter",
        "Requests by protocol",
        (({"protocol": name}, count) for name, count in sorted(statistics.protocols.items())),
    )
    family("megalith_request_bytes", "counter", "Bytes of request bodies", [({}, statistics.bytes_in)])
    for name, value in sorted(gauges.items()):
        family(f"megalith_{name}", "gauge", name.replace("_", " "), [({}, value)])
    for each in families:
        family(*each)
    return "\n".join(lines) + "\n"


def _latency(lines: list[str], statistics: ServerStatistics) -> None:
    name = "megalith_request_latency_seconds"
    lines.append(f"# HELP {name} Seconds of requests from first byte to answer")
    lines.append(f"# TYPE {name} histogram")
    for key, counts in sorted(statistics.versions.items()):
        total = 0
        # Every other bucket, which doubles: dashboards interpolate.
        for place, count in enumerate(counts.latency.counts):
            total += count
            if place % 2 == 0 and place < len(BUCKET_SECONDS):
                labels = {**_of(key), "le": f"{BUCKET_SECONDS[place]:.6g}"}
                lines.append(f"{name}_bucket{_labels(labels)} {total}")
        lines.append(f"{name}_bucket{_labels({**_of(key), 'le': '+Inf'})} {total}")
        lines.append(f"{name}_sum{_labels(_of(key))} {_number(counts.latency.total_seconds)}")
        lines.append(f"{name}_count{_labels(_of(key))} {total}")


def _of(key: tuple[str, str]) -> Labels:
    return {"model": key[0], "version": key[1]}


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{inner}}}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.9g}"
