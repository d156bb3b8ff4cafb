"""`megalith serve` as a process of its own, for tests of what it answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from commands import started

_TYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64"}


class RunningServer(NamedTuple):
    """Where a server listens, and the process."""

    http: int
    grpc: int
    process: Any

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"


@contextmanager
def running(*arguments: Any) -> Iterator[RunningServer]:
    """`megalith serve ...` on free ports, ready for requests."""
    command = [sys.executable, "-m", "megalith", "serve", *arguments, "--http", "0", "--grpc", "0", "--json"]
    with started(command, stdout=subprocess.PIPE) as process:
        line = process.stdout.readline()
        assert line, "the server did not start"
        ports = json.loads(line)
        yield RunningServer(ports["http"], ports["grpc"], process)


def inputs_for(module: Any, arrays: dict[str, Any], **options: Any) -> list[Any]:
    """Arrays as the inputs of a tritonclient module, http or grpc."""
    made = []
    for name, array in arrays.items():
        tensor = module.InferInput(name, list(array.shape), _TYPES[str(array.dtype)])
        tensor.set_data_from_numpy(np.ascontiguousarray(array), **options)
        made.append(tensor)
    return made
