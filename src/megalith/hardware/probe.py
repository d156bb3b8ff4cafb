"""Measures this machine and writes it as a catalog file: FLOP/s, memory, disk, and what processes share.

    probe().write(Path("mine.yaml"))      then `--hardware mine.yaml` and `cluster: this-machine`

A few seconds of numpy on all cores that it uses; what other processes take is missing from the result, so
measure on a quiet machine.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import yaml

from megalith.core.files import write_atomic
from megalith.hardware.catalog import LOOPBACK, SHARED_MEMORY
from megalith.hardware.machine import this_machine
from megalith.hardware.probe_host import loopback_latency, loopback_rate, memory_rates, shared_memory_rate

_SIGNAL_SECONDS = 2e-5
"""Signalling another process through a pipe that a message is ready, and its waking up."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Figures of one machine, as measured."""

    name: str
    processor: str
    fp32_flops: float
    memory_bytes: int
    memory_bytes_per_second: float
    """Of all cores together."""
    disk_bytes: int
    disk_bytes_per_second: float
    cores: int
    core_bytes_per_second: float
    """Of one core while the others idle."""
    shared_memory_bytes_per_second: float
    loopback_bytes_per_second: float
    """Between processes, each of as many as there are cores."""
    loopback_latency_seconds: float

    def to_yaml(self) -> str:
        """The machine as entries of a catalog: a device, and a cluster of one."""
        gibibytes = self.memory_bytes / 2**30
        content = {
            "devices": {
                self.name: {
                    "generation": "cpu",
                    "flops": {"fp32": _short(self.fp32_flops)},
                    "cores": self.cores,
                    "core_gigabytes_per_second": _short(self.core_bytes_per_second / 1e9),
                    "memory": [
                        {
                            "name": "ddr",
                            "gibibytes": round(gibibytes, 2),
                            "gigabytes_per_second": _short(self.memory_bytes_per_second / 1e9),
                            "latency_seconds": 1e-7,
                        },
                        {
                            "name": "ssd",
                            "gibibytes": max(0.01, round(self.disk_bytes / 2**30, 2)),
                            "gigabytes_per_second": _short(self.disk_bytes_per_second / 1e9),
                            "latency_seconds": 1e-4,
                            "block_bytes": 4096,
                        },
                    ],
                }
            },
            "links": {
                SHARED_MEMORY: {
                    "gigabytes_per_second": _short(self.shared_memory_bytes_per_second / 1e9),
                    "latency_seconds": _SIGNAL_SECONDS,
                },
                LOOPBACK: {
                    "gigabytes_per_second": _short(self.loopback_bytes_per_second / 1e9),
                    "latency_seconds": _short(self.loopback_latency_seconds),
                },
            },
            "clusters": {
                "this-machine": {
                    "device": self.name,
                    "levels": [{"name": "rack", "count": 1, "link": "ethernet-25"}],
                }
            },
        }
        return f"# Measured: {self.processor}\n" + yaml.safe_dump(content, sort_keys=False)

    def write(self, path: Path) -> None:
        """Writes the catalog file."""
        write_atomic(path, self.to_yaml())


def probe(name: str = "this-machine", folder: Path | None = None, seconds: float = 1.0) -> Probe:
    """Measures for about `seconds` each; `folder` says which disk."""
    machine = this_machine(folder)
    core_rate, memory_rate = memory_rates(machine.cores, seconds)
    return Probe(
        name=name,
        processor=machine.cpu,
        fp32_flops=matrix_flops(seconds),
        memory_bytes=machine.memory_bytes or 2**30,
        memory_bytes_per_second=memory_rate,
        disk_bytes=machine.disk_free_bytes,
        disk_bytes_per_second=disk_rate(folder, megabytes=max(8, int(64 * seconds))),
        cores=machine.cores,
        core_bytes_per_second=core_rate,
        shared_memory_bytes_per_second=shared_memory_rate(machine.cores, seconds),
        loopback_bytes_per_second=loopback_rate(machine.cores, seconds),
        loopback_latency_seconds=loopback_latency(),
    )


def matrix_flops(seconds: float = 1.0, size: int = 1024) -> float:
    """FLOP/s of single-precision products in numpy's library: the best of several, as noise only slows
    down."""
    import numpy as np

    left = np.random.default_rng(0).random((size, size), dtype=np.float32)
    right = left.T.copy()
    return _best_rate(lambda: left @ right, 2.0 * size**3, seconds)


def disk_rate(folder: Path | None = None, megabytes: int = 64) -> float:
    """Bytes per second of a file written and forced to disk."""
    block = os.urandom(2**20)
    with tempfile.TemporaryFile(dir=folder) as file:
        start = perf_counter()
        for _ in range(megabytes):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return megabytes * 2**20 / max(perf_counter() - start, 1e-9)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _best_rate(run: object, amount: float, seconds: float) -> float:
    assert callable(run)
    run()
    best, begin = float("inf"), perf_counter()
    while best == float("inf") or perf_counter() - begin < seconds:
        start = perf_counter()
        run()
        best = min(best, max(perf_counter() - start, 1e-9))
    return amount / best
