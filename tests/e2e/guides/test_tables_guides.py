"""The guides to tables beyond memory, smaller ones and ones without a vocabulary are true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guide_pages import run_guide


@pytest.mark.slow
def test_the_guide_to_tables_beyond_memory_is_true(tmp_path: Path) -> None:
    run_guide("beyond-memory.md", tmp_path)
    runs = tmp_path / "runs"
    # `cmp` has held the evaluations against each other; nothing else may differ in what was learnt either.
    losses = [
        [json.loads(line).get("loss") for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("memory", "disk")
    ]
    assert losses[0] == losses[1]
    for name, ranks in (("disk", 1), ("two", 2)):
        summary = json.loads((runs / name / "summary.json").read_text())
        tiers, predicted = summary["tiers"], summary["tiers"]["predicted"]
        assert summary["ranks"] == ranks
        assert tiers["memory_bytes"] < summary["table_bytes"] / 3
        assert abs(tiers["hit_rate"] - predicted["hit_rate"]) < 0.1
        assert not list((runs / name / "rows").rglob("*.rows"))
    assert "Rows in memory and on disk" in (runs / "disk/report.html").read_text()


@pytest.mark.slow
def test_the_guide_to_shrinking_is_true(tmp_path: Path) -> None:
    run_guide("shrink.md", tmp_path)
    runs = [tmp_path / "runs" / name for name in ("dense", "small")]
    dense, small = (json.loads((run / "evaluation-valid.json").read_text())["log_loss"] for run in runs)
    assert small < 1.004 * dense
    adaptive = json.loads((runs[1] / "summary.json").read_text())["adaptive"]
    assert adaptive["ratio"] > 15.5
    assert "Live dims by table" in (runs[1] / "report.html").read_text()
    saved = [sum(path.stat().st_size for path in run.rglob("*.safetensors")) for run in runs]
    assert saved[1] < saved[0] / 8


@pytest.mark.slow
def test_the_guide_to_ids_without_bound_is_true(tmp_path: Path) -> None:
    run_guide("ids-without-bound.md", tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "runs/dynamic/metrics.jsonl").read_text().splitlines()]
    entries = [line["dynamic"] for line in lines if line["kind"] == "train"]
    assert entries
    assert all(0 < entry["ids"] <= entry["bound"] == 25 * 400 + 64 for entry in entries)
    assert sum(entry["evicted"] for entry in entries) > 0
    chunks = [json.loads(line) for line in (tmp_path / "runs/chunks/metrics.jsonl").read_text().splitlines()]
    both = [(line["adaptive"], line["dynamic"]) for line in chunks if line["kind"] == "train"]
    assert all(0 < dynamic["ids"] <= dynamic["bound"] == 26 * 800 for _, dynamic in both)
    assert sum(adaptive["pruned"] for adaptive, _ in both) > 0
    assert "Ids without bound" in (tmp_path / "report.html").read_text()
    schema = json.loads((tmp_path / "clicks/schema.json").read_text())
    assert {feature["num_ids"] for feature in schema["categorical"]} == {None}
    assert not (tmp_path / "clicks/vocabulary").exists()
