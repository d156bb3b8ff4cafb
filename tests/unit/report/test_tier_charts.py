"""The report of a run whose tables are beyond memory, and that of one whose tables are not."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from megalith.core.errors import DataError
from megalith.core.files import read_jsonl
from megalith.data.synth.generate import generate
from megalith.data.synth.options import SynthOptions
from megalith.report import write_report
from megalith.report.collect import collect
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer

TIER_CHARTS = {"hits", "tier-rows", "tier-bytes"}
PREDICTION = {
    "hit_rate": 0.25,
    "reads_per_sample": 7.5,
    "step_seconds": 0.125,
    "disk_bytes": 3 << 20,
    "bound_by": "disk <reads>",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    generate(
        SynthOptions("criteo", train_rows=4000, valid_rows=500, test_rows=500), folder / "data", threads=1
    )
    overrides = ["data.batch_size=100", "data.eval_batch_size=100", "train.log_every=4", "memory.dram=384KiB"]
    recipe = load_recipe("demo", [f"data.path={folder / 'data'}", "train.tensorboard=false", *overrides])
    Trainer(recipe, RunFolder(folder / "run")).train()
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy to put things into."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def figures_of(run: Path) -> tuple[str, dict[str, dict]]:
    page = run / "report.html"
    write_report(run, page)
    text = page.read_text(encoding="utf-8")
    content = re.search(r'id="charts">(.*?)</script>', text, re.DOTALL)
    assert content
    return text, {chart["key"]: chart["figure"] for chart in json.loads(content[1])}


def test_hits_rows_and_bytes_are_drawn_as_they_were_reported(run: Path) -> None:
    _, figures = figures_of(run)
    entries = [entry for entry in read_jsonl(run / "metrics.jsonl") if entry["kind"] == "train"]
    (hits,) = figures["hits"]["data"]
    assert hits["x"] == [entry["samples"] for entry in entries]
    assert hits["y"] == [entry["tiers"]["hit_rate"] for entry in entries]
    low, high = figures["hits"]["layout"]["yaxis"]["range"]
    assert low < min(hits["y"]) <= max(hits["y"]) < high
    read, written = figures["tier-rows"]["data"]
    assert read["y"] == [entry["tiers"]["reads_per_sample"] for entry in entries]
    assert written["y"] == [entry["tiers"]["written_rows"] / 400 for entry in entries]
    assert [trace["y"][-1] for trace in figures["tier-bytes"]["data"]] == [
        entries[-1]["tiers"][key] for key in ("disk_bytes", "memory_bytes", "index_bytes")
    ]


def test_totals_are_those_of_all_reports(run: Path) -> None:
    facts = collect(run)
    tiers = [entry["tiers"] for entry in facts.training]
    lookups = sum(entry["lookups"] for entry in tiers)
    hits = sum(entry["lookups"] * entry["hit_rate"] for entry in tiers)
    assert facts.tiers is not None
    assert facts.tiers["hit_rate"] == pytest.approx(hits / lookups, abs=1e-5)
    assert facts.tiers["reads_per_sample"] == pytest.approx(
        sum(entry["reads"] for entry in tiers) / 4000, abs=1e-4
    )
    summary = json.loads((run / "summary.json").read_text())
    assert summary["tiers"] == {**facts.tiers, "predicted": None}


def test_a_prediction_stands_beside_what_happened(run: Path) -> None:
    (run / "prediction.json").write_text(json.dumps(PREDICTION))
    text, figures = figures_of(run)
    for key, value in (("hits", 0.25), ("tier-rows", 7.5)):
        dotted = [trace for trace in figures[key]["data"] if trace["line"].get("dash") == "dot"]
        assert [trace["y"] for trace in dotted] == [[value, value]]
    table = text[text.index("Rows in memory and on disk") : text.index("Cache hits</h3>")]
    (row,) = re.findall(r"<tr><td>Predicted</td>(.*?)</tr>", table)
    cells = re.findall(r"<td>(.*?)</td>", row)
    assert cells == ["25.0%", "7.50", "125 ms", "3.0 MiB", "\u2013", "\u2013", "disk &lt;reads&gt;"]


def test_a_damaged_prediction_is_named(run: Path) -> None:
    (run / "prediction.json").write_text(json.dumps({**PREDICTION, "hit_rate": "high"}))
    with pytest.raises(DataError, match=r"prediction\.json.*hit_rate"):
        figures_of(run)


def test_a_run_in_memory_has_nothing_of_it(run: Path) -> None:
    metrics = run / "metrics.jsonl"
    entries = [{k: v for k, v in entry.items() if k != "tiers"} for entry in read_jsonl(metrics)]
    metrics.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    text, figures = figures_of(run)
    assert not TIER_CHARTS & figures.keys()
    assert "Rows in memory and on disk" not in text
