"""The guides to data and to a loop of your own are true."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from guide_pages import GUIDES, run_guide


@pytest.mark.slow
def test_the_guide_to_own_data_is_true(tmp_path: Path) -> None:
    run_guide("own-data.md", tmp_path)
    assert (tmp_path / "runs/clicks/report.html").exists()
    evaluation = json.loads((tmp_path / "runs/clicks/evaluation-test.json").read_text())
    assert evaluation["ne"] < 0.75
    schema = json.loads((tmp_path / "data/schema.json").read_text())
    # The table of the page is what the command prints.
    page = (GUIDES / "own-data.md").read_text(encoding="utf-8")
    for entry in schema["preparation"]["columns"]["columns"]:
        assert f"| {entry['column']} | {entry['type']} |" in page
    assert [feature["name"] for feature in schema["categorical"]] == ["user", "item", "history", "city"]
    # Text and Arrow give the columns of Parquet, to the last bit.
    tables = [pq.read_table(tmp_path / f"from-{name}/train/part-00000.parquet") for name in ("csv", "arrow")]
    assert tables[0].equals(tables[1].select(tables[0].column_names))


@pytest.mark.slow
def test_the_guide_to_raw_logs_is_true(tmp_path: Path) -> None:
    run_guide("raw-logs.md", tmp_path)
    evaluation = json.loads((tmp_path / "runs/vocabulary/evaluation-valid.json").read_text())
    assert json.loads((tmp_path / "vocabulary.json").read_text())["ne"] == evaluation["ne"]
    assert (tmp_path / "runs/raw/file-index.json").exists()


@pytest.mark.slow
def test_the_guide_to_your_own_loop_is_true(tmp_path: Path) -> None:
    run_guide("in-your-own-loop.md", tmp_path)
    assert (tmp_path / "model.pt").stat().st_size > 15_000 * 16 * 4
