"""Malformed HTTP and gRPC by the thousand: a sentence each, never a crash, never memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz_server import fuzz
from networked_models import small_model, write_model
from running_server import running


def check(folder: Path, count: int) -> None:
    write_model(folder / "small", small_model())
    with running(folder / "small", "--cards", "1") as server:
        found = fuzz(server.http, server.grpc, server.process.pid, count)
        assert server.process.poll() is None
        # Allocators keep some; a leak of a request each would be far more.
        assert found["grown_bytes"] < (8 << 20) + 100 * count, found
        assert sum(found["http"].values()) > 0.3 * count
        assert sum(found["grpc"].values()) == count // 2 or count < 20
        assert found["http"].get(400, 0) > found["http"].get(200, 0), found
        server.process.terminate()
        assert server.process.wait(60) == 0


def test_hundreds_of_malformed_requests(tmp_path: Path) -> None:
    check(tmp_path, 400)


@pytest.mark.slow
def test_a_hundred_thousand_malformed_requests(tmp_path: Path) -> None:
    check(tmp_path, 100_000)
