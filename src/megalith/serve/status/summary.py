"""What the status page shows, as one JSON object, and gauges for Prometheus."""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from megalith.serve.status.load import bound_of
from megalith.serve.status.statistics import BUCKET_SECONDS, LatencyHistogram, VersionCounts

if TYPE_CHECKING:
    from megalith.serve.front.service import InferenceService

_JUDGED_SECONDS = 10


def status_summary(service: InferenceService) -> dict[str, Any]:
    """All of it."""
    statistics = service.statistics
    now = time.time()
    seconds = [each for each in statistics.recent if each.second < int(now)]
    judged = [each for each in seconds if each.second >= int(now) - _JUDGED_SECONDS]
    failures = sum(each.failures for each in judged)
    samples = service.load.samples
    return {
        "server": {
            "version": version("megalith"),
            "process": os.getpid(),
            "now": now,
            "uptime_seconds": now - statistics.started,
            "ready": service.ready(),
            "draining": service.draining,
            "protocols": dict(statistics.protocols),
            "bytes_in": statistics.bytes_in,
        },
        "engine": service.engine.status(),
        "follow": [each.to_dict() for each in service.followers.statuses] if service.followers else [],
        "traffic": [
            {
                "second": each.second,
                "requests": each.requests,
                "samples": each.samples,
                "failures": each.failures,
                "bytes": each.bytes_in,
                "slowest_seconds": each.slowest,
            }
            for each in seconds
        ],
        "load": [sample._asdict() for sample in samples],
        "bound": bound_of(samples, failures, failures + sum(each.requests for each in judged)),
        "bucket_seconds": list(BUCKET_SECONDS),
        "models": [
            _version(name, version, counts) for (name, version), counts in sorted(statistics.versions.items())
        ],
        "served": [
            {
                "name": model.name,
                "versions": list(model.versions),
                "ready": model.ready,
                "backend": model.backend,
            }
            for model in service.models().values()
        ],
    }


def engine_gauges(service: InferenceService) -> dict[str, float]:
    """Queue and cards as numbers."""
    status = service.engine.status()
    queue = status.get("queue", {})
    last = service.load.samples[-1] if service.load.samples else None
    gauges = {
        "cards": float(len(status.get("cards", ()))),
        "ready": float(service.ready()),
        "uptime_seconds": time.time() - service.statistics.started,
        "queued_requests": float(queue.get("queued", 0)),
        "active_requests": float(queue.get("active", 0)),
        "request_memory_bytes": float(queue.get("room_bytes", 0)),
    }
    if last is not None and last.cards:
        gauges["card_busy_ratio"] = sum(last.cards.values()) / len(last.cards)
    return gauges


def pending_requests(service: InferenceService) -> dict[tuple[str, str], int]:
    """Requests that wait or run, by model and version."""
    return {
        (entry["model"], entry["version"]): int(entry.get("waiting", 0))
        for entry in service.engine.status().get("models", ())
    }


def _version(name: str, version: str, counts: VersionCounts) -> dict[str, Any]:
    done = max(1, counts.success)
    return {
        "name": name,
        "version": version,
        "success": counts.success,
        "failures": dict(counts.failures),
        "samples": counts.samples,
        "executions": counts.execution_count,
        "degraded": counts.degraded,
        "latency_counts": list(counts.latency.counts),
        "latency": _percentiles(counts.latency),
        "mean_seconds": {
            "queue": counts.queue_ns / done / 1e9,
            "input": counts.input_ns / done / 1e9,
            "compute": counts.compute_ns / done / 1e9,
            "output": counts.output_ns / done / 1e9,
            "request": counts.success_ns / done / 1e9,
        },
    }


def _percentiles(histogram: LatencyHistogram) -> dict[str, float | None]:
    return {f"p{share * 100:g}": histogram.percentile(share) for share in (0.5, 0.9, 0.99, 0.999)}
