"""`megalith doctor`: what this machine has, what is missing and how to get it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import typer

from megalith.cli.output import JsonFlag, print_json, say

State = Literal["ok", "optional", "missing"]

_MARKS: dict[State, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "optional": ("○", "yellow"),
    "missing": ("✗", "red"),
}
_GIB = 2**30

# Package, what it is for, how to get it.
_OPTIONAL = (
    ("tensorboard", "runs side by side in a browser", "pip install tensorboard"),
    ("polars", "the peer that `megalith bench data` measures against", "make bench"),
    ("onnxruntime", "a backend of exported models", "pip install 'megalith[onnxruntime]'"),
    ("openvino", "a backend of exported models", "pip install 'megalith[openvino]'"),
    ("torchrec", "the peer of training benchmarks", "make bench"),
    ("fbgemm_gpu", "the peer of embedding benchmarks", "make bench"),
)


@dataclass(frozen=True, slots=True)
class Check:
    """One line: `missing` is what Megalith cannot do without, `optional` what it can."""

    name: str
    state: State
    found: str
    fix: str = ""


def doctor(json: JsonFlag = False) -> None:
    """What this machine has, lacks, and how to get it."""
    checks = list(_checks())
    missing = [check.name for check in checks if check.state == "missing"]
    if json:
        print_json({"ok": not missing, "checks": [asdict(check) for check in checks]})
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            fix = f"; {check.fix}" if check.fix else ""
            say(_MARKS[check.state], f" {check.name:<{width}}  {check.found}{fix}")
        verdict = f"Missing: {', '.join(missing)}." if missing else "All that is needed is here."
        say(f"\n{verdict}")
    if missing:
        raise typer.Exit(2)


def _checks() -> Iterator[Check]:
    yield from _machine()
    yield from _torch()
    yield from _core()
    yield from _packages()


def _machine() -> Iterator[Check]:
    import sys
    from pathlib import Path

    from megalith.core.units import format_bytes
    from megalith.hardware.disk import remembered_speeds, usual_speed
    from megalith.hardware.machine import this_machine

    machine = this_machine()
    yield Check("processor", "ok", f"{machine.cpu}, {machine.cores} cores usable")
    yield from _load(machine.cores)
    yield Check("vector instructions", "ok", ", ".join(machine.simd) or "none known")
    if machine.memory_bytes is not None:
        enough = machine.memory_bytes >= 4 * _GIB
        fix = "" if enough else "the demo wants 4 GiB; try `megalith demo --rows 100000`"
        yield Check("memory", "ok" if enough else "optional", format_bytes(machine.memory_bytes), fix)
    enough = machine.disk_free_bytes >= 2 * _GIB
    fix = "" if enough else "the demo wants 2 GiB; free some or work in another folder"
    found = f"{format_bytes(machine.disk_free_bytes)} free here ({machine.disk})"
    yield Check("disk", "ok" if enough else "optional", found, fix)
    speeds = [measured.speed for measured in remembered_speeds(Path.cwd(), "io_uring")]
    if speeds:
        yield Check("disk speed", "ok", f"{usual_speed(speeds)}, as measured today")
    good = sys.version_info >= (3, 11)
    yield Check("python", "ok" if good else "missing", machine.python, "" if good else "install Python 3.11")


def _load(cores: int) -> Iterator[Check]:
    """Beside other busy programs training is slow: `cli.thread_waiting`."""
    import os

    from megalith.cli.thread_waiting import BUSY

    if not hasattr(os, "getloadavg"):
        return
    busy = os.getloadavg()[0]
    if busy <= BUSY * cores:
        yield Check("load", "ok", f"{busy:.1f} processes on {cores} cores")
    else:
        fix = "training is slow beside them; start a loop of your own with OMP_WAIT_POLICY=passive"
        yield Check("load", "optional", f"{busy:.1f} processes on {cores} cores", fix)


def _torch() -> Iterator[Check]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Check("torch", "missing", f"does not load ({error})", "pip install 'torch>=2.6,<3'")
        return
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    good = (2, 6) <= (major, minor) < (3, 0)
    fix = "" if good else "pip install 'torch>=2.6,<3'"
    found = f"{torch.__version__}, {torch.get_num_threads()} threads"
    yield Check("torch", "ok" if good else "missing", found, fix)
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(device) for device in range(torch.cuda.device_count())]
        yield Check("CUDA", "optional", f"{', '.join(names)} here", "this release trains on the CPU only")
    else:
        yield Check("CUDA", "ok", "none, and none is needed: this release trains on the CPU")


def _core() -> Iterator[Check]:
    from megalith.core.errors import MegalithError
    from megalith.ops import native

    try:
        level = native.simd_level()
    except (MegalithError, OSError, AttributeError) as error:
        yield Check(
            "native core", "missing", f"does not load ({error})", "pip install . in the source folder"
        )
        return
    yield Check("native core", "ok", f"loads, uses {level}")
    try:
        shared = native.share_torch_threads()
    except ImportError:
        return
    if shared:
        yield Check("thread pool", "ok", "the core runs on torch's threads")
    else:
        yield Check(
            "thread pool", "optional", "the core has threads of its own", "torch 2.10 or newer lends its own"
        )


def _packages() -> Iterator[Check]:
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    for name, purpose, fix in _OPTIONAL:
        if find_spec(name) is None:
            yield Check(name, "optional", f"not installed: {purpose}", fix)
            continue
        try:
            found = version(name)
        except PackageNotFoundError:
            found = "installed"
        yield Check(name, "ok", found)
