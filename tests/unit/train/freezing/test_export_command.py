"""`megalith export` and what reads its folders: options, the gate, refusals, scores of raw rows."""

from __future__ import annotations

import json
import shutil
import signal

import numpy as np
import polars
import pyarrow.parquet as pq
import pytest
import torch
from scored_runs import make_place, predicted
from typer.testing import CliRunner

import megalith as mg
from forked import Forked, signalled_at_call
from megalith.cli.app import app
from megalith.core.errors import ConfigError, DataError, QualityError, ServeError
from megalith.core.files import sync_tree
from megalith.export.backends.checks import recorded_checks
from megalith.export.folder import FrozenModel, list_files, write_manifest
from megalith.export.gate.costs import logits_of
from megalith.export.gate.gate import Gate
from megalith.export.program import Linear
from megalith.export.tables import freeze_table
from megalith.export.tensor_file import write_tensors
from megalith.report.model_page import write_model_report
from megalith.train.freezing.freeze import FreezeRequest, freeze_run
from megalith.train.freezing.precisions import dense_precision, table_precisions


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("scored"), lists=True)


@pytest.fixture(scope="module")
def model(place, tmp_path_factory):
    """Frozen in float32: scores of the run, to the bit."""
    out = tmp_path_factory.mktemp("model") / "m"
    freeze_run(FreezeRequest(place.folder / "run", out, {"*": "float32"}, user=("user",)))
    return out


def test_frames_and_files_of_raw_rows_are_scored_as_by_the_run(place, model, tmp_path):
    loaded = mg.load_model(model)
    frame = pq.read_table(place.test).drop(["label"])
    for given in (frame, frame.to_pandas(), polars.from_arrow(frame), frame.to_pydict()):
        np.testing.assert_array_equal(loaded.predict(given, batch=300), place.scores)
    found = predicted(model, place.test, out=tmp_path / "out.parquet", batch=300, keep=("request",))
    np.testing.assert_array_equal(found["score"], place.scores)
    assert found.column_names == ["request", "score"]
    found = predicted(model, place.folder / "data", out=tmp_path / "out.parquet", batch=300, split="test")
    np.testing.assert_array_equal(found["score"], place.scores)
    with pytest.raises(ConfigError, match="leave --checkpoint out"):
        predicted(model, place.test, out=tmp_path / "out.parquet", checkpoint="last")


def test_the_manifest_says_what_requests_look_like(model):
    manifest = FrozenModel(model).manifest
    features = {feature.name: feature for feature in manifest.features}
    assert features["user"].user_side
    assert not features["page"].user_side
    assert features["user"].average_length == 1.0
    assert 1.0 < features["tags"].average_length < 2.0
    assert manifest.gate.ne_loss == 0.0
    assert manifest.contract.products == "float32"
    checks = FrozenModel(model).checks()
    assert checks["lengths"].shape == (3, 64)
    assert int(checks["lengths"].sum()) == len(checks["values"])
    assert checks["output/score"].shape == (64,)


def test_checks_are_the_first_samples_with_their_scores(place, model):
    checks = FrozenModel(model).checks()
    np.testing.assert_allclose(checks["output/score"].numpy(), place.scores[:64], rtol=1e-6)


