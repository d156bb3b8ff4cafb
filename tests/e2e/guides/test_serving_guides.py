"""The guides to freezing and serving are true."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from guide_pages import run_guide


def test_the_guide_to_freezing_is_true(tmp_path: Path) -> None:
    run_guide("freeze-it.md", tmp_path)
    assert (tmp_path / "first.html").stat().st_size > 1000
    frozen, trained = (
        pq.read_table(tmp_path / f"{name}.parquet")["score"].to_numpy() for name in ("frozen", "trained")
    )
    assert 0 < abs(frozen - trained).max() < 0.02
    small = json.loads((tmp_path / "small.json").read_text())
    assert small["gate"]["ne_loss"] <= 0.01
    assert small["table_share"] < 0.35


def test_the_guide_to_serving_is_true(tmp_path: Path) -> None:
    run_guide("serve-it.md", tmp_path, ports=("8000", "8001"))
    triton, grpc = (np.load(tmp_path / f"{name}.npy") for name in ("triton", "grpc"))
    curl, second = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("curl", "second"))
    np.testing.assert_array_equal(triton, grpc)
    np.testing.assert_allclose(curl["outputs"][0]["data"], triton, rtol=1e-5)
    assert (curl["id"], curl["model_version"], second["model_version"]) == ("one", "1", "2")
    assert second["outputs"] == curl["outputs"]
    third = json.loads((tmp_path / "third.json").read_text())
    assert third["model_version"] == "3"
    assert third["outputs"] != second["outputs"]
    raw = json.loads((tmp_path / "raw-scores.json").read_text())["outputs"][0]["data"]
    assert len(raw) == 4
    assert all(0 < score < 1 for score in raw)
    assert json.loads((tmp_path / "rate.json").read_text())["answers"] == 100
    metrics = (tmp_path / "metrics.txt").read_text()
    assert 'nv_inference_request_success{model="first",version="2"}' in metrics
    assert (tmp_path / "requests.safetensors").stat().st_size > 1000


def test_the_guide_to_live_updates_is_true(tmp_path: Path) -> None:
    run_guide("live-updates.md", tmp_path, ports=("8000",))
    assert "equal: True" in (tmp_path / "equal.txt").read_text()
    summary = json.loads((tmp_path / "second.json").read_text())
    assert (summary["step"], summary["finished"], summary["stopped_by"]) == (60, True, "the end of the data")
    lines = (tmp_path / "runs/clicks/taken-files.jsonl").read_text().splitlines()
    names = [Path(json.loads(line)["index"]["name"]).name for line in lines]
    assert names == [f"day-a{letter}.tsv" for letter in "abcdef"]
    metrics = (tmp_path / "metrics.txt").read_text()
    assert "megalith_follow_lag_seconds{" in metrics
    assert 'megalith_follow_ok{model="clicks"' in metrics
