"""`megalith bench adaptive`: goes on where it stopped, sums up over seeds, draws quality against bytes."""

import json

import pytest
from typer.testing import CliRunner

from commands import megalith, unwrapped
from megalith.bench.adaptive.sizing import CLOSE, sized_ratio
from megalith.bench.adaptive.suite import GridSettings, bench_adaptive
from megalith.bench.adaptive.summary import summarise
from megalith.cli.app import app
from megalith.core.errors import ConfigError
from megalith.core.files import read_jsonl
from megalith.report import write_bench_report

GRID = GridSettings(("none", "hashing"), (4.0, 40000.0), seeds=2)


@pytest.fixture(scope="module")
def finished(tiny_recipe, tmp_path_factory):
    """A grid whose first call had time for nothing and whose file a kill cut short."""
    out = tmp_path_factory.mktemp("grid")
    first = bench_adaptive(tiny_recipe, GridSettings(("hashing",), (4.0,), seeds=1), out)
    assert first["results"]["ran"] == 1
    with (out / "runs.jsonl").open("a") as file:
        file.write('{"method": "hash')
    return out, bench_adaptive(tiny_recipe, GRID, out)


def test_runs_that_have_ended_are_not_run_again(finished, tiny_recipe):
    out, content = finished
    assert content["results"]["ran"] == 5
    assert content["results"]["left"] == 0
    assert len(read_jsonl(out / "runs.jsonl")) == 6
    again = bench_adaptive(tiny_recipe, GRID, out)
    assert again["results"]["ran"] == 0
    assert again["results"]["rows"] == content["results"]["rows"]


def test_no_run_begins_when_the_minutes_are_over(tiny_recipe, tmp_path):
    settings = GridSettings(("hashing",), (4.0,), seeds=2, budget_minutes=0)
    results = bench_adaptive(tiny_recipe, settings, tmp_path / "grid")["results"]
    assert results["left"] == 2
    assert results["rows"][0]["mean"] is None


def test_a_folder_of_another_recipe_is_refused(finished, tiny_recipe):
    out, _ = finished
    other = tiny_recipe.model_copy(update={"name": "other"})
    with pytest.raises(ConfigError, match="another recipe"):
        bench_adaptive(other, GRID, out)


def test_what_is_too_small_is_marked_and_the_rest_has_means(finished):
    _, content = finished
    rows = {(row["method"], row["ratio"]): row for row in content["results"]["rows"]}
    assert "infeasible" in rows["hashing", 40000.0]
    assert rows["hashing", 4.0]["seeds"] == 2
    assert rows["hashing", 4.0]["standard_error"] > 0
    assert rows["hashing", 4.0]["true_ratio"] >= 4
    assert rows["none", 1.0]["against_dense"] == 0


def test_means_and_standard_errors():
    def record(value, total):
        return {
            "quality": {"test": {"auc": value}},
            "bytes": {"total": total, "weights": 10},
            "dense_bytes": 400,
            "budget_bytes": 100,
            "settings": {},
        }

    points = [{"method": "rows", "ratio": 4.0}] * 3
    (row,) = summarise(points, [record(0.8, 90), record(0.9, 110), None], "auc")
    assert row["mean"] == pytest.approx(0.85)
    assert row["standard_error"] == pytest.approx(0.05)
    assert row["missing"] == 1
    assert row["over_budget"]
    assert row["true_ratio"] == 4


def test_adaptive_tables_are_compared_seed_by_seed():
    def record(value):
        own = {"total": 10, "weights": 10}
        return {"quality": {"test": {"log_loss": value}}, "bytes": own} | _SIZES

    points = [{"method": name, "ratio": 4.0} for name in ("adaptive", "rows") for _ in range(3)]
    records = [record(0.50), record(0.60), None, record(0.52), record(0.64), record(0.70)]
    ours, rows = summarise(points, records, "log_loss")
    assert "adaptive_gain" not in ours
    assert rows["adaptive_gain"] == pytest.approx(0.03)
    assert rows["adaptive_gain_error"] == pytest.approx(0.01)


_SIZES = {"dense_bytes": 40, "dense_weight_bytes": 30, "budget_bytes": 10, "settings": {}}


def test_weights_alone_are_sized_by_trying():
    def size_of(ratio):
        # Weights shrink faster than all bytes, which have a part that does not.
        return {"dense_weight_bytes": 1e6, "bytes": {"weights": 1e6 / ratio**1.2}}

    found = sized_ratio(16, size_of)
    assert found**1.2 == pytest.approx(16, rel=CLOSE)
    assert sized_ratio(16, lambda _: None) is None
    assert sized_ratio(16, lambda _: {"infeasible": "too small"}) == 16


def test_ratios_of_weights_alone(tiny_recipe, tmp_path):
    methods = ("none", "small_dim", "magnitude")
    settings = GridSettings(methods, (4.0,), seeds=1, charge="weights")
    results = bench_adaptive(tiny_recipe, settings, tmp_path / "grid")["results"]
    rows = {row["method"]: row for row in results["rows"]}
    assert rows["magnitude"]["weight_ratio"] == pytest.approx(4, rel=0.1)
    # Whole columns: of 8 there are 2.
    assert rows["small_dim"]["weight_ratio"] == pytest.approx(4, rel=0.1)
    assert rows["none"]["weight_ratio"] == 1


def test_the_command_tunes_all_methods_alike_and_draws_a_picture(tail_data, tiny_recipe, tmp_path):
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(json.dumps(tiny_recipe.model_dump(mode="json", exclude_unset=True)))
    out = tmp_path / "grid"
    options = ["--data", str(tail_data), "--recipe", str(recipe), "--methods", "none,hashing,small_dim"]
    options += ["--ratios", "4", "--seeds", "1", "--tuning", "2", "--out", str(out)]
    done = CliRunner().invoke(app, ["bench", "adaptive", "train.steps=6", *options])
    assert done.exit_code == 0, done.output
    shown = unwrapped(done.stdout)
    assert "hashing: 2 tuning runs" in shown
    assert "small_dim: 2 tuning runs" in shown
    content = json.loads((out / "result.json").read_text())
    assert {"machine", "versions", "settings"} <= content.keys()
    page = (out / "report.html").read_text()
    assert "quality-bytes" in page
    assert len(read_jsonl(out / "runs.jsonl")) == 6


def test_an_infeasible_method_is_named_under_the_picture(finished, tmp_path):
    _, content = finished
    (tmp_path / "result.json").write_text(json.dumps(content))
    write_bench_report(tmp_path / "result.json", tmp_path / "report.html")
    assert "Infeasible: hashing at 40000x" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--methods", "hashin"], "hashing"),
        (["--ratios", "four"], "--ratios"),
        (["--tuning", "9"], "--tuning"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(options, sentence, tail_data, tmp_path):
    done = megalith("bench", "adaptive", "--data", str(tail_data), *options, "--out", str(tmp_path / "grid"))
    assert done.returncode == 2
    assert sentence in unwrapped(done.stderr)
