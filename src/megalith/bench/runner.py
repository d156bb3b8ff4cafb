"""Commands run as processes of their own, and results that say where they come from."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from megalith import __version__
from megalith.core.errors import MegalithError
from megalith.core.files import write_atomic
from megalith.hardware.machine import this_machine
from megalith.hardware.timing import Timing as Timing
from megalith.hardware.timing import interleave as interleave

_PACKAGES = (
    "torch",
    "numpy",
    "pyarrow",
    "polars",
    "fbgemm-gpu-cpu",
    "torchrec",
    "onnxruntime",
    "openvino",
    "nncf",
    "torchao",
    "rocksdict",
)


@dataclass(frozen=True, slots=True)
class Process:
    """A command that ran to its end."""

    seconds: float
    cpu_seconds: float
    max_resident_bytes: int
    stdout: str


# Between fork and exec a process counts the memory of its parent, so a small process starts the command.
_LAUNCHER = """
import json, os, resource, subprocess, sys, time
start = time.perf_counter()
code = subprocess.call(sys.argv[2:])
seconds = time.perf_counter() - start
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
largest = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
os.write(int(sys.argv[1]), json.dumps([code, seconds, usage.ru_utime + usage.ru_stime, largest]).encode())
"""


def run_process(command: Sequence[str]) -> Process:
    """Runs a command as its own process; its peak memory is what the system counted for it alone."""
    reader, writer = os.pipe()
    try:
        launcher = [sys.executable, "-S", "-c", _LAUNCHER, str(writer), *command]
        ended = subprocess.run(launcher, stdout=subprocess.PIPE, text=True, pass_fds=(writer,), check=True)
        code, seconds, cpu_seconds, largest = json.loads(os.read(reader, 4096))
    finally:
        os.close(reader)
        os.close(writer)
    if code:
        raise MegalithError(f"`{shlex.join(command)}` ended with code {code}; its message is above.")
    return Process(seconds, cpu_seconds, largest, ended.stdout)


def versions() -> dict[str, str]:
    """Versions of this package and of those that results depend on, as far as they are installed."""
    installed = {"megalith": __version__}
    for package in _PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


def result(
    suite: str, settings: Mapping[str, Any], results: Mapping[str, Any], folder: Path | None
) -> dict[str, Any]:
    """A result with all that is needed to read it later; `folder` is where the data lay."""
    return {
        "suite": suite,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": this_machine(folder).to_dict(),
        # Over the last 1, 5 and 15 minutes. More than the candidates' own threads means that others were at
        # work, and that clock times are worth less.
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "versions": versions(),
        "settings": dict(settings),
        "results": dict(results),
    }


def save_result(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a result as JSON that people can read too."""
    write_atomic(path, json.dumps(content, indent=1) + "\n")
