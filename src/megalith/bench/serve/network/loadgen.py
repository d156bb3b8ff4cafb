"""MLPerf LoadGen's Server scenario over the network: LoadGen says when, our client sends."""

from __future__ import annotations

import asyncio
import re
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megalith.core.errors import ConfigError, ServeError
from megalith.serve.loadtest.clients import open_client

_SUMMARY = "mlperf_log_summary.txt"


def check_installed() -> None:
    """Says how to get LoadGen, where it is missing."""
    try:
        import mlperf_loadgen  # noqa: F401
    except ImportError as error:
        raise ConfigError("LoadGen is not here; install it with `pip install mlcommons-loadgen`.") from error


class NetworkLibrary:
    """LoadGen's queries as requests over the network (a QDL): a thread of its own runs the connections."""

    def __init__(self, host: str, port: int, payloads: Sequence[bytes]) -> None:
        import mlperf_loadgen

        self._loadgen: Any = mlperf_loadgen
        self._payloads = payloads
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loadgen-client", daemon=True)
        self._thread.start()
        self._client = asyncio.run_coroutine_threadsafe(self._open(host, port), self._loop).result()
        self.failures = 0

    async def _open(self, host: str, port: int) -> Any:
        return open_client("http", host, port, 1024)

    def issue(self, samples: Sequence[Any]) -> None:
        """Called by LoadGen with the queries that are due."""
        for sample in samples:
            self._loop.call_soon_threadsafe(self._send, sample.id, sample.index)

    def flush(self) -> None:
        """Nothing is held back."""

    def name(self) -> str:
        """Of the system under test."""
        return "megalith serve"

    def close(self) -> None:
        """Ends the thread."""
        asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _send(self, query: int, index: int) -> None:
        def done(status: int, body: bytes) -> None:
            self.failures += status != 200
            self._loadgen.QuerySamplesComplete([self._loadgen.QuerySampleResponse(query, 0, 0)])

        self._client.send(self._payloads[index % len(self._payloads)], done)


def server_scenario(
    host: str, port: int, payloads: Sequence[bytes], rate: float, p99_seconds: float, seconds: float
) -> dict[str, Any]:
    """One run at a rate: whether LoadGen calls it valid, its p99, and the CPU of LoadGen and client."""
    check_installed()
    import mlperf_loadgen as loadgen

    library = NetworkLibrary(host, port, payloads)
    settings = loadgen.TestSettings()
    settings.scenario = loadgen.TestScenario.Server
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.server_target_qps = rate
    settings.server_target_latency_ns = round(p99_seconds * 1e9)
    settings.server_target_latency_percentile = 0.99
    settings.min_duration_ms = round(seconds * 1e3)
    settings.min_query_count = max(1, round(rate * seconds))
    with tempfile.TemporaryDirectory(prefix="megalith-loadgen-") as folder:
        output = loadgen.LogOutputSettings()
        output.outdir, output.copy_summary_to_stdout = folder, False
        logs = loadgen.LogSettings()
        logs.log_output, logs.enable_trace = output, False
        samples = loadgen.ConstructQSL(len(payloads), len(payloads), lambda _: None, lambda _: None)
        system = loadgen.ConstructQDL(library.issue, library.flush, library.name)
        cpu, began = time.process_time(), time.perf_counter()
        try:
            loadgen.StartTestWithLogSettings(system, samples, settings, logs, "")
        finally:
            taken, used = time.perf_counter() - began, time.process_time() - cpu
            loadgen.DestroyQDL(system)
            loadgen.DestroyQSL(samples)
            library.close()
        text = (Path(folder) / _SUMMARY).read_text()
    return {
        **read_summary(text),
        "rate": rate,
        "failures": library.failures,
        "seconds": taken,
        "client_cpu_share": used / taken,
    }


def read_summary(text: str) -> dict[str, Any]:
    """What LoadGen's summary says."""

    def number(label: str) -> float | None:
        found = re.search(rf"^{re.escape(label)}\s*:\s*([0-9.e+]+)", text, re.MULTILINE)
        return None if found is None else float(found[1])

    verdict = re.search(r"^Result is\s*:\s*(\w+)", text, re.MULTILINE)
    if verdict is None:
        raise ServeError("LoadGen wrote no summary; run it again with a longer --seconds.")
    p99 = number("99.00 percentile latency (ns)")
    return {
        "valid": verdict[1] == "VALID",
        "p99_seconds": None if p99 is None else p99 / 1e9,
        "completed_rate": number("Completed samples per second"),
    }
