"""Processes killed in the middle of the calls by which they change files, with a trace of what each call was.

    shim = compile_shim(folder)
    run(command, env=environment(shim, files, trace, at=17))   # dies at its 17th call for a file there
    kill_arm(files, trace, at=17)                              # a process that runs under the shim already
    calls_of(trace)                                            # what each call was, and what it was inside of

A write is cut in half; a rename, link, unlink or sync is done or not, by turns, before the process dies. See
kill_at_call.c.
"""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("kill_at_call.c")
WRITES = ("write", "pwrite", "io_uring", "sendfile")


class Call(NamedTuple):
    """A line of the trace."""

    number: int
    name: str
    """Of the call: `io_uring` is a write through a ring."""
    path: str
    inside: str
    """The function of the native core that made it, or "-"."""
    collecting: str
    """The segment whose rows are being moved, or "-"."""

    @property
    def kind(self):
        """What the process was doing."""
        of_pool = self.path.endswith(".rows") and not any(
            word in self.path for word in ("held-", "segments-")
        )
        if of_pool and self.collecting != "-":
            return "compaction"
        if self.name.startswith("rename"):
            return "rename"
        if self.inside == "mg_tiered_flush":
            return "flush"
        if of_pool and self.name in WRITES:
            return "write of rows"
        return "checkpoint"


def compile_shim(folder):
    """The library, compiled by the compiler that builds the native core; None where there is none."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    library = Path(folder) / "kill_at_call.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return library


def environment(shim, files, trace, at=0):
    """What a command runs in to die at its `at`-th call for a file below `files`."""
    counted = {"KILL_FOLDER": str(files), "KILL_TRACE": str(trace), "KILL_AT": str(at)}
    return {**os.environ, "LD_PRELOAD": str(shim), **counted}


def kill_arm(files, trace, at=0):
    """The same from now on, in a process that was started under the shim."""
    ctypes.CDLL(None).kill_arm(os.fsencode(files), os.fsencode(trace), ctypes.c_long(at))


def calls_of(trace):
    """The lines of a trace."""
    if not trace.exists():
        return []
    lines = (line.split("\t") for line in trace.read_text().splitlines())
    return [Call(int(number), *rest) for number, *rest in lines]


def spread(items, count):
    """So many of them, evenly spread, the first and the last included."""
    return [items[(len(items) - 1) * number // max(1, count - 1)] for number in range(min(count, len(items)))]


def some_calls(calls, kind, count):
    """Numbers of about so many calls of a kind, some of every name that there is."""
    by_name = {}
    for call in calls:
        if call.kind == kind:
            by_name.setdefault(call.name, []).append(call.number)
    return [number for same in by_name.values() for number in spread(same, -(-count // len(by_name)))]
