"""What the page of a run says first, its axes, and tables without empty columns."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from megalith.report.charts.axes import byte_axis, label_axis, log_axis, samples_axis
from megalith.report.charts.embedding_tables import size_chart, traffic_chart
from megalith.report.charts.speed import format_time
from megalith.report.collect import RunFacts, collect
from megalith.report.html_tables import table_html
from megalith.report.page import render


@pytest.fixture
def facts(two_runs: tuple[Path, Path]) -> RunFacts:
    return collect(two_runs[0])


def figures_of(text: str) -> dict[str, dict]:
    content = re.search(r'id="charts">(.*?)</script>', text, re.DOTALL)
    assert content
    return {chart["key"]: chart["figure"] for chart in json.loads(content[1])}


def test_the_title_is_the_recipe_and_the_folder(facts: RunFacts) -> None:
    text = render(facts)
    assert "<title>demo \u00b7 first \u00b7 Megalith report</title>" in text
    heading = re.search(r"<h1>(.*?)</h1>", text)
    assert heading
    assert re.sub("<.*?>", "", heading[1]) == "demo \u00b7 first"
    assert f'title="{facts.folder}"' in heading[1]


def test_a_folder_named_as_its_recipe_is_said_once(facts: RunFacts) -> None:
    text = render(replace(facts, folder=facts.folder.with_name("demo")))
    assert "<title>demo \u00b7 Megalith report</title>" in text
    heading = re.search(r"<h1>(.*?)</h1>", text)
    assert heading
    assert re.sub("<.*?>", "", heading[1]) == "demo"


def test_a_table_of_several_features_has_the_traffic_of_each(facts: RunFacts) -> None:
    first, second, *others = facts.tables.tables
    features = (*first.features, *second.features)
    shared = replace(first, name="item", features=features, traffic=(*first.traffic, *second.traffic))
    chart = traffic_chart(replace(facts, tables=replace(facts.tables, tables=(shared, *others))))
    assert chart is not None
    assert {f"item: {name}" for name in features} < set(chart.figure["data"][0]["y"])


def test_the_best_step_is_named_first_and_marked_in_every_curve(facts: RunFacts) -> None:
    best = min(facts.evaluations, key=lambda entry: entry["ne"])
    assert facts.headline()["best_step"] == facts.summary["best_step"] == best["step"]
    text = render(facts)
    assert f"Best step {best['step']:,}" in text
    assert f"NE {best['ne']:.4f} on valid" in text
    figures = figures_of(text)
    for key in ("ne", "log_loss", "auc"):
        (mark,) = [trace for trace in figures[key]["data"] if trace.get("mode") == "markers"]
        assert (mark["x"], mark["y"]) == ([best["trained_samples"]], [best[key]])
        assert mark["name"] == f"best step {best['step']}"


def test_the_best_so_far_is_marked_in_a_run_without_a_summary(facts: RunFacts) -> None:
    going_on = replace(facts, summary={}, evaluations=facts.evaluations[:2])
    best = min(facts.evaluations[:2], key=lambda entry: entry["ne"])
    assert going_on.best_step == best["step"]
    assert replace(facts, summary={}, evaluations=[]).best_step is None
    assert "Best step" not in render(replace(facts, summary={}, evaluations=[]))


def test_a_run_of_two_epochs_has_them_in_its_ticks(facts: RunFacts) -> None:
    axis = figures_of(render(facts))["ne"]["layout"]["xaxis"]
    assert axis["tickvals"] == [0, 2000, 4000]
    assert axis["ticktext"] == ["0", "2k<br>epoch 1", "4k<br>epoch 2"]


def test_one_epoch_needs_no_numbers_and_many_are_thinned() -> None:
    assert "tickvals" not in samples_axis(1000.0, 1000.0)
    assert "tickvals" not in samples_axis(None, 1000.0)
    many = samples_axis(1000.0, 100_000.0)
    assert 4 <= len(many["tickvals"]) <= 8
    assert many["ticktext"][-1].endswith(f"epoch {int(many['tickvals'][-1] / 1000)}")


def test_columns_without_a_value_are_left_out() -> None:
    rows = [["valid", "\u2013", "1", ""], ["test", "-", "\u2013", ""]]
    text = table_html(["split", "best", "rows", "note"], rows)
    assert re.findall(r"<th [^>]*>(.*?)</th>", text) == ["split", "rows"]
    assert re.findall(r"<td>(.*?)</td>", text) == ["valid", "1", "test", "\u2013"]


def test_real_data_without_a_planted_truth_has_no_column_for_it(
    two_runs: tuple[Path, Path], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(two_runs[0], tmp_path / "run"))
    assert ">Best NE<" in render(collect(run))
    final = json.loads((run / "evaluation-valid.json").read_text())
    plain = {
        key: value for key, value in final.items() if key not in ("best_ne", "best_log_loss", "above_best")
    }
    (run / "evaluation-valid.json").write_text(json.dumps(plain))
    text = render(collect(run))
    assert ">Best NE<" not in text
    assert ">Above best<" not in text
    assert ">Log loss<" in text


def test_tables_without_traffic_have_no_columns_of_it(facts: RunFacts) -> None:
    tables = tuple(replace(table, traffic=()) for table in facts.tables.tables)
    text = render(replace(facts, tables=replace(facts.tables, tables=tables)))
    assert "Top 10<" in render(facts)
    assert "Top 10<" not in text
    assert ">Bytes</button>" in text


@pytest.mark.parametrize("highest", [1, 300, 5_000, 3e6, 7.7e9, 4e12])
def test_axes_of_bytes_have_round_ticks_that_all_differ(highest: float) -> None:
    axis = byte_axis(highest)
    assert all(re.fullmatch(r"\d+(\.5)? ([KMGT]i)?B", text) for text in axis["ticktext"])
    assert len(set(axis["ticktext"])) == len(axis["ticktext"]) >= 2
    assert axis["tickvals"][0] == 0
    assert axis["range"][1] >= highest


def test_long_names_are_cut_beside_bars_and_in_tables_and_whole_on_hover(facts: RunFacts) -> None:
    name = "user_history_of_<categories>_" * 4
    table = replace(facts.tables.tables[0], name=name)
    renamed = replace(facts, tables=replace(facts.tables, tables=(table, *facts.tables.tables[1:])))
    for chart in (size_chart(renamed), traffic_chart(renamed)):
        assert chart is not None
        shown = chart.figure["layout"]["yaxis"]
        cut = shown["ticktext"][shown["tickvals"].index(name)]
        assert len(cut.strip()) <= 26
        assert "\u2026" in cut
        assert name in str(chart.figure["data"][0]["customdata"])
    titles = re.findall(r'<span title="(.*?)">(.*?)</span>', render(renamed))
    assert any(unescape(whole) == name and len(unescape(cut)) < len(name) for whole, cut in titles)
    assert label_axis(["short"])["ticktext"] == ["short  "]


def test_short_times_are_not_shown_as_zero() -> None:
    assert [format_time(seconds) for seconds in (0.0042, 1.234, 75.82, 140, 3725)] == [
        "4.2 ms",
        "1.23 s",
        "75.8 s",
        "2:20",
        "1:02:05",
    ]


@pytest.mark.parametrize("values", [[3.0, 4.0], [1.2, 140.0], [0.003, 9000.0]])
def test_logarithmic_axes_have_whole_numbers_at_few_ticks(values: list[float]) -> None:
    axis = log_axis(values, "ms")
    assert 1 <= len(axis["tickvals"]) <= 13
    assert [float(text) for text in axis["ticktext"]] == pytest.approx(axis["tickvals"])
    low, high = (10**end for end in axis["range"])
    assert low < min(values) < max(values) < high
    assert all(low <= tick <= high for tick in axis["tickvals"])
