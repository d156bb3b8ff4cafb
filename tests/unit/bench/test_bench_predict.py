"""`megalith bench predict` as a user runs it, on few rows."""

from __future__ import annotations

import json
from pathlib import Path

from commands import megalith, unwrapped


def test_predictions_are_measured_beside_the_forward_pass_and_data_is_reused(tmp_path: Path) -> None:
    words = ("bench", "predict", "--rows", 3000, "--repeats", 1, "--threads", 1, "--workdir", tmp_path)
    done = megalith(*words, "--json", "--out", tmp_path / "result.json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert json.loads((tmp_path / "result.json").read_text()) == content
    measured = content["results"]["candidates"]
    assert list(measured) == ["forward alone", "from prepared data", "from raw Parquet"]
    assert all(each["rows_per_second"] > 0 for each in measured.values())
    shares = content["results"]["share_of_forward"]
    assert shares["from prepared data"] > 0
    assert content["machine"]["cores"] >= 1
    assert content["settings"]["batch"] == 8192
    done = megalith(*words)
    assert done.returncode == 0, done.stderr
    assert "training the model" not in done.stderr
    assert "from raw Parquet" in unwrapped(done.stdout)