@pytest.mark.parametrize("dense", ["float32", "bfloat16", "int8"])
def test_what_is_scored_is_what_the_gate_checked_to_the_bit(place, dense, tmp_path):
    freeze_run(FreezeRequest(place.folder / "run", tmp_path / "m", dense=dense, budget=0.01))
    opened = mg.load_model(tmp_path / "m")
    request, wanted = recorded_checks(opened.frozen)
    assert torch.equal(opened.part.run(request)["score"], wanted["score"])
    assert opened.backend == opened.manifest.backend == "native"
    held = opened.frozen.weights()
    stored = {held[each.weight].dtype for each in opened.manifest.program.operations if each.kind == "linear"}
    assert stored == {{"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}[dense]}


def test_a_backend_that_cannot_run_here_is_replaced_with_a_word(place, model, tmp_path):
    changed = tmp_path / "m"
    shutil.copytree(model, changed)
    manifest = FrozenModel(model).manifest
    assert manifest.backend == "native:dense=torch"
    write_manifest(changed, manifest.model_copy(update={"backend": "native+card"}))
    loaded = mg.load_model(changed)
    with pytest.warns(
        UserWarning, match=r"Backend native\+card of model 'm' cannot run here .*; using native"
    ):
        scores = loaded.predict(pq.read_table(place.test), batch=300)
    assert loaded.backend == "native"
    np.testing.assert_allclose(scores, place.scores, atol=2e-5)
    with pytest.raises(ConfigError, match="no backend 'card'"):
        mg.load_model(changed, backend="card").predict(pq.read_table(place.test))


def test_a_backend_that_gives_other_outputs_is_replaced(place, model, tmp_path):
    """Weights that were changed behind the manifest's back, and checks with them."""
    changed = tmp_path / "m"
    shutil.copytree(model, changed)
    checks = dict(FrozenModel(model).checks())
    write_tensors(changed / "checks.safetensors", checks | {"output/score": checks["output/score"] + 0.01})
    manifest = FrozenModel(model).manifest
    write_manifest(changed, manifest.model_copy(update={"files": list_files(changed)}))
    with (
        pytest.warns(UserWarning, match="gives 'score' 0.01 apart, more than 2e-05, from what"),
        pytest.raises(
            ServeError, match="was checked with; choose another backend, or export the model again"
        ),
    ):
        mg.load_model(changed).predict(pq.read_table(place.test))


def test_folders_of_the_first_version_are_read(place, tmp_path):
    """Their weights are float32, and reduced when they are loaded: the same bits."""
    freeze_run(FreezeRequest(place.folder / "run", tmp_path / "m", dense="int8", budget=0.01))
    freeze_run(FreezeRequest(place.folder / "run", tmp_path / "float", budget=0.01))
    frame = pq.read_table(place.test)
    wanted = mg.load_model(tmp_path / "m").predict(frame)
    manifest = FrozenModel(tmp_path / "m").manifest
    shutil.copy(tmp_path / "float" / "dense.safetensors", tmp_path / "m")
    files = list_files(tmp_path / "m")
    write_manifest(tmp_path / "m", manifest.model_copy(update={"version": 1, "files": files}))
    np.testing.assert_array_equal(mg.load_model(tmp_path / "m").predict(frame), wanted)
    write_manifest(tmp_path / "m", manifest.model_copy(update={"version": 3, "files": files}))
    with pytest.raises(ServeError, match="has version 3, this package reads 1 to 2"):
        mg.load_model(tmp_path / "m")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_the_command_prints_costs_and_sizes(place, tmp_path):
    out = tmp_path / "m"
    run = place.folder / "run"
    arguments = ("--tables", "int8", "--tables", "page=float16", "--dense", "int8", "--budget", "0.1")
    result = invoke("export", run, "--out", out, *arguments, "--name", "clicks")
    assert result.exit_code == 0, result.output
    assert "Gate on split test" in result.output
    assert "model clicks" in result.output
    printed = json.loads(invoke("export", run, "--out", out, *arguments, "--json").output)
    assert printed["gate"]["samples"] == 700
    assert {part["name"]: part["precision"] for part in printed["tables"]}["page"] == "float16"
    model = FrozenModel(out)
    assert model.manifest.contract.products == "u8s7"
    layers = [each for each in model.manifest.program.operations if isinstance(each, Linear)]
    assert [part["name"] for part in printed["layers"]] == [each.output for each in layers]
    assert {each.precision for each in layers} == {"int8"}
    assert model.report()["gate"]["ne_loss"] == printed["gate"]["ne_loss"]


def test_the_page_of_a_model_has_its_gate_and_costs(model, place, tmp_path):
    out = tmp_path / "page.html"
    result = invoke("report", model, "--out", out, "--json")
    assert json.loads(result.output)["ne_loss"] == 0.0
    page = out.read_text()
    assert "frozen model" in page
    assert all(f"<td>{table.name}</td>" in page for table in FrozenModel(model).manifest.tables)
    with pytest.raises(DataError, match="is inside the model"):
        write_model_report(model, model / "report.html")
    freeze_run(FreezeRequest(place.folder / "run", tmp_path / "m", gate=False))
    assert invoke("report", tmp_path / "m").exit_code == 0
    assert "frozen without a check" in (tmp_path / "m.html").read_text()
    # The model is as it was.
    assert FrozenModel(tmp_path / "m").manifest.gate is None


@pytest.mark.parametrize("dense", ["bfloat16", "int8"])
def test_layers_in_few_bits_lose_little(place, tmp_path, dense):
    request = FreezeRequest(place.folder / "run", tmp_path / "m", {"*": "float32"}, dense, budget=0.01)
    result = freeze_run(request)
    assert 0 < abs(result["gate"]["ne_loss"]) <= 0.01
    assert {part["used"] for part in result["layers"]} == {dense}
    found = mg.load_model(tmp_path / "m").predict(pq.read_table(place.test), batch=300)
    assert 0 < np.abs(found - place.scores).max() < 0.02
    # A score does not depend on what else is scored with it.
    few = mg.load_model(tmp_path / "m").predict(pq.read_table(place.test).slice(0, 7))
    np.testing.assert_allclose(few, found[:7], rtol=1e-5)


def test_too_much_loss_is_refused_and_leaves_nothing(place, tmp_path):
    request = FreezeRequest(place.folder / "run", tmp_path / "m", {"*": "int4"}, budget=-1.0)
    with pytest.raises(QualityError, match=r"costs most alone .* or raise --budget"):
        freeze_run(request)
    assert not list(tmp_path.iterdir())


def test_layers_that_lose_too_much_are_left_in_float32(place, tmp_path):
    run = place.folder / "run"
    whole = freeze_run(FreezeRequest(run, tmp_path / "a", {"*": "float32"}, "int8", budget=1.0))
    worst = max(whole["layers"], key=lambda part: part["ne_loss"])
    assert worst["ne_loss"] > 0
    budget = min(whole["gate"]["ne_loss"], worst["ne_loss"]) / 2
    result = freeze_run(FreezeRequest(run, tmp_path / "b", {"*": "float32"}, "int8", budget=budget))
    assert result["gate"]["ne_loss"] <= budget
    used = {part["name"]: part["used"] for part in result["layers"]}
    assert used[worst["name"]] == "float32"
    assert result["left_in_float32"][0].startswith(f"{worst['name']}: ")
    program = FrozenModel(tmp_path / "b").manifest.program
    layers = {each.output: each.precision for each in program.operations if isinstance(each, Linear)}
    assert layers == used


def test_what_is_asked_for_must_be_there(place, tmp_path):
    run, out = place.folder / "run", tmp_path / "m"
    for options, sentence in [
        (("--tables", "int7"), "'int7' is none; did you mean 'int8'?"),
        (("--tables", "pages=int8"), "--tables names 'pages'; did you mean 'page'?"),
        (("--dense", "fp8"), "--dense fp8 is none"),
        (("--user", "usr"), "--user names 'usr'; did you mean 'user'?"),
        (("--split", "train"), "was trained on split 'train'"),
        (("--data", tmp_path / "gone"), "or freeze without a check with --no-gate"),
    ]:
        result = invoke("export", run, "--out", out, *options)
        assert sentence in str(result.exception), options
        assert isinstance(result.exception, ConfigError | DataError)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ServeError, match="is no exported model"):
        mg.load_model(tmp_path)
    assert table_precisions(["int4,C1=float16"]) == {"*": "int4", "C1": "float16"}
    assert dense_precision("bfloat16") == "bfloat16"


def test_without_a_gate_nothing_is_measured(place, tmp_path):
    result = freeze_run(FreezeRequest(place.folder / "run", tmp_path / "m", gate=False))
    assert result["gate"] is None
    model = FrozenModel(tmp_path / "m")
    assert model.manifest.gate is None
    assert model.checks() == {}
    assert len(mg.load_model(tmp_path / "m").predict(pq.read_table(place.test))) == 700


KILLS = {
    "encoding": (freeze_table, 2),
    "the gate": (Gate._pass, 1),
    "costs": (logits_of, 3),
    "weights": (write_tensors, 1),
    "the manifest": (write_manifest, 1),
    "the disk": (sync_tree, 1),
}


def _freeze_until(run, out, moment):
    function, times = KILLS[moment]
    signalled_at_call(signal.SIGKILL, times, "MainThread", function)
    freeze_run(FreezeRequest(run, out))


@pytest.mark.parametrize("moment", KILLS)
def test_a_killed_export_leaves_no_model_and_the_next_one_clears_up(place, tmp_path, moment):
    run, out = place.folder / "run", tmp_path / "m"
    with Forked(_freeze_until, run, out, moment) as process:
        assert process.wait() == -signal.SIGKILL
    assert not out.exists()
    freeze_run(FreezeRequest(run, out))
    assert FrozenModel(out).manifest.step > 0
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
