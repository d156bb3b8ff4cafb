"""`megalith bench tiers`: tables beyond memory, beside the same in memory and other stores on disk.

Candidates are processes that take turns on the same batches. Tiered tables and stores on disk have the same
limit on memory, which counts the page cache too; rows are all touched before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from megalith.bench.runner import Timing, result
from megalith.bench.tiers.candidates import DEPTH
from megalith.bench.tiers.prediction import predict_rate
from megalith.bench.tiers.processes import TierProcess
from megalith.bench.tiers.stream import SKEWS, TierStream
from megalith.bench.tiers.worker import MAPPED, MEMORY, ROCKSDB, TIERED, make_trainer, touch_all
from megalith.cost.row_cache.geometry import CacheGeometry
from megalith.hardware.disk import DiskSpeed, usual_speed

PARTS = ("rate", "peers", "training", "capability", "engines", "policies", "billion")
PEERS = (MAPPED, ROCKSDB)
_TOGETHER = 100
"""Batches that a process makes before it trains on them."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TierSettings:
    """What all candidates of a bench share."""

    stream: TierStream
    cache_bytes: int
    limit_bytes: int
    """Of a process whose rows are on disk."""
    folder: Path
    steps: int
    repeats: int
    warmup: int
    window: int
    threads: int

    def worker(self, kind: str, **changes: Any) -> dict[str, Any]:
        """Settings of one process."""
        return {
            "stream": self.stream.to_dict(),
            "kind": kind,
            "cache_bytes": self.cache_bytes,
            "folder": str(self.folder / kind),
            "policy": "lookahead",
            "window": self.window,
            "engine": "auto",
            "threads": self.threads,
            "fill": True,
            **changes,
        }


def bench_tiers(
    settings: TierSettings, parts: Sequence[str], peers: Sequence[str], say: Say = lambda _: None
) -> dict[str, Any]:
    """Measures the parts that are asked for."""
    measured: dict[str, Any] = {}
    if "rate" in parts:
        kinds = {kind: settings.worker(kind) for kind in (TIERED, MEMORY)}
        measured["rate"] = _rate(settings, kinds, say)
    if "peers" in parts and peers:
        kinds = {kind: settings.worker(kind) for kind in (TIERED, *peers)}
        measured["peers"] = _rate(settings, kinds, say)
    if "training" in parts:
        kinds = {kind: settings.worker(kind) for kind in (TIERED, MEMORY)}
        measured["training"] = _rate(settings, kinds, say, dense_part=True)
    if "capability" in parts:
        measured["capability"] = _rate(settings, {TIERED: settings.worker(TIERED)}, say)
    if "engines" in parts:
        kinds = {
            engine: settings.worker(TIERED, engine=engine, folder=str(settings.folder / engine))
            for engine in ("io_uring", "threads")
        }
        measured["engines"] = _rate(settings, kinds, say)
    if "policies" in parts:
        measured["policies"] = _policies(settings, say)
    if "billion" in parts:
        measured["billion"] = _billion(settings, say)
    given = {name: value for name, value in asdict(settings).items() if name != "folder"}
    described = {**given, "parts": list(parts), "peers": list(peers)}
    return result("tiers", described, measured, None)


