"""Checks of what a loaded part is beside its results: threads, memory, counts, its end."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from pathlib import Path

import torch

from megalith.core.errors import MegalithError, ServeError
from megalith.export.backends.base import Outputs
from megalith.export.backends.conformance.findings import Verdict, skipped
from megalith.export.backends.conformance.probe import PartProbe
from megalith.export.backends.kernels.tables import table_bytes
from megalith.export.backends.programs import weight_bytes

_INSTANCES, _ROUNDS = 3, 2
_MIB = 1 << 20
_SLACK = 64 * _MIB
"""What libraries keep for themselves when they first run."""


def instances_at_once(probe: PartProbe) -> Verdict:
    """Several instances, and several threads on one, answer at the same time as they do alone."""
    asked = f"{_INSTANCES} instances and as many threads on one, {_ROUNDS} requests each"
    requests = [probe.make.request(13 + number, seed=20 + number) for number in range(_INSTANCES)]
    alone = [probe.loaded.run(request) for request in requests]
    parts = [probe.backend.load(probe.model, probe.part, probe.settings) for _ in requests]
    wrong: list[str] = []

    def ask(number: int, own: bool) -> None:
        part = parts[number] if own else probe.loaded
        try:
            for _ in range(_ROUNDS):
                verdict = probe.against("", alone[number], part.run(requests[number]))
                if not verdict.passed:
                    wrong.append(verdict.got)
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")

    threads = [
        threading.Thread(target=ask, args=(number, own))
        for own in (True, False)
        for number in range(_INSTANCES)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for part in parts:
        part.close()
    return Verdict(asked, "what each gives alone", wrong[0] if wrong else "the same", not wrong)


def close_refuses(probe: PartProbe) -> Verdict:
    """A closed part refuses requests, is not healthy, holds no bytes, and may be closed again."""
    with probe.another() as part:
        request = probe.make.request(3)
        part.run(request)
    part.close()
    try:
        part.run(request)
        got, refused = "outputs", False
    except ServeError as error:
        got, refused = str(error), True
    except Exception as error:
        got, refused = f"{type(error).__name__}: {error}", False
    held = sum(part.bytes().values())
    passed = refused and not part.health().ready and held == 0
    got = f"{got} {held} bytes, {'healthy' if part.health().ready else 'not healthy'}"
    return Verdict("a request after close", "a ServeError, not healthy, 0 bytes", got, passed)


def close_releases(probe: PartProbe) -> Verdict:
    """Loading and closing again and again does not take more and more memory."""
    if _resident() is None:
        return skipped("this system does not tell how much memory a process has")
    request = probe.make.request(64)

    def cycle() -> int:
        with probe.another() as part:
            part.run(request)
            return sum(part.bytes().values())

    stated = max(cycle() for _ in range(2))
    gc.collect()
    before = _resident() or 0
    for _ in range(4):
        cycle()
    gc.collect()
    grown = (_resident() or 0) - before
    allowed = max(2 * stated, 16 * _MIB)
    wanted = f"at most {allowed // _MIB} MiB more"
    return Verdict("4 times load, run, close", wanted, f"{grown / _MIB:.1f} MiB more", grown <= allowed)


def bytes_are_true(probe: PartProbe) -> Verdict:
    """What a part says it holds is what the model's files say, and no less than the process grew by."""
    before = _resident()
    with probe.another() as part:
        part.run(probe.make.request(64))
        after, said = _resident(), part.bytes()
    tables = table_bytes(probe.model, probe.make.inputs) if probe.part != "dense" else 0
    weights = (
        weight_bytes(probe.model.manifest.program, probe.model.weights()) if probe.part != "lookups" else 0
    )
    # A library may keep eight bits as 32, or a second layout of the weights for small batches.
    most_weights = 9 * weights + _MIB
    good = tables <= said.get("tables", 0) <= 1.05 * tables + 4096
    good &= 0.9 * weights <= said.get("dense", 0) <= most_weights
    wanted = f"tables of {tables} bytes within 5%, weights from {weights} to {most_weights}"
    got = f"{said}"
    if before is not None and after is not None:
        grown, allowed = after - before, 2 * sum(said.values()) + _SLACK
        good &= grown <= allowed
        wanted += f", {allowed // _MIB} MiB of the process at most"
        got += f", {grown / _MIB:.1f} MiB of the process"
    return Verdict("what a loaded part holds", wanted, got, good)


def statistics_count(probe: PartProbe) -> Verdict:
    """Requests, samples, refusals and time are counted."""
    with probe.another() as part:
        for batch in (3, 0, 5):
            part.run(probe.make.request(batch))
        with suppress(MegalithError):
            part.run(probe.make.request(2)._replace(dense=None, values=None, embedded=None))
        found = part.statistics()
    wanted = "3 requests, 8 samples, 1 refused, 0 failed, some time"
    got = (
        f"{found.requests} requests, {found.samples} samples, {found.refused} refused, "
        f"{found.failed} failed, {found.seconds:.2g} s"
    )
    good = found[:4] == (3, 8, 1, 0) and found.seconds > 0
    return Verdict("batches of 3, 0 and 5, and a wrong request", wanted, got, good)


def inputs_stay(probe: PartProbe) -> Verdict:
    """A request is as it was, and outputs stay what they are when the next request comes."""
    request = probe.make.request(6, seed=30)
    copies = [tensor if tensor is None else tensor.clone() for tensor in request]
    first = probe.loaded.run(request)
    kept: Outputs = {name: out.clone() for name, out in first.items()}
    probe.loaded.run(probe.make.request(6, seed=31))
    pairs = zip(copies, request, strict=True)
    inputs = all(a is None or b is None or torch.equal(a, b) for a, b in pairs)
    outputs = all(torch.equal(first[name], kept[name]) for name in kept)
    words = {True: "as they were", False: "changed"}
    got = f"inputs {words[inputs]}, outputs {words[outputs]}"
    return Verdict("two requests", "inputs and outputs of the first as they were", got, inputs and outputs)


def _resident() -> int | None:
    """Bytes of this process in memory that no file backs."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith("RssAnon:")), None)
    return None if found is None else int(found.split()[1]) * 1024
