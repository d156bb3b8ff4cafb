"""Pages of results that were really measured, on tiny shapes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from megalith.bench.embedding.suite import bench_embedding
from megalith.bench.peers.lookup import LookupShape
from megalith.bench.runner import save_result
from megalith.bench.train.suite import bench_train
from megalith.core.errors import DataError
from megalith.report import write_bench_report

SHAPE = LookupShape(tables=2, rows=100, dim=8, batch=4, lookups=1)


def charts_of(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    result, page = folder / "result.json", folder / "page.html"
    save_result(result, content)
    assert write_bench_report(result, page)["suite"] == content["suite"]
    html = page.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    charts = {one["key"]: one["figure"] for one in json.loads(found[1])}
    assert all(f'id="chart-{key}"' in html for key in charts)
    return charts


def test_headline_shapes_are_drawn_pass_by_pass(tmp_path: Path) -> None:
    charts = charts_of(bench_embedding("headline", SHAPE, ["torch"], repeats=1), tmp_path)
    assert set(charts) == {"forward", "backward", "total", "roof"}
    assert [trace["name"] for trace in charts["total"]["data"]] == ["megalith", "torch"]
    assert all(time > 0 for trace in charts["total"]["data"] for time in trace["x"])


def test_scaling_is_drawn_over_its_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megalith.bench.embedding.shapes.SWEEP_LOOKUPS", (1, 2))
    monkeypatch.setattr("megalith.bench.embedding.shapes.SCALING_ROWS", (10, 100))
    charts = charts_of(bench_embedding("scaling", SHAPE, [], repeats=1), tmp_path)
    assert charts["rows-uniform"]["data"][0]["x"] == [10, 100]
    assert charts["lookups-uniform"]["data"][0]["x"] == [1, 2]


def test_a_training_step_is_drawn_with_its_parts(tmp_path: Path) -> None:
    charts = charts_of(bench_train(SHAPE, [], repeats=1), tmp_path)
    assert len(charts["parts"]["data"][0]["x"]) == 4


@pytest.mark.parametrize("content", ["", "[]", '{"suite": "embedding"}'])
def test_another_file_is_refused_with_a_sentence(content: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"other\.json (is no result|is empty|holds a list).*megalith bench"):
        write_bench_report(path, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_bars_have_their_values_in_units_that_fit(tmp_path: Path) -> None:
    content = bench_train(SHAPE, [], repeats=1)
    content["results"]["sent_bytes_a_step"] = {"indices": 300, "vectors": 5 << 20}
    charts = charts_of(content, tmp_path)
    (sent,) = charts["sent"]["data"]
    assert (sent["x"], sent["text"]) == ([300, 5 << 20], ["300 B", "5.0 MiB"])
    assert "5 MiB" in charts["sent"]["layout"]["xaxis"]["ticktext"]
    (parts,) = charts["parts"]["data"]
    assert all(re.fullmatch(r"[\d.e+-]+ (s|ms|us)", text) for text in parts["text"])
    assert charts["parts"]["layout"]["xaxis"]["range"][1] > max(parts["x"])
