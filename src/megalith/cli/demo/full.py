"""What `megalith demo --full` adds: the same model with its rows on disk, and sixteen times smaller, frozen
and served. They are the journeys (a) and (c) of `examples/`, small."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Result = dict[str, Any]
Summary = Callable[[Result], str]
Command = tuple[str, list[str], Summary]

MEMORY_SHARE = 10
"""Rows on disk have a cache of this part of what the tables take."""
MADE = ("disk", "small", "models")
"""In the demo's folder, besides what it makes anyway."""


def full_steps(out: Path, results: Result) -> Iterator[Command]:
    """The commands after those of the demo, which has filled `results`; each adds its own before the next."""
    data, disk, small = f"data.path={out / 'data'}", out / "disk", out / "small"
    memory = stored_bytes(out / "run") // MEMORY_SHARE
    cache = f"memory.dram={max(1, memory >> 20)}MiB"
    yield (
        "train-disk",
        ["train", "demo", data, cache, "--out", str(disk), "--overwrite"],
        lambda result: _disk(result, results["train"]),
    )
    yield (
        "eval-disk",
        ["eval", str(disk), "--split", "test"],
        lambda result: _same_bits(result, results["eval"]),
    )
    yield (
        "train-small",
        ["train", "demo", data, "adaptive.ratio=16", "adaptive.chunk=4", "--out", str(small), "--overwrite"],
        _small,
    )
    yield "eval-small", ["eval", str(small), "--split", "test"], lambda result: _loss(result, results["eval"])
    # Of a demo before this one.
    shutil.rmtree(out / "models", ignore_errors=True)
    model = out / "models" / "small" / "1"
    yield (
        "export",
        ["export", str(small), "--out", str(model), "--tables", "int8", "--budget", "0.01"],
        _frozen,
    )
    # Continuous training with live updates, journey (d), comes here.


@contextmanager
def served(models: Path) -> Iterator[tuple[str, str]]:
    """A server of the models; the command that it is, and its address."""
    words = ["serve", str(models), "--cards", "1", "--http", "0", "--json"]
    command = [sys.executable, "-m", "megalith", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            ports = server.stdout.readline()
            if not ports:
                from megalith.core.errors import ServeError

                raise ServeError(f"`megalith {shlex.join(words)}` ended with exit code {server.wait()}.")
            yield shlex.join(words), f"http://127.0.0.1:{json.loads(ports)['http']}"
        finally:
            server.terminate()


def load_step(url: str) -> Command:
    """Requests to the server."""
    return "loadtest", ["loadtest", url, "--rate", "100", "--seconds", "5"], _load


def stored_bytes(run: Path) -> int:
    """Bytes of weights and optimizer state of a run's tables, as its last report has them."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ranks = [entry["ranks"] for entry in map(json.loads, lines) if entry.get("ranks")]
    taken = ranks[-1][0]["table_bytes"]
    return int(taken["weights"] + taken["state"])


def _disk(result: Result, whole: Result) -> str:
    from megalith.core.units import format_bytes

    tiers = result["tiers"]
    rate = result["samples_per_second"] / whole["samples_per_second"]
    return (
        f"{format_bytes(tiers['memory_bytes'])} of rows in memory, {format_bytes(tiers['disk_bytes'])} on "
        f"disk; {tiers['hit_rate']:.1%} of lookups hit; {rate:.0%} of the rate in memory"
    )


def _same_bits(result: Result, whole: Result) -> str:
    same = all(result[key] == whole[key] for key in ("ne", "log_loss", "auc"))
    return f"test NE {result['ne']:.4f}, " + ("the same bits as in memory" if same else "NOT that in memory")


def _small(result: Result) -> str:
    from megalith.core.units import format_bytes

    adaptive = result["adaptive"]
    return (
        f"tables of {format_bytes(adaptive['total_bytes'])}, {adaptive['ratio']:.1f} times smaller, all "
        "bytes counted"
    )


def _loss(result: Result, whole: Result) -> str:
    more = 100 * (result["ne"] / whole["ne"] - 1)
    return f"test NE {result['ne']:.4f}, {more:+.2f}% of that with dense tables"


def _frozen(result: Result) -> str:
    from megalith.core.units import format_bytes

    lost = 100 * result["gate"]["ne_loss"]
    return f"{format_bytes(result['bytes'])} on disk; NE {lost:+.3f}% against the trained model"


def _load(result: Result) -> str:
    latency = result["latency_seconds"]
    return (
        f"{result['answers']:,} requests of 64 samples answered, {sum(result['failures'].values())} failed; "
        f"median {1e3 * latency['p50']:.1f} ms, p99 {1e3 * latency['p99']:.1f} ms"
    )
