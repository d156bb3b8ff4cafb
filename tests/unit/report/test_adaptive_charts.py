"""The report of a run with adaptive tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from megalith.core.files import read_jsonl
from megalith.data.synth.generate import generate
from megalith.data.synth.options import SynthOptions
from megalith.report import write_report
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("report")
    generate(SynthOptions("criteo", train_rows=4000, valid_rows=500, test_rows=0), folder / "data", threads=1)
    policy = "adaptive={ratio: 24, chunk: 2, interval: 4, warm_up: 8}"
    overrides = ["data.batch_size=100", "data.eval_batch_size=100", "train.log_every=4", policy]
    recipe = load_recipe("demo", [f"data.path={folder / 'data'}", "train.tensorboard=false", *overrides])
    run = RunFolder(folder / "run")
    Trainer(recipe, run).train()
    return run


def test_live_columns_and_bytes_by_part_are_drawn_as_they_were_reported(
    run: RunFolder, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    write_report(run.folder, page)
    content = re.search(r'id="charts">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert content
    figures = {chart["key"]: chart["figure"]["data"] for chart in json.loads(content[1])}
    entries = [line["adaptive"] for line in read_jsonl(run.metrics) if line["kind"] == "train"]
    parts = {trace["name"]: trace["y"] for trace in figures["adaptive-bytes"]}
    for part in ("weights", "state", "utility", "index", "sketch", "free", "bookkeeping"):
        assert parts[part] == [entry[f"{part}_bytes"] for entry in entries]
    assert parts["budget"] == [entry["budget_bytes"] for entry in entries if entry["budget_bytes"]]
    lines = figures["live-dims"]
    assert 1 < len(lines) <= 12
    for trace in lines:
        assert trace["y"] == [entry["mean_dims"][trace["name"]] for entry in entries]
    # The longest tables shrink.
    assert any(trace["y"][-1] < max(trace["y"]) for trace in lines)
