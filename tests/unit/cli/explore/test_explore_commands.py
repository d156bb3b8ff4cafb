"""`megalith explore` as a person meets it: answers, files, and one sentence for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands import megalith as command
from commands import run, sentence_of, unwrapped
from megalith.explore.load import load_job

JOBS = Path(__file__).parents[4] / "src/megalith/explore/jobs"

SMALL = {
    "name": "small",
    "model": "llama3-8b",
    "cluster": {
        "name": "two-racks",
        "device": "h100-80g",
        "levels": [
            {"name": "node", "count": 4, "link": "nvlink4"},
            {"name": "campus", "count": 2, "link": "wan-cross-campus"},
        ],
    },
    "global_batch": 16,
    "constraints": {"fixed": {"tp": 2, "cp": 1, "micro_batch": 1}},
}


def megalith(*arguments: object) -> subprocess.CompletedProcess[str]:
    return command("explore", *arguments)


def answered(*arguments: object) -> dict[str, Any]:
    done = megalith(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(*arguments: object) -> str:
    """The one sentence of a command that was refused."""
    return sentence_of(megalith(*arguments))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jobs") / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return path


def test_planning_needs_neither_torch_nor_arrow_nor_plotly(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code = (
        "import sys; from megalith.cli.app import app; "
        f"app(['explore', 'predict', 'gpt3-175b', '--report', {str(page)!r}], standalone_mode=False); "
        "print([m for m in ('torch', 'pyarrow', 'plotly') if m in sys.modules])"
    )
    done = run([sys.executable, "-c", code])
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
    assert page.exists()


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_job_is_valid_and_named_after_its_file(path: Path) -> None:
    assert load_job(path.stem).name == path.stem
    assert path.read_text().startswith("#")


def test_predict_says_first_how_sure_it_is() -> None:
    done = megalith("predict", "gpt3-175b")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    said = unwrapped(done.stdout)
    sure = next(number for number, line in enumerate(lines) if "how sure" in line)
    step = next(number for number, line in enumerate(lines) if "step" in line and "how sure" not in line)
    assert sure < step
    for word in (
        "MFU",
        "bound by",
        "Where the step goes",
        "pipeline bubble",
        "What crosses each level",
        "pp 8",
    ):
        assert word in said


def test_predict_prints_the_keys_of_the_design() -> None:
    found = answered("predict", "gpt3-175b")
    assert {
        "step_seconds",
        "model_tflops_per_gpu",
        "hardware_tflops_per_gpu",
        "mfu",
        "memory_bytes_per_device",
        "fits",
        "breakdown",
    } <= found.keys()
    assert sum(found["breakdown"].values()) == pytest.approx(found["step_seconds"])
    assert found["fits"] is True


def test_settings_on_the_command_line_replace_those_of_the_job() -> None:
    plain = answered("predict", "gpt3-175b")
    slower = answered("predict", "gpt3-175b", "parallel.vpp=1", "training.schedule=1f1b")
    assert slower["breakdown"]["pipeline_bubble"] > plain["breakdown"]["pipeline_bubble"]


def test_predict_writes_a_trace_and_a_page(tmp_path: Path) -> None:
    trace, page = tmp_path / "trace.json", tmp_path / "page.html"
    found = answered("predict", "gpt3-175b", "--trace", trace, "--report", page)
    events = json.loads(trace.read_text())["traceEvents"]
    ends = [event["ts"] + event["dur"] for event in events if event["ph"] == "X"]
    assert max(ends) / 1e6 == pytest.approx(found["step_seconds"], rel=1e-6)
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    assert '<svg class="pipeline"' in html


def test_search_writes_what_runs_each_of_the_best_plans(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "plans"
    result = answered("search", small, "--out", out)
    assert (out / "report.html").exists()
    folders = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert folders == [f"plan-{number}" for number in range(1, len(result["top"]) + 1)]
    for folder, plan in zip(folders, result["top"], strict=True):
        again = answered("predict", out / folder / "job.yaml")
        assert again["step_seconds"] == pytest.approx(plan["prediction"]["step_seconds"])
        assert plan["provenance"] in (out / folder / "job.yaml").read_text()
        toml = tomllib.loads((out / folder / "torchtitan.toml").read_text())
        assert toml["parallelism"]["tensor_parallel_degree"] == plan["job"]["parallel"]["tp"] == 2
        assert "pretrain_gpt.py" in (out / folder / "megatron.sh").read_text()
        assert (out / folder / "trace.json").stat().st_size > 100
    steps = [plan["prediction"]["step_seconds"] for plan in result["top"]]
    assert steps == sorted(steps)
    assert result["gap"] == pytest.approx(1 - result["lower_bound_seconds"] / steps[0])
    assert "exists already" in refused("search", small, "--out", out)


def test_search_explains_itself(small: Path) -> None:
    done = megalith("search", small)
    assert done.returncode == 0, done.stderr
    said = unwrapped(done.stdout)
    for words in ("how sure", "lower bound", "The best plans", "is bound", "next best", "Pareto front"):
        assert words in said
    assert "twice the FLOP/s of h100-80g" in said


def test_compare_says_what_differs_and_what_it_costs(tmp_path: Path) -> None:
    other = yaml.safe_load((JOBS / "gpt3-175b.yaml").read_text())
    other["name"] = "plain"
    other["parallel"]["vpp"] = 1
    other["training"]["schedule"] = "1f1b"
    path = tmp_path / "plain.yaml"
    path.write_text(yaml.safe_dump(other))
    found = answered("compare", "gpt3-175b", path)
    assert found["speed_up"] < 1
    assert [one["key"] for one in found["differences"]] == ["parallel.vpp", "training.schedule"]
    saved = sum(change["saved_seconds"] for change in found["changes"])
    steps = [found[side]["prediction"]["step_seconds"] for side in ("one", "other")]
    assert saved == pytest.approx(steps[0] - steps[1])
    done = megalith("compare", "gpt3-175b", path)
    said = unwrapped(done.stdout)
    assert "times slower than gpt3-175b" in said
    assert "training.schedule" in said


def test_compare_takes_a_cluster_instead_of_a_second_job() -> None:
    found = answered("compare", "gpt3-175b", "--cluster", "dgx-h100", "training.precision=bf16")
    assert found["speed_up"] > 1
    assert found["one"]["job"]["training"]["precision"] == "bf16"
    assert "second job" in refused("compare", "gpt3-175b")


def test_validate_replays_measurements_of_ones_own(tmp_path: Path) -> None:
    shipped = (JOBS.parent / "validation/llm_training.csv").read_text().splitlines()
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(shipped[:4]) + "\n")
    found = answered("validate", path)
    assert len(found["rows"]) == 3
    assert found["groups"]["all"]["worst"] == max(abs(row["error"]) for row in found["rows"])
    done = megalith("validate", path)
    assert "median" in done.stdout
    assert shipped[1].split(",")[0] in done.stdout


def test_catalog_lists_what_jobs_may_name() -> None:
    found = answered("catalog")
    assert "gpt3-175b" in found["models"]
    assert found["clusters"]["two-buildings"]["devices"] == 4096
    assert set(found["jobs"]) == {path.stem for path in JOBS.glob("*.yaml")}
    assert "two-buildings" in megalith("catalog").stdout


def test_this_machine_joins_the_catalog(tmp_path: Path) -> None:
    found = answered("catalog", "--probe", tmp_path / "mine.yaml")
    assert found["clusters"]["this-machine"]["devices"] == 1
    assert "this-machine" in answered("catalog", "--hardware", tmp_path / "mine.yaml")["devices"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gpt3-175c"], "gpt3-175b"),
        (["missing.yaml"], "missing.yaml does not exist"),
        (["gpt3-175b", "cluster.device=a100-80gb"], "a100-80g"),
        (["gpt3-175b", "parallel.dp=2"], "devices"),
        (["gpt3-175b", "parallel.tpp=2"], "did you mean 'tp'"),
        (["gpt3-175b", "training.schedule=zb-h3"], "zb-h"),
        (["gpt3-175b", "parallel.global_batch=63"], "63"),
        (["gpt3-175b", "parallel={tp: 1, pp: 1, dp: 64, global_batch: 64, micro_batch: 1}"], "GiB"),
        (["gpt3-175b", "cluster.levels=[{name: a, count: 64, link: nvlink3, latency_seconds: -1}]"],
         "latency_seconds"),
        (["deepseek-v3-two-regions"], "parallel"),
    ],
)  # fmt: skip
def test_mistakes_get_one_sentence(arguments: list[str], words: str) -> None:
    assert words in refused("predict", *arguments)


def test_an_unknown_scenario_is_refused_before_any_is_run() -> None:
    assert "70b-2-buildings-1k-1to1" in refused("scenarios", "70b-2-building-1k-1to1")


def test_jobs_that_share_a_link_are_predicted_together(tmp_path: Path) -> None:
    parallel = {"tp": 2, "dp": 4, "global_batch": 16}
    jobs = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for job in jobs:
        settings = {key: value for key, value in SMALL.items() if key not in ("global_batch", "constraints")}
        job.write_text(yaml.safe_dump({**settings, "parallel": parallel}))
    both = answered("share", *jobs)
    alone = answered("predict", jobs[0])
    assert len(both["jobs"]) == 2
    for job in both["jobs"]:
        assert job["alone_seconds"] == alone["step_seconds"]
        assert job["shared_seconds"] >= job["alone_seconds"]
