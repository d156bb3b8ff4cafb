"""`megalith bench embedding`: every side does the same work, and the result says what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from commands import megalith, unwrapped
from megalith.bench.embedding import shapes
from megalith.bench.embedding.roofline import distinct_rows, least_bytes, measure_bandwidth
from megalith.bench.embedding.shapes import draw, shapes_of
from megalith.bench.embedding.suite import bench_embedding, build_alike, measure
from megalith.bench.peers.candidates import bytes_needed, choose_peers
from megalith.bench.peers.lookup import OURS, LookupShape
from megalith.core.errors import ConfigError

SHAPE = LookupShape(tables=3, rows=300, dim=8, batch=16, lookups=4)
needs_fbgemm = pytest.mark.skipif(
    find_spec("fbgemm_gpu") is None, reason="FBGEMM is not installed; `make bench` installs it."
)
# Its own modules warn when they are imported.
quiet = pytest.mark.filterwarnings("ignore")


@needs_fbgemm
@quiet
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_fbgemm_makes_the_same_step(dtype: str) -> None:
    shape = replace(SHAPE, dtype=dtype, zipf=1.2)
    sides = build_alike(shape, [OURS, "fbgemm"])
    for seed in range(3):
        ids = draw(shape, seed)
        outputs = {name: side.forward(ids) for name, side in sides.items()}
        torch.testing.assert_close(outputs["fbgemm"], outputs[OURS], rtol=1e-3, atol=1e-5)
        for name, side in sides.items():
            side.backward(outputs[name], ids)
    tolerance = 1e-6 if dtype == "float32" else 1e-3
    for own, peer in zip(sides[OURS].weights(), sides["fbgemm"].weights(), strict=True):
        torch.testing.assert_close(own, peer, rtol=tolerance, atol=tolerance)


def test_torch_reads_the_same_and_updates_the_same_rows() -> None:
    sides = build_alike(SHAPE, [OURS, "torch"])
    before = [weight.clone() for weight in sides[OURS].weights()]
    ids = draw(SHAPE, 0)
    outputs = {name: side.forward(ids) for name, side in sides.items()}
    torch.testing.assert_close(outputs["torch"], outputs[OURS])
    for name, side in sides.items():
        side.backward(outputs[name], ids)
    for start, own, peer in zip(before, sides[OURS].weights(), sides["torch"].weights(), strict=True):
        assert torch.equal((own != start).any(dim=1), (peer != start).any(dim=1))


def test_skewed_ids_repeat_and_are_scattered_over_the_table() -> None:
    shape = replace(SHAPE, rows=100_000, batch=500, zipf=1.2)
    ids = draw(shape, 0)
    hot = torch.bincount(ids.values, minlength=shape.rows).topk(2).indices
    assert abs(int(hot[0] - hot[1])) > 1000
    assert distinct_rows(shape, ids) < distinct_rows(
        replace(shape, zipf=None), draw(replace(shape, zipf=None), 0)
    )
    assert torch.equal(ids.values, draw(shape, 0).values)


@pytest.mark.parametrize("kind", ["headline", "sweep", "scaling"])
def test_shapes_stay_within_memory(kind: Any) -> None:
    base = LookupShape(tables=26, rows=500_000, dim=64, batch=2048, lookups=1)
    shapes = [shape for _, shape in shapes_of(kind, base, ["fbgemm"])]
    assert len(shapes) == len(set(shapes)) or kind == "sweep"
    if kind != "headline":
        assert all(2 * shape.weight_bytes <= 6 << 30 for shape in shapes)


def test_a_peer_that_cannot_run_a_shape_says_so() -> None:
    odd = replace(SHAPE, dim=10)
    found = measure(odd, ["fbgemm"], [draw(odd, 0)], repeats=1)
    assert found["candidates"]["fbgemm"] == {"skipped": "not supported"}
    assert found["candidates"][OURS]["total"]["median_seconds"] > 0
    large = replace(SHAPE, rows=10**12)
    with pytest.raises(ConfigError, match="pass fewer --rows"):
        measure(large, [], [], repeats=1)


def test_the_roof_counts_each_distinct_row_once() -> None:
    ids = draw(SHAPE, 0)
    moved = least_bytes(SHAPE, distinct_rows(SHAPE, ids))
    assert 0 < moved["forward"] <= SHAPE.num_values * SHAPE.row_bytes + SHAPE.output_bytes
    roof = measure_bandwidth(SHAPE.row_bytes, 1 << 12, 2, repeats=1)
    assert roof.read > 0
    assert roof.update > 0
    assert bytes_needed("torch", SHAPE) > bytes_needed(OURS, SHAPE)


def test_peers_are_named_singly_or_in_a_list() -> None:
    assert choose_peers(["none"], ["fbgemm", "torch"]) == []
    assert choose_peers(["torch"], ["fbgemm", "torch"]) == ["torch"]
    with pytest.raises(ConfigError, match="did you mean 'torch'"):
        choose_peers(["torhc"], ["fbgemm", "torch"])


def test_a_sweep_over_small_shapes_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "SWEEP_DIMS", (1, 8))
    monkeypatch.setattr(shapes, "SWEEP_LOOKUPS", (2,))
    monkeypatch.setattr(shapes, "SWEEP_BATCHES", (8,))
    content = bench_embedding("sweep", SHAPE, [], repeats=1)
    axes = [one["axis"] for one in content["results"]["measured"]]
    assert axes == 2 * (["dim"] * 2 + ["lookups", "batch"] + ["float16"] * 3)


def test_the_command_prints_a_table_and_saves_the_result(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    small = ("--tables", "2", "--rows", "500", "--batch", "8", "--repeats", "1", "--peer", "torch")
    done = megalith("bench", "embedding", *small, "--out", out)
    assert done.returncode == 0, done.stderr
    said = unwrapped(done.stdout)
    assert "64, 10, zipf" in said
    assert "Share of what the memory can do" in said
    content = json.loads(out.read_text())
    assert content["suite"] == "embedding"
    assert len(content["results"]["measured"]) == 6
    assert set(content["results"]["measured"][0]["speed_ratio"]["torch"]) == {"forward", "backward", "total"}
