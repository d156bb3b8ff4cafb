"""`megalith diff`: a run and what was frozen of it, on carried, given and recorded rows."""

from __future__ import annotations

import json

import pytest
from scored_runs import make_place
from typer.testing import CliRunner

from megalith.cli.app import app
from megalith.core.errors import ConfigError, DataError
from megalith.export.backends.checks import recorded_checks
from megalith.export.folder import FrozenModel
from megalith.serve.front.recorder import RecordedRequest, write_requests
from megalith.train.freezing.freeze import FreezeRequest, freeze_run


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("scored"), lists=True)


@pytest.fixture(scope="module")
def models(place, tmp_path_factory):
    """The run frozen in float32 and in few bits."""
    folder = tmp_path_factory.mktemp("models")
    run = place.folder / "run"
    freeze_run(FreezeRequest(run, folder / "whole", {"*": "float32"}, user=("user",)))
    freeze_run(FreezeRequest(run, folder / "few", {"*": "int8"}, dense="int8", user=("user",), budget=1.0))
    return folder


def diff(*words) -> tuple[int, dict]:
    result = CliRunner().invoke(app, ["diff", *map(str, words), "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, json.loads(result.stdout)


def test_a_run_and_its_float32_model_have_equal_tables_and_differ_by_rounding_of_sums(place, models):
    code, found = diff(place.folder / "run", models / "whole")
    assert code == 0
    assert found["first_different"] is None
    tables = [each for each in found["places"] if each["kind"] == "table"]
    assert tables
    assert all(each["equal"] for each in tables)


def test_a_run_and_its_int8_model_differ_from_the_first_table_on_as_precisions_explain(place, models):
    code, found = diff(place.folder / "run", models / "few")
    assert code == 0
    assert found["first_unequal"] == found["places"][0]["name"]
    assert diff(place.folder / "run", models / "few", "--tolerance", "0")[0] == 1


def test_rows_are_given_raw_prepared_or_as_recorded_requests(place, models, tmp_path):
    pair = (models / "whole", models / "few")
    raw = diff(*pair, "--rows", place.test, "--samples", "50")[1]
    prepared = diff(*pair, "--rows", place.folder / "data", "--split", "test", "--samples", "50")[1]
    assert raw["samples"] == prepared["samples"] == 50
    assert raw["places"] == prepared["places"]
    request = recorded_checks(FrozenModel(models / "few"))[0]
    inputs = {name: getattr(request, name).numpy() for name in ("dense", "values", "lengths")}
    write_requests(tmp_path / "kept", [RecordedRequest("few", {}), RecordedRequest("few", inputs)])
    recorded = diff(*pair, "--requests", tmp_path / "kept", "--number", "1")[1]
    assert recorded["places"] == diff(*pair)[1]["places"]
    with pytest.raises(DataError, match="has 2 requests"):
        diff(*pair, "--requests", tmp_path / "kept", "--number", "2")
    with pytest.raises(DataError, match="no ids"):
        diff(*pair, "--requests", tmp_path / "kept")


def test_one_model_is_compared_on_two_backends(models):
    code, found = diff(models / "whole", "--backend", "native", "--backend", "torch")
    assert code == 0
    assert found["first"].endswith("on native")
    assert found["second"].endswith("on torch")


def test_what_is_printed_names_the_first_that_differs(place, models):
    result = CliRunner().invoke(
        app, ["diff", str(place.folder / "run"), str(models / "few"), "--tolerance", "0"]
    )
    assert result.exit_code == 1
    assert "The first that differs: table " in result.stdout


def test_what_cannot_be_compared_is_refused_with_what_to_do(place, models):
    for words, said in (
        ((models / "few",), "two backends"),
        (
            (place.folder / "run", models / "few", "--backend", "native", "--backend", "torch"),
            "a run has none",
        ),
        ((models / "few", models / "whole", "--checkpoint", "last"), "leave it out"),
        ((models / "few", models / "whole", "--split", "test"), "--rows"),
        ((place.folder / "run", place.folder / "run"), "Neither model carries samples"),
    ):
        with pytest.raises(ConfigError, match=said):
            diff(*words)