def _rate(
    settings: TierSettings, kinds: Mapping[str, dict[str, Any]], say: Say, dense_part: bool = False
) -> dict[str, Any]:
    """Samples a second of each, in turns; the first is what the others are compared with."""
    processes: dict[str, TierProcess] = {}
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in kinds}
    expected = None
    speeds: list[DiskSpeed] = []
    try:
        for name, kind in kinds.items():
            # What a shared disk gives differs from minute to minute: several looks, all before the rounds.
            if MEMORY in kinds:
                speeds.append(_disk_now(settings))
            say(f"{name}: touches {settings.stream.features * settings.stream.rows:,} rows")
            limit = None if kind["kind"] == MEMORY else settings.limit_bytes
            processes[name] = TierProcess(name, kind, limit)
            say(f"{name}: {settings.warmup} steps before the first round")
            for first in range(0, settings.warmup, _TOGETHER):
                processes[name].run(first, min(first + _TOGETHER, settings.warmup))
            if MEMORY in kinds:
                speeds.append(_disk_now(settings))
        if MEMORY in processes:
            expected = _expected(settings, processes[MEMORY], dense_part, usual_speed(speeds))
            say(f"Predicted: {expected['sentence']}")
        names = list(kinds)
        for number in range(settings.repeats):
            first = settings.warmup + number * settings.steps
            say(f"round {number + 1} of {settings.repeats}")
            for name in names if number % 2 == 0 else reversed(names):
                answers[name].append(processes[name].run(first, first + settings.steps, dense_part))
        limits = {name: process.limit for name, process in processes.items()}
        fills = {name: process.fill_seconds for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.close()
    timings = {
        name: Timing(tuple(each["seconds"] for each in rounds), tuple(each["cpu_seconds"] for each in rounds))
        for name, rounds in answers.items()
    }
    samples = settings.stream.batch * settings.steps
    ours = next(iter(kinds))
    return {
        "predicted": expected,
        "candidates": {
            name: {
                **timing.to_dict(),
                "samples_per_second": timing.rate(samples),
                "fill_seconds": fills[name],
                "limit": limits[name],
                "resident": answers[name][-1]["resident"],
                "resident_before": answers[name][-1]["resident_before"],
                **_tier_figures(settings, answers[name]),
            }
            for name, timing in timings.items()
        },
        "speed_ratio": {
            name: timings[name].median / timings[ours].median for name in timings if name != ours
        },
    }


def _disk_now(settings: TierSettings) -> DiskSpeed:
    """What the disk gives in this second."""
    from megalith.ops.stores.disk_probe import measure_disk

    file_bytes = max(16 << 20, min(settings.stream.touched_bytes // 4, 1 << 30))
    return measure_disk(settings.folder, seconds=1.0, file_bytes=file_bytes)


def _expected(
    settings: TierSettings, memory: TierProcess, dense_part: bool, disk: DiskSpeed
) -> dict[str, Any]:
    """What tiered tables should do, from a few steps in memory and what the disk usually gives."""
    step = median(memory.run(0, 40, dense_part)["seconds"] / 40 for _ in range(5))
    stream = settings.stream
    rows = min(settings.cache_bytes // stream.row_bytes, stream.features * stream.declared)
    cache = CacheGeometry(rows, "lookahead", settings.window, in_flight=DEPTH + 1)
    steps = settings.warmup + settings.repeats * settings.steps
    found = predict_rate(stream, cache, steps, step, disk, settings.threads)
    rate = stream.batch / found.step_seconds
    return {
        **asdict(found),
        "samples_per_second": rate,
        "disk": disk.to_dict(),
        "sentence": f"{rate:,.0f} samples/s. {found}",
    }


def _tier_figures(settings: TierSettings, rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Hits, reads a sample, amplifications and bytes a row of a candidate, over the timed rounds."""
    report = rounds[-1]["report"]
    figures: dict[str, Any] = {"settings": report["settings"]}
    counts = report.get("counts")
    if counts is None or not counts["lookups"]:
        return figures
    if len(rounds) > 1:
        before = rounds[0]["report"]["counts"]
        counts = {name: count - before[name] for name, count in counts.items()}
    samples = settings.stream.batch * settings.steps * max(1, len(rounds) - 1)
    stream, size = settings.stream, report["bytes"]
    written = counts["written_rows"] * stream.row_bytes
    cached = min(settings.cache_bytes // stream.row_bytes, stream.features * stream.declared)
    return {
        **figures,
        "hit_rate": counts["hits"] / counts["lookups"],
        "reads_per_sample": counts["reads"] / samples,
        "reads_per_second": counts["reads"] / sum(each["seconds"] for each in rounds[1:] or rounds),
        "write_amplification": counts["written_bytes"] / written if written else None,
        "space_amplification": size["disk"] / stream.touched_bytes,
        # Beyond the rows and what finds them: buffers, the interpreter, torch and the batches of a round.
        "other_resident_bytes": rounds[-1]["resident"]["VmRSS"] - settings.cache_bytes - size["index"],
        "index_bytes_per_row": size["index"] / (stream.features * stream.rows),
        "bookkeeping_bytes_per_cached_row": size["bookkeeping"] / cached,
        "counts": counts,
        "bytes": size,
    }


def _policies(settings: TierSettings, say: Say) -> dict[str, Any]:
    """Rows read from disk under each policy, for three skews; nothing is timed."""
    found: dict[str, Any] = {}
    for skew, share in SKEWS.items():
        changed = replace(settings, stream=replace(settings.stream, top_share=share))
        found[skew] = {"top_share": share}
        for policy in ("lru", "lfu", "lookahead"):
            say(f"{skew}, {policy}")
            worker = changed.worker(TIERED, policy=policy, folder=str(settings.folder / policy))
            trainer = make_trainer(worker)
            touch_all(trainer, changed.stream)
            trainer.train([changed.stream.values(number) for number in range(settings.warmup)])
            before = trainer.report()["counts"]
            last = settings.warmup + settings.steps
            trainer.train([changed.stream.values(number) for number in range(settings.warmup, last)])
            after = trainer.report()["counts"]
            trainer.close()
            counts = {name: count - before[name] for name, count in after.items()}
            found[skew][policy] = {
                "reads": counts["reads"],
                "hit_rate": counts["hits"] / counts["lookups"],
            }
        lru = found[skew]["lru"]["reads"]
        found[skew]["lookahead_reads_to_lru"] = found[skew]["lookahead"]["reads"] / lru if lru else None
    return found


def _billion(settings: TierSettings, say: Say) -> dict[str, Any]:
    """A table of a billion rows of 64 columns: declared, and trained on for 100 steps."""
    from time import perf_counter

    say("a table of a billion rows")
    stream = TierStream(1, 1_000_000_000, 1_000_000_000, 64, settings.stream.batch)
    worker = replace(settings, stream=stream).worker(
        TIERED, fill=False, folder=str(settings.folder / "billion")
    )
    start = perf_counter()
    process = TierProcess("billion", worker, None)
    try:
        answer = process.run(0, 100)
    finally:
        process.close()
    return {
        "rows": stream.rows,
        "steps": 100,
        "seconds": perf_counter() - start,
        "training_seconds": answer["seconds"],
        "resident": answer["resident"],
        "counts": answer["report"]["counts"],
    }
