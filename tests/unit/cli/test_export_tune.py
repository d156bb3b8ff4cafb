"""`megalith export --tune` and `--check` on the folder of a frozen model."""

import json

import pytest

from commands import megalith
from megalith.export.backends.choice import load_whole
from megalith.export.backends.conformance.models import probe_model
from megalith.export.backends.conformance.requests import RequestMaker
from megalith.export.folder import FrozenModel, list_files, new_model, write_manifest
from megalith.export.manifest import CHECKS_FILE, DENSE_FILE
from megalith.export.tensor_file import write_tensors


@pytest.fixture
def folder(tmp_path):
    """A model of every operation and every kind of table."""
    model = probe_model("int8", "u8s7")
    request = RequestMaker(model, "whole").request(16)
    checks = {"dense": request.dense, "values": request.values, "lengths": request.lengths}
    checks |= {f"output/{name}": out for name, out in load_whole(model, "torch").run(request).items()}
    with new_model(tmp_path / "m") as made:
        write_tensors(made / DENSE_FILE, dict(model.dense))
        write_tensors(made / CHECKS_FILE, checks)
        tables = {f"{name}/{key}": one for name, held in model.tables.items() for key, one in held.items()}
        write_tensors(made / model.manifest.tables[0].file, tables)
        write_manifest(made, model.manifest.model_copy(update={"files": list_files(made)}))
    return tmp_path / "m"


def test_tune_keeps_the_best_in_the_manifest(folder):
    done = megalith("export", folder, "--tune", "--batches", "1,4", "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    manifest = FrozenModel(folder).manifest
    assert manifest.backend == found["backend"]
    assert manifest.tuning.threads == 1
    assert set(manifest.tuning.seconds) == {"1", "4"}
    assert {each["choice"] for each in found["candidates"]} >= {"native", "torch", "native+torch"}
    load_whole(FrozenModel(folder), manifest.backend).close()


def test_tune_prints_a_table_for_people(folder):
    done = megalith("export", folder, "--tune", "--batches", "1", "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert "1 sample, ms" in done.stdout
    assert "now runs on" in done.stdout


def test_check_says_what_was_asked_wanted_and_got(folder):
    done = megalith("export", folder, "--check", "native", "--batches", "40", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["failed"] == 0
    recorded = [each for each in found["checks"] if each["check"] == "recorded outputs"]
    assert {each["result"] for each in recorded if each["part"] != "lookups"} == {"passed"}
    assert recorded[1]["asked"] == "16 samples of checks.safetensors"


def test_a_model_that_a_backend_does_not_give_the_outputs_of_fails_the_check(folder):
    """The samples that a model carries are the truth: here they are those of another model."""
    model = FrozenModel(folder)
    checks = {name: one.clone() for name, one in model.checks().items()}
    checks["output/score"] += 0.5
    write_tensors(folder / CHECKS_FILE, checks)
    write_manifest(folder, model.manifest.model_copy(update={"files": list_files(folder)}))
    done = megalith("export", folder, "--check", "native", "--batches", "8")
    assert done.returncode == 2
    assert "fails 2 of 75 checks, the first is 'recorded outputs' of dense" in done.stderr
    done = megalith("export", folder, "--tune", "--batches", "1", "--threads", "1")
    assert done.returncode == 2
    assert "No backend here runs this model" in done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--check", "natve"], "There is no backend 'natve'; did you mean 'native'?"),
        (["--tune", "--batches", "1,x"], "--batches is '1,x'; write numbers of 1 or more, such as 1,32,256."),
        (["--tune", "--threads", "0"], "--threads is '0'; write numbers of 1 or more"),
        (
            [],
            "Name the folder to write with --out, or ask of a frozen one with --tune, --check or --hardware.",
        ),
    ],
)
def test_wrong_options_get_a_sentence(folder, options, sentence):
    done = megalith("export", folder, *options)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_tune_alone_wants_an_exported_model(tmp_path):
    done = megalith("export", tmp_path, "--tune")
    assert done.returncode == 2
    assert "is no exported model" in done.stderr
