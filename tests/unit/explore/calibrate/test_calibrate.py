"""Profiles fitted to one's own runs: planted constants are found, models held out, a file written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from megalith.cli.app import app
from megalith.core.errors import DataError
from megalith.explore.calibrate import calibrate
from megalith.explore.load import load_job
from megalith.explore.predict import predict
from megalith.explore.validation import validate
from megalith.explore.validation.measurements import LINES

PLANTED = "{products: 0.85, attention: 0.8, memory: 0.7, overlap: 0.6, scale_loss: 0.006}"
SIZES = {"small": (2048, 24, 16), "middle": (4096, 32, 32), "large": (5120, 40, 40)}


def planted_runs(folder: Path, names: tuple[str, ...]) -> Path:
    """Steps as a software of planted constants would take them."""
    stack = folder / "planted.yaml"
    stack.write_text(f"name: planted\nconstants: {PLANTED}\n")
    lines = []
    for name in names:
        hidden, layers, heads = SIZES[name]
        for seq, nodes in ((2048, 1), (8192, 1), (2048, 8)):
            sizes = {"dp": 8 * nodes, "micro_batch": 1, "global_batch": 32 * nodes}
            job = {
                "model": {"hidden": hidden, "layers": layers, "heads": heads, "vocab": 50368, "seq": seq},
                "cluster": {
                    "device": "h100-80g",
                    "levels": [
                        {"name": "node", "count": 8, "link": "nvlink4"},
                        {"name": "zone", "count": nodes, "link": "ib-ndr400x8"},
                    ],
                },
                "parallel": {**sizes, "sharding": "zero3"},
                "training": {"recompute": "full"},
            }
            ran = predict(load_job(job, [f"training.stack={stack}"]), must_fit=False)
            row = {"id": f"{name}-{seq}-{nodes}", "stack": "llm-foundry", "job": job}
            lines.append(json.dumps({**row, "step_seconds": ran.step_seconds}))
    path = folder / f"{'-'.join(names)}.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_planted_stack_predicts_a_model_that_was_not_measured(tmp_path: Path) -> None:
    profile, report = calibrate(planted_runs(tmp_path, ("small", "large")), "mine")
    assert report.before.mean > 0.05
    assert report.fitted.mean < 0.03
    assert report.left_out is not None
    assert report.left_out.mean < 0.06
    out = tmp_path / "mine.yaml"
    out.write_text(json.dumps(profile.model_dump(mode="json")))
    other = validate(planted_runs(tmp_path, ("middle",)), stack=str(out))
    assert other.groups["all"].mean < 0.03
    assert all(row.inside for row in other.rows)


def test_the_command_writes_a_profile_that_a_job_takes(tmp_path: Path) -> None:
    runs, out = planted_runs(tmp_path, ("small", "large")), tmp_path / "mine.yaml"
    result = CliRunner().invoke(app, ["explore", "calibrate", str(runs), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["left_out"]["mean"] < report["before"]["mean"]
    assert len(report["constants"]) <= 6
    content = json.loads(runs.read_text().splitlines()[0])["job"]
    content["training"] = {"recompute": "full", "stack": str(out)}
    prediction = predict(load_job(content), must_fit=False)
    assert prediction.stack == "mine"
    assert "6 steps that mine was fitted on" in prediction.interval_basis


def test_too_few_steps_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "two.jsonl"
    path.write_text("\n".join(LINES.read_text().splitlines()[:2]) + "\n")
    with pytest.raises(DataError, match="has 2 steps that ran; a profile needs at least 3"):
        calibrate(path, "mine")


@pytest.mark.slow
@pytest.mark.parametrize(("stack", "most"), [("nemo-25", 0.08), ("llm-foundry", 0.08)])
def test_models_of_a_stack_predict_the_others(stack: str, most: float, tmp_path: Path) -> None:
    _, report = calibrate(_rows_of(stack, tmp_path), "again")
    assert report.left_out is not None
    assert report.left_out.mean <= most


def _rows_of(stack: str, folder: Path) -> Path:
    rows = [line for line in LINES.read_text().splitlines() if json.loads(line)["stack"].startswith(stack)]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(rows) + "\n")
    return path
