"""The rate of an engine that is called in its own process: what a server cannot exceed."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.serve.engine import Engine
from megalith.serve.loadtest.loads import LoadResult
from megalith.serve.request import Answer, InferRequest, TensorView

_TYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64"}


class EngineCaller:
    """Requests into an engine, so many at a time, bytes copied into its rooms as a client writes them."""

    def __init__(self, engine: Engine, model: str, requests: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        self._engine, self._model = engine, model
        self._prepared = [self._prepare(arrays) for arrays in requests]

    def _prepare(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[int, list[Any], dict[str, TensorView]]:
        offset, pieces, views = 0, [], {}
        for name, array in arrays.items():
            data = np.ascontiguousarray(array)
            pieces.append((offset, data.nbytes, memoryview(data.tobytes())))
            views[name] = TensorView(offset, data.nbytes, _TYPES[str(data.dtype)], data.shape)
            offset += -(-data.nbytes // 64) * 64
        return max(1, offset), pieces, views

    def closed_loop(self, concurrency: int, seconds: float) -> LoadResult:
        """As `loadtest.closed_loop` does it over a network."""
        result = LoadResult(None)
        finished = threading.Semaphore(0)
        cpu, began = time.process_time(), time.perf_counter()
        numbers = iter(range(1 << 62))

        def send() -> None:
            size, pieces, views = self._prepared[next(numbers) % len(self._prepared)]
            room = self._engine.reserve(size)
            memory = room.memory
            for offset, count, data in pieces:
                memory[offset : offset + count] = data
            sent = time.perf_counter()

            def done(outcome: Answer | BaseException) -> None:
                if isinstance(outcome, BaseException):
                    result.failures[type(outcome).__name__] += 1
                else:
                    result.latencies.append(time.perf_counter() - sent)
                finished.release()

            self._engine.submit(room, InferRequest(self._model, views), done)
            result.bytes_sent += size

        for _ in range(concurrency):
            send()
        under_way = concurrency
        while under_way:
            finished.acquire()
            if time.perf_counter() - began < seconds:
                send()
            else:
                under_way -= 1
        result.seconds = time.perf_counter() - began
        result.client_cpu_seconds = time.process_time() - cpu
        return result
