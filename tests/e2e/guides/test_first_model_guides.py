"""The guides to a first model and to one of your own are true."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from guide_pages import run_guide


def test_the_guide_to_a_first_model_is_true(tmp_path: Path) -> None:
    run_guide("first-model.md", tmp_path)
    assert (tmp_path / "runs/first/report.html").exists()
    assert (tmp_path / "compare.html").exists()
    assert (tmp_path / "test.json").stat().st_size > 100
    scores, expected = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("scores", "expected"))
    assert scores["score"].equals(expected["score"])
    assert pq.read_table(tmp_path / "c1.parquet").column_names == ["id", "kind", "value", "vector"]
    # The stopped run went on to where the other one ended, with the same numbers.
    first = (tmp_path / "runs/first/evaluation-valid.json").read_text()
    assert (tmp_path / "runs/second/evaluation-valid.json").read_text() == first


@pytest.mark.slow
def test_the_guide_to_an_own_model_is_true(tmp_path: Path) -> None:
    run_guide("own-model.md", tmp_path)
    assert (tmp_path / "runs/wider/report.html").exists()
