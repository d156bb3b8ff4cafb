"""The guides are true: their files are written and their commands run, in order, in an empty folder.

A fenced block ```bash is run; a block with a title, such as ```python title="model.py", is that file.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from commands import run

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_guide(name: str, folder: Path, ports: tuple[str, ...] = ()) -> None:
    """`ports` are those of the page that are to be free ones here."""
    script = ["set -euo pipefail"]
    page = (GUIDES / name).read_text(encoding="utf-8")
    for port, free in zip(ports, free_ports(len(ports)), strict=True):
        page = page.replace(port, str(free))
    for language, title, content in _BLOCK.findall(page):
        if title:
            (folder / title).write_text(content, encoding="utf-8")
        elif language == "bash":
            script.append(content)
    assert len(script) > 1, f"{name} has no command"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run(["bash", "-c", "\n".join(script)], cwd=folder, env={**os.environ, "PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


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


def test_the_guide_to_an_own_model_is_true(tmp_path: Path) -> None:
    run_guide("own-model.md", tmp_path)
    assert (tmp_path / "runs/wider/report.html").exists()


def test_the_guide_to_your_own_loop_is_true(tmp_path: Path) -> None:
    run_guide("in-your-own-loop.md", tmp_path)
    assert (tmp_path / "model.pt").stat().st_size > 15_000 * 16 * 4


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


def test_the_guide_to_raw_logs_is_true(tmp_path: Path) -> None:
    run_guide("raw-logs.md", tmp_path)
    evaluation = json.loads((tmp_path / "runs/vocabulary/evaluation-valid.json").read_text())
    assert json.loads((tmp_path / "vocabulary.json").read_text())["ne"] == evaluation["ne"]
    assert (tmp_path / "runs/raw/file-index.json").exists()


def test_the_guide_to_freezing_is_true(tmp_path: Path) -> None:
    run_guide("freeze-it.md", tmp_path)
    assert (tmp_path / "first.html").stat().st_size > 1000
    frozen, trained = (
        pq.read_table(tmp_path / f"{name}.parquet")["score"].to_numpy() for name in ("frozen", "trained")
    )
    assert 0 < abs(frozen - trained).max() < 0.02
    small = json.loads((tmp_path / "small.json").read_text())
    assert small["gate"]["ne_loss"] <= 0.01
    assert small["table_share"] < 0.35


def test_the_guide_to_serving_is_true(tmp_path: Path) -> None:
    run_guide("serve-it.md", tmp_path, ports=("8000", "8001"))
    triton, grpc = (np.load(tmp_path / f"{name}.npy") for name in ("triton", "grpc"))
    curl, second = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("curl", "second"))
    np.testing.assert_array_equal(triton, grpc)
    np.testing.assert_allclose(curl["outputs"][0]["data"], triton, rtol=1e-5)
    assert (curl["id"], curl["model_version"], second["model_version"]) == ("one", "1", "2")
    assert second["outputs"] == curl["outputs"]
    raw = json.loads((tmp_path / "raw-scores.json").read_text())["outputs"][0]["data"]
    assert len(raw) == 4
    assert all(0 < score < 1 for score in raw)
    assert json.loads((tmp_path / "rate.json").read_text())["answers"] == 100
    metrics = (tmp_path / "metrics.txt").read_text()
    assert 'nv_inference_request_success{model="first",version="2"}' in metrics
    assert (tmp_path / "requests.safetensors").stat().st_size > 1000


def test_the_guide_to_a_backend_of_your_own_is_true(tmp_path: Path) -> None:
    run_guide("backends.md", tmp_path)


def test_the_guide_to_cards_is_true(tmp_path: Path) -> None:
    run_guide("cards.md", tmp_path)
    made = json.loads((tmp_path / "rm2.json").read_text())
    assert made["partition"]["hardware"] == "yosemite-v2-mtia-v1"


def test_the_guide_to_planning_is_true(tmp_path: Path) -> None:
    run_guide("explore.md", tmp_path)
    for name in ("step.html", "step.json", "plans/report.html", "megatron-plans/plan-1/megatron.sh"):
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.slow
def test_the_guide_to_many_processes_is_true(tmp_path: Path) -> None:
    run_guide("many-processes.md", tmp_path)
    scores = [
        json.loads((tmp_path / f"runs/{name}/evaluation-valid.json").read_text()) for name in ("one", "two")
    ]
    assert abs(scores[0]["log_loss"] - scores[1]["log_loss"]) < 1e-5
    for name in ("zionex.html", "runs/two/trace.json", "runs/two/plan.json"):
        assert (tmp_path / name).stat().st_size > 1000


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
    assert "Memory and disk" in (runs / "disk/report.html").read_text()


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


def test_every_guide_is_run() -> None:
    run = set(re.findall(r"run_guide\(\"([\w-]+\.md)\"", Path(__file__).read_text(encoding="utf-8")))
    written = {path.name for path in GUIDES.glob("*.md") if "```bash" in path.read_text(encoding="utf-8")}
    missing = written - run
    if missing:
        pytest.fail(f"no test runs {', '.join(sorted(missing))}")
