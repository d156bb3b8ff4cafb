"""Several runs on one page, as `megalith report A B` draws and prints them."""

from __future__ import annotations

import doctest
import json
import re
import shutil
from html import unescape
from pathlib import Path

import pytest

from commands import megalith
from megalith.core.errors import ConfigError
from megalith.report import write_comparison
from megalith.report.compare import facts
from megalith.report.compare.facts import ResultColumn, RunComparison, compare, differences, distinct_names

Runs = tuple[Path, Path]


def figures_of(page: Path) -> dict[str, dict]:
    content = re.search(r'id="charts">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert content
    return {chart["key"]: chart["figure"] for chart in json.loads(content[1])}


def results_of(page: Path) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of the first table."""
    text = page.read_text(encoding="utf-8")
    table = text[text.index("<table") : text.index("</table>")]
    heads = [unescape(head) for head in re.findall(r"<th [^>]*>(.*?)</th>", table)]
    body = re.findall(r"<tr>(.*?)</tr>", table[table.index("<tbody>") :])
    return heads, [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in body]


def test_the_command_draws_and_prints_the_comparison(two_runs: Runs, tmp_path: Path) -> None:
    page = tmp_path / "compare.html"
    done = megalith("report", *two_runs, "--out", page, "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["out"] == str(page)
    assert [run["name"] for run in printed["runs"]] == ["first", "second"]
    for run, folder in zip(printed["runs"], two_runs, strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        final = json.loads((folder / "evaluation-valid.json").read_text())
        assert (run["steps"], run["best_step"]) == (summary["step"], summary["best_step"])
        assert (run["table_bytes"], run["dense_weights"]) == (
            summary["table_bytes"],
            summary["dense_parameters"],
        )
        assert (run["valid.ne"], run["valid.auc"]) == (final["ne"], final["auc"])
    heads, rows = results_of(page)
    assert {"recipe", "steps", "best step", "NE, valid", "AUC, valid", "samples/s", "tables", "time"} <= {
        *heads
    }
    assert [row[0] for row in rows] == ["first", "second"]


def test_the_best_of_each_column_is_marked(two_runs: Runs, tmp_path: Path) -> None:
    page = tmp_path / "compare.html"
    printed = write_comparison(two_runs, page)
    heads, rows = results_of(page)
    first, second = printed["runs"]
    for head, key, better in (
        ("NE, valid", "valid.ne", min),
        ("log loss, valid", "valid.log_loss", min),
        ("AUC, valid", "valid.auc", max),
        ("samples/s", "samples_per_second", max),
        ("tables", "table_bytes", min),
    ):
        at = heads.index(head)
        marked = ["<mark>" in row[at] for row in rows]
        best = better(first[key], second[key])
        assert marked == [first[key] == best, second[key] == best], head
    assert not any("<mark>" in row[heads.index("steps")] for row in rows)


def test_ties_are_all_marked_and_equal_columns_not_at_all(two_runs: Runs) -> None:
    comparison = compare(two_runs)
    column = ResultColumn("x", "x", str, float)

    def best(*values: float | None) -> list[int]:
        rows = tuple({"x": value} for value in values)
        return RunComparison((), comparison.runs, (column,), rows, {}).best(column)

    assert best(2.0, 1.0, 1.0) == [1, 2]
    assert best(1.0, 1.0) == []
    assert best(None, 1.0) == []
    assert best(None, 1.0, 3.0) == [1]


def test_calibration_is_best_nearest_to_one(two_runs: Runs) -> None:
    (column,) = [one for one in compare(two_runs).columns if one.key == "valid.calibration"]
    assert column.badness is not None
    assert column.badness(0.98) < column.badness(1.05) < column.badness(0.9)


def test_every_run_has_one_colour_in_all_curves(two_runs: Runs, tmp_path: Path) -> None:
    write_comparison(two_runs, tmp_path / "page.html")
    figures = figures_of(tmp_path / "page.html")
    assert set(figures) == {"compare-ne", "compare-log_loss", "compare-auc"}
    colours: dict[str, set[str]] = {}
    for figure in figures.values():
        for trace in figure["data"]:
            colours.setdefault(trace["name"], set()).add(trace["marker"]["color"])
        shown = [trace["name"] for trace in figure["data"] if trace.get("showlegend", True)]
        assert shown == ["first", "second"]
    assert all(len(used) == 1 for used in colours.values())
    assert colours["first"] != colours["second"]


def test_only_keys_that_differ_are_listed(two_runs: Runs, tmp_path: Path) -> None:
    printed = write_comparison(two_runs, tmp_path / "page.html")
    assert printed["differences"] == {
        "data.batch_size": {"first": 200, "second": 400},
        "model.dim": {"first": 8, "second": 16},
        "dense.lr": {"first": 0.001, "second": 0.02},
    }
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<td>model.dim</td><td>8</td><td>16</td>" in text
    assert "<td>train.epochs</td>" not in text


def test_groups_that_a_recipe_lacks_are_compared_key_by_key() -> None:
    assert doctest.testmod(facts).failed == 0
    assert differences([{"memory": None, "a": 1}, {"memory": {"dram": 5}, "a": 1}]) == {
        "memory.dram": [None, 5]
    }
    assert differences([{"layers": [1, 2]}, {"layers": [1, 2]}]) == {}


def test_runs_of_one_name_are_told_apart_and_the_same_run_twice_is_refused(
    two_runs: Runs, tmp_path: Path
) -> None:
    shutil.copytree(two_runs[0], tmp_path / "a" / "run")
    shutil.copytree(two_runs[1], tmp_path / "b" / "run")
    assert compare([tmp_path / "a" / "run", tmp_path / "b" / "run"]).names == ("a/run", "b/run")
    assert distinct_names([Path("/x/one"), Path("/x/two")]) == ["one", "two"]
    with pytest.raises(ConfigError, match="is named twice"):
        compare([two_runs[0], two_runs[0] / ".." / two_runs[0].name])


def test_a_run_without_results_is_compared_as_far_as_it_goes(two_runs: Runs, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(two_runs[0] / "config.yaml", begun)
    printed = write_comparison([two_runs[1], begun], tmp_path / "page.html")
    assert printed["runs"][1]["status"] == "not finished"
    assert printed["runs"][1]["valid.ne"] is None
    assert printed["notes"] == ["Not finished: begun."]
    assert "compare-ne" in figures_of(tmp_path / "page.html")


def test_other_data_is_said_to_be_other(two_runs: Runs, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(two_runs[0], tmp_path / "moved"))
    config = (moved / "config.yaml").read_text()
    (moved / "config.yaml").write_text(re.sub(r"path: .*", f"path: {tmp_path / 'gone'}", config, count=1))
    notes = write_comparison([two_runs[1], moved], tmp_path / "page.html")["notes"]
    assert notes == ["The runs read different data: their metrics are not of the same samples."]


def test_names_cannot_break_out_of_the_page(two_runs: Runs, tmp_path: Path) -> None:
    strange = Path(shutil.copytree(two_runs[0], tmp_path / "<b onload=alert(1)>"))
    write_comparison([two_runs[1], strange], tmp_path / "page.html")
    assert "<b onload" not in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("wrong", ["file", "trace", "nothing"])
def test_what_cannot_be_compared_is_one_sentence(two_runs: Runs, tmp_path: Path, wrong: str) -> None:
    (tmp_path / "result.json").write_text("{}")
    arguments: dict[str, list[Path | str]] = {
        "file": [two_runs[0], tmp_path / "result.json"],
        "trace": [*two_runs, "--chrome-trace", tmp_path / "trace.json"],
        "nothing": [two_runs[0], tmp_path / "nothing"],
    }
    done = megalith("report", *arguments[wrong], "--out", tmp_path / "page.html")
    assert done.returncode == 2
    words = {"file": "is a file", "trace": "--chrome-trace", "nothing": "does not exist"}
    assert words[wrong] in " ".join(done.stderr.split())
    assert not (tmp_path / "page.html").exists()
