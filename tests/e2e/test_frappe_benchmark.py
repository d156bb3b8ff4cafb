"""benchmarks/frappe.py as a user runs it: one seed on the real rows, and one sentence without them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from commands import run

ROOT = Path(__file__).parents[2]
FRAPPE = ROOT.parent / "shared" / "data" / "frappe"


def benchmark(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, ROOT / "benchmarks" / "frappe.py", "--peer", "none", *arguments])


def test_missing_data_is_one_sentence(tmp_path: Path) -> None:
    done = benchmark("--data", tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"{tmp_path / 'train.libfm'} is not there; give --data a folder with Frappe as libFM text."
    ]


@pytest.mark.slow
def test_the_recipe_reaches_its_auc_on_real_rows(tmp_path: Path) -> None:
    if not FRAPPE.is_dir():
        pytest.skip("../shared/data/frappe is not there; this test reads Frappe's real rows.")
    out = tmp_path / "frappe.json"
    done = benchmark("--data", FRAPPE, "--seeds", 1, "--json", "--out", out)
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert json.loads(out.read_text()) == content
    results = content["results"]
    assert results["megalith dlrm, 90% of rows"]["mean_test_auc"] >= 0.953
    assert results["megalith dlrm, all rows"]["mean_test_auc"] >= 0.953
