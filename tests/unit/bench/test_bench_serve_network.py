"""Models behind servers: requests of the bench are right, and its figures follow from what was measured."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from commands import megalith
from megalith.bench.peers.candidates import choose_peers, skipped_peers
from megalith.bench.serve.network.answers import answer_check
from megalith.bench.serve.network.goals import goals, ratios, without_client
from megalith.bench.serve.network.loadgen import read_summary
from megalith.bench.serve.network.models import user_request, user_tables, write_shape
from megalith.bench.serve.network.onnx_model import BINARY, peer_scores
from megalith.bench.serve.shapes import served_shape
from megalith.bench.serve.weights import ServedWeights
from megalith.export.backends.base import LoadSettings
from megalith.export.backends.inputs import ScoreRequest
from megalith.export.backends.kernels.native import NativeBackend
from megalith.export.folder import FrozenModel


def test_user_features_once_give_the_scores_of_tiled_ones(tmp_path: Path) -> None:
    import torch

    shape = served_shape("rm2", 50)
    count = user_tables(shape, 0.9)
    lookups = shape.tables.lookups
    assert 0.8 < sum(lookups[:count]) / sum(lookups) <= 0.9
    folder = write_shape(tmp_path / "m", ServedWeights(shape), "int8", count, "user")
    part = NativeBackend().load(FrozenModel(folder), "whole", LoadSettings(threads=1))
    scores = [
        part.run(ScoreRequest(**{name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}))
        for arrays in user_request(shape, 7, count, seed=1)
    ]
    np.testing.assert_array_equal(scores[0]["score"].numpy(), scores[1]["score"].numpy())


def test_ratios_compare_ours_with_the_engine_and_with_peers() -> None:
    def rate(plain: float, without: float) -> dict[str, float]:
        return {"rate": plain, "rate_without_client": without}

    found = ratios(
        {
            "in-process": rate(100, 100),
            "http": rate(85, 95),
            "grpc": rate(80, 90),
            "fastapi": rate(40, 50),
            "litserve": rate(30, 30),
            "fastapi-json": rate(9, 10),
            "litserve-json": rate(8, 8),
        }
    )
    assert found["http / in-process"] == pytest.approx(0.85)
    assert found["grpc / in-process, without client"] == pytest.approx(0.9)
    assert found["ours / best peer"] == pytest.approx(1.9)
    assert found["ours / plain peer"] == pytest.approx(9.5)
    assert without_client(50.0, 0.0) == 50.0


def test_goals_have_the_figure_beside_them_and_say_whether_it_is_met() -> None:
    names = ("http / in-process", "grpc / in-process")
    figures = dict.fromkeys(names, 0.85) | {f"{name}, without client": 0.95 for name in names}
    run = {"p99_seconds": 0.07, "rate": 10.0}
    measured = {
        "shape": "rm2",
        "ratios": {**figures, "ours / best peer": 1.4},
        "loadgen": {"p99_bound_seconds": 0.06, "valid": None, "runs": [run]},
        "user_once": {"bytes_ratio": 9.0, "rate_ratio": 2.5},
    }
    found = {each["goal"]: (each["figure"], each["asked"], each["met"]) for each in goals(measured)}
    assert found == {
        "HTTP over the in-process rate": (0.85, 0.8, True),
        "HTTP over the in-process rate, without the client's CPU time": (0.95, 0.9, True),
        "gRPC over the in-process rate": (0.85, 0.8, True),
        "gRPC over the in-process rate, without the client's CPU time": (0.95, 0.9, True),
        "times the rate of the best tuned server": (1.4, 1.5, False),
        "LoadGen's Server scenario, p99 in seconds": (0.07, 0.06, False),
        "user features once: times fewer bytes": (9.0, 5.0, True),
        "user features once: times the rate of tiled input": (2.5, 3.0, False),
    }
    assert len(goals({**measured, "shape": "rm1"})) == len(found) - 2


def test_an_answer_with_other_scores_than_torch_is_told() -> None:
    right = np.array([0.2, 0.9], np.float32)
    check = answer_check([right], partial(peer_scores, form=BINARY))
    assert check(0, (right + 0.001).tobytes())
    assert not check(0, right[::-1].tobytes())
    assert not check(0, right[:1].tobytes())


def test_a_peer_that_is_not_installed_is_left_out_with_a_sentence() -> None:
    known = ("fastapi", "litserve")
    sentences = skipped_peers([], known)
    chosen = choose_peers([], known)
    assert len(sentences) + len(chosen) == len(known)
    assert all(any(line.startswith(f"{name} ") for line in sentences) for name in known if name not in chosen)
    assert skipped_peers(["none"], known) == []


def test_a_summary_of_loadgen_is_read() -> None:
    lines = ["Completed samples per second    : 99.20", "Result is : VALID"]
    text = "\n".join([*lines, "99.00 percentile latency (ns)   : 4213000"])
    assert read_summary(text) == {"valid": True, "p99_seconds": 0.004213, "completed_rate": 99.2}


@pytest.mark.slow
def test_a_shape_is_measured_over_the_network() -> None:
    pytest.importorskip("fastapi", reason="FastAPI is not installed; `make bench` does")
    pytest.importorskip("mlperf_loadgen", reason="LoadGen is not installed; `make bench` does")
    words = [
        "--shape",
        "rm3",
        "--rows",
        "2000",
        "--batch",
        "8",
        "--repeats",
        "1",
        "--seconds",
        "0.5",
        "--json",
    ]
    done = megalith("bench", "serve", *words)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)["results"]["measured"][0]
    assert {"in-process", "http", "grpc", "fastapi", "fastapi-json"} <= set(measured["rates"])
    assert all(each["failures"] == 0 and each["rate"] > 0 for each in measured["rates"].values())
    assert measured["loadgen"]["runs"][0]["failures"] == 0
    assert measured["user_once"]["bytes_ratio"] > 1
