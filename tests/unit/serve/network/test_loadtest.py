"""Load tests against a real server: rates, percentiles, recorded requests, and what they refuse."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton_http

from commands import megalith, sentence_of
from megalith.serve.front.recorder import read_requests
from megalith.serve.loadtest.loads import LoadResult
from megalith.serve.loadtest.search import highest_rate, holds
from networked_models import draw_inputs, small_model, write_model
from running_server import inputs_for, running


def measured(*arguments: Any) -> dict[str, Any]:
    done = megalith("loadtest", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_every_request_of_a_rate_is_sent_and_answered(server: Any, scheme: str) -> None:
    port = server.http if scheme == "http" else server.grpc
    arguments = [f"{scheme}://127.0.0.1:{port}", "--model", "small", "--http", server.url, "--user-once"]
    found = measured(*arguments, "--rate", 40, "--seconds", 1, "--samples", 5)
    assert (found["answers"], found["failures"], found["unsent"]) == (40, {}, 0)
    assert found["latency_seconds"]["p50"] <= found["latency_seconds"]["p99"]
    assert found["client_cpu_seconds"] > 0


def test_a_closed_loop_keeps_so_many_under_way(server: Any) -> None:
    found = measured(server.url, "--model", "small", "--concurrency", 3, "--seconds", 0.5)
    assert found["offered_rate"] is None
    assert found["answers"] > 3


def test_the_search_finds_the_rate_where_the_bound_breaks() -> None:
    import asyncio

    async def trial(rate: float) -> LoadResult:
        late = 0.010 if rate <= 80 else 0.2
        return LoadResult(rate, 1.0, [late] * round(rate), Counter())

    found = asyncio.run(highest_rate(trial, 200.0, 0.05))
    assert found is not None
    assert found.offered_rate is not None
    assert 72 < found.offered_rate <= 80
    assert asyncio.run(highest_rate(trial, 200.0, 0.001)) is None


def test_a_run_with_failures_does_not_hold() -> None:
    fine = LoadResult(10.0, 1.0, [0.01] * 10, Counter())
    assert holds(fine, 0.02)
    assert not holds(LoadResult(10.0, 1.0, [0.01] * 10, Counter({"503": 1})), 0.02)
    assert not holds(LoadResult(20.0, 1.0, [0.01] * 10, Counter()), 0.02)


def test_requests_are_recorded_up_to_a_bound_and_replayed(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "small", small_model(seed=1))
    record, trace = tmp_path / "requests.safetensors", tmp_path / "trace.jsonl"
    with running(
        folder, "--cards", "0", "--record", record, "--record-requests", 3, "--trace", trace
    ) as server:
        with triton_http.InferenceServerClient(f"127.0.0.1:{server.http}") as client:
            for seed in range(5):
                client.infer("small", inputs_for(triton_http, draw_inputs(seed + 1, seed)))
        replayed = measured(server.url, "--replay", record, "--concurrency", 1, "--seconds", 0.2)
        assert not replayed["failures"]
        server.process.terminate()
        assert server.process.wait() == 0
    requests = read_requests(record)
    assert [request.model for request in requests] == ["small"] * 3
    for seed, request in enumerate(requests):
        for name, array in draw_inputs(seed + 1, seed).items():
            np.testing.assert_array_equal(request.inputs[name], array)
    spans = [json.loads(line) for line in trace.read_text().splitlines()]
    assert {span["name"] for span in spans} == {"request", "queue", "input", "compute", "output"}
    assert spans[0]["attributes"]["model"] == "small"


def test_what_cannot_be_tested_is_one_sentence(server: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    for arguments, said in (
        ((server.url,), "--rate, --concurrency or --p99-ms"),
        (("ftp://a", "--rate", 1), "is no address"),
        ((server.url, "--rate", 1), "choose with --model"),
        ((server.url, "--rate", 1, "--model", "none"), "No model 'none' is served"),
        ((server.url, "--rate", 1, "--replay", tmp_path / "x"), "cannot be read as recorded requests"),
        (("http://127.0.0.1:9", "--rate", 1), "check that the server runs there"),
    ):
        assert said in sentence_of(megalith("loadtest", *arguments))
