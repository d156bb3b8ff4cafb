"""A report of a real small run, and of runs that lack one thing or another."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from megalith.core.errors import ConfigError, DataError
from megalith.data.synth.generate import generate
from megalith.data.synth.options import SynthOptions
from megalith.report import write_report
from megalith.report.charts.lines import thin
from megalith.report.collect import collect
from megalith.report.timing import read_time_spent
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer

LEARNING = {"ne", "log_loss", "auc", "calibration"}
CHARTS = LEARNING | {"rate", "time", "step", "waiting", "rank-memory", "resident", "sizes", "traffic"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    options = SynthOptions("criteo", train_rows=4000, valid_rows=1000, test_rows=1000)
    generate(options, folder / "data", threads=1)
    overrides = ["data.batch_size=200", "train.log_every=1", "train.eval_every=7", "train.tensorboard=false"]
    recipe = load_recipe("demo", [f"data.path={folder / 'data'}", *overrides])
    run = RunFolder(folder / "run")
    Trainer(recipe, run).train()
    return run.folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy to take things out of."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def charts_of(page: Path) -> dict[str, dict]:
    content = re.search(r'id="charts">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert content
    return {chart["key"]: chart["figure"] for chart in json.loads(content[1])}


def test_a_complete_run_has_every_chart_and_none_is_empty(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    headline = write_report(run, page)
    figures = charts_of(page)
    assert set(figures) == CHARTS
    for key, figure in figures.items():
        for trace in figure["data"]:
            assert len(trace["x"]) == len(trace["y"]) > 0, (key, trace.get("name"))
    assert headline["split"] == "valid"
    assert headline["ne"] > headline["best_ne"]


def test_the_page_asks_the_network_for_nothing(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report(run, page)
    # Addresses inside plotly.js are text that these charts never follow; elements that load are what counts.
    own = re.sub(r"<script>.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=\"(?!data:,)", own)
    assert "@import" not in own
    assert "url(" not in own


def test_the_page_names_every_table_with_its_size(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report(run, page)
    facts = collect(run)
    text = page.read_text(encoding="utf-8")
    assert len(facts.tables.tables) == 26
    for table in facts.tables.tables:
        assert f'data-value="{table.weight_bytes}"' in text
        assert len(table.traffic) == 1


def test_time_adds_up_to_what_the_summary_says(run: Path) -> None:
    facts = collect(run)
    assert facts.time_spent is not None
    assert facts.time_spent.steps == facts.step == 20
    spans = [json.loads(line) for line in (run / "trace.jsonl").read_text().splitlines()]
    parts = facts.time_spent.parts
    last = max(span["start"] + span["duration"] for span in spans if span["name"] in parts)
    assert facts.seconds == pytest.approx(max(facts.summary["seconds"], last))
    assert facts.time_spent.other_seconds < facts.seconds


def test_traffic_shares_add_up_to_all_lookups(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report(run, page)
    traces = charts_of(page)["traffic"]["data"]
    for shares in zip(*(trace["x"] for trace in traces), strict=True):
        assert sum(shares) == pytest.approx(100, abs=0.01)
        assert min(shares) >= 0


@pytest.mark.parametrize("lost", ["evaluation-valid.json", "summary.json", "trace.jsonl", "metrics.jsonl"])
def test_a_run_without_one_of_its_files_still_has_a_report(run: Path, tmp_path: Path, lost: str) -> None:
    (run / lost).unlink()
    page = tmp_path / "report.html"
    write_report(run, page)
    assert {"sizes", "traffic"} <= set(charts_of(page))


def test_a_run_that_has_only_begun_has_a_report(run: Path, tmp_path: Path) -> None:
    for path in run.iterdir():
        if path.name != "config.yaml":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    page = tmp_path / "report.html"
    headline = write_report(run, page)
    assert headline["status"] == "not finished"
    assert headline["step"] == 0


def test_one_line_of_metrics_is_enough(run: Path, tmp_path: Path) -> None:
    (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text().splitlines()[0] + "\n")
    (run / "evaluation-valid.json").unlink()
    page = tmp_path / "report.html"
    write_report(run, page)
    assert charts_of(page)["ne"]["data"][0]["mode"] == "lines+markers"


def test_a_stopped_run_says_by_what(run: Path, tmp_path: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    summary |= {"finished": False, "stopped_by": "SIGTERM"}
    (run / "summary.json").write_text(json.dumps(summary))
    page = tmp_path / "report.html"
    assert write_report(run, page)["status"] == "stopped by SIGTERM"
    assert "stopped by SIGTERM" in page.read_text(encoding="utf-8")


def test_a_diverged_run_has_a_report(run: Path, tmp_path: Path) -> None:
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(re.sub(r'"loss": [\d.]+', '"loss": NaN', text))
    page = tmp_path / "report.html"
    write_report(run, page)
    assert "log_loss" in charts_of(page)


def test_a_half_written_trace_is_read_as_far_as_it_goes(run: Path) -> None:
    whole = collect(run).time_spent
    text = (run / "trace.jsonl").read_text()
    (run / "trace.jsonl").write_text(text[:-40])
    half = collect(run).time_spent
    assert whole is not None
    assert half is not None
    assert sum(half.parts.values()) < sum(whole.parts.values())


def test_sessions_of_a_resumed_run_are_added_up(run: Path) -> None:
    text = (run / "trace.jsonl").read_text()
    once = collect(run).time_spent
    (run / "trace.jsonl").write_text(text + text)
    twice = collect(run).time_spent
    assert once is not None
    assert twice is not None
    assert (once.sessions, twice.sessions) == (1, 2)
    assert twice.parts["step"] == pytest.approx(2 * once.parts["step"])


def test_sessions_that_look_like_one_take_no_less_than_their_parts(tmp_path: Path) -> None:
    """Two processes of one number, of which the second began to read when the first had ended."""
    spans = [("read", 0.1, 0.4), ("step", 0.5, 2.5), ("read", 0.6, 1.0), ("step", 1.6, 2.0)]
    trace = tmp_path / "trace.jsonl"
    lines = [
        json.dumps({"name": name, "start": at, "duration": taken, "process": 7}) + "\n"
        for name, at, taken in spans
    ]
    trace.write_text("".join(lines[:2]))
    one = read_time_spent(trace)
    assert one is not None
    assert (one.total_seconds, one.other_seconds) == (pytest.approx(3.0), pytest.approx(0.1))
    trace.write_text("".join(lines))
    both = read_time_spent(trace)
    assert both is not None
    assert (both.sessions, both.total_seconds, both.other_seconds) == (1, pytest.approx(5.9), 0)


def test_data_that_moved_is_a_note_on_the_page(run: Path, tmp_path: Path) -> None:
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(re.sub(r"path: .*", f"path: {tmp_path / 'gone'}", config))
    page = tmp_path / "report.html"
    write_report(run, page)
    assert "gone is not there any more" in page.read_text(encoding="utf-8")
    # The run knows its tables without the data.
    assert "sizes" in charts_of(page)
    shutil.rmtree(run / "inputs")
    write_report(run, page)
    assert "is not a prepared data set" in page.read_text(encoding="utf-8")
    assert "sizes" not in charts_of(page)


def test_names_cannot_break_out_of_the_page(run: Path, tmp_path: Path) -> None:
    strange = tmp_path / "<script>alert(1)</script>"
    shutil.copytree(run, strange / "run")
    config = (run / "config.yaml").read_text()
    (strange / "run" / "config.yaml").write_text(
        re.sub(r"path: .*", lambda _: f"path: '{strange}'", config), encoding="utf-8"
    )
    page = tmp_path / "report.html"
    write_report(strange / "run", page)
    assert "<script>alert(1)" not in page.read_text(encoding="utf-8")


def test_what_is_not_a_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        write_report(tmp_path / "nothing", tmp_path / "report.html")
    with pytest.raises(ConfigError, match="is not a run"):
        write_report(tmp_path, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_damaged_file_is_named_and_the_old_report_stays(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report(run, page)
    before = page.read_bytes()
    (run / "evaluation-valid.json").write_text('{"split": ')
    with pytest.raises(DataError, match=r"evaluation-valid\.json is not JSON"):
        write_report(run, page)
    assert page.read_bytes() == before
    assert list(tmp_path.glob(".*partial*")) == []


def test_long_curves_are_thinned_and_keep_their_end() -> None:
    points = [(float(place), place) for place in range(10_001)]
    kept = thin(points, 100)
    assert len(kept) <= 102
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert thin(points[:3], 100) == points[:3]
    assert thin([], 100) == []
