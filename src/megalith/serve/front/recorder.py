"""Recorded requests: a safetensors file of their inputs, bounded in number and bytes, that nothing can run.

`NUMBER/INPUT` are tensors; the metadata `requests` lists model and inputs of each as JSON.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from megalith.core.errors import DataError
from megalith.core.files import check_target, parse_json, write_atomic
from megalith.serve.protocol.datatypes import BYTES, DATATYPES
from megalith.serve.protocol.message import InferMessage

FORMAT = "megalith-recorded-requests"
MAX_REQUESTS, MAX_BYTES = 256, 256 << 20


class RecordedRequest(NamedTuple):
    """One request as it came."""

    model: str
    inputs: Mapping[str, NDArray[Any]]


class RequestRecorder:
    """Keeps the first requests of a server up to its bounds, and writes them when these are reached or it is
    closed."""

    def __init__(self, path: Path, max_requests: int = MAX_REQUESTS, max_bytes: int = MAX_BYTES) -> None:
        check_target(path)
        self._path, self._max_requests, self._left = path, max_requests, max_bytes
        self._requests: list[RecordedRequest] = []
        self._done = False
        self._lock = threading.Lock()

    def record(self, model: str, message: InferMessage) -> None:
        """Keeps a copy of a request's inputs, while there is room."""
        if self._done or any(tensor.datatype == BYTES for tensor in message.inputs):
            return
        size = sum(len(tensor.data) for tensor in message.inputs)
        if size > self._left:
            self.close()
            return
        self._left -= size
        inputs = {
            tensor.name: np.frombuffer(bytes(tensor.data), DATATYPES[tensor.datatype]).reshape(tensor.shape)
            for tensor in message.inputs
        }
        self._requests.append(RecordedRequest(model, inputs))
        if len(self._requests) >= self._max_requests:
            self.close()

    def close(self) -> None:
        """Writes the file; a second call does nothing."""
        with self._lock:
            if self._done:
                return
            self._done = True
            requests, self._requests = self._requests, []
        write_requests(self._path, requests)


def write_requests(path: Path, requests: list[RecordedRequest]) -> None:
    """Writes a file of requests."""
    tensors = {
        f"{number}/{name}": np.ascontiguousarray(array)
        for number, request in enumerate(requests)
        for name, array in request.inputs.items()
    }
    listed = [{"model": request.model, "inputs": list(request.inputs)} for request in requests]
    metadata = {"format": FORMAT, "requests": json.dumps(listed)}
    write_atomic(path, save(tensors, metadata=metadata))


def read_requests(path: Path) -> list[RecordedRequest]:
    """The requests of a file, in the order in which they came."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise DataError(f"{path} holds no recorded requests; make it with `megalith serve --record`.")
            listed = parse_json(metadata["requests"])
            return [
                RecordedRequest(
                    str(entry["model"]),
                    {name: file.get_tensor(f"{number}/{name}") for name in entry["inputs"]},
                )
                for number, entry in enumerate(listed)
            ]
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the path.") from None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{path} cannot be read as recorded requests ({reason}); record them again."
        ) from error
