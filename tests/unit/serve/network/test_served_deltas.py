"""Deltas from the command that makes them to the server that loads them over what it serves."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import megalith, sentence_of
from megalith.export.backends.conformance.models import ModelInMemory
from megalith.export.backends.conformance.requests import RequestMaker
from megalith.serve.engine import Engine, EngineSettings
from megalith.serve.front.model_folders import ModelFolders
from networked_models import draw_inputs, expected, small_model, write_model
from running_server import running
from served_models import ask, equal, in_process


def turned_over(model: ModelInMemory, row: int) -> ModelInMemory:
    """The model with a row of `users` changed."""
    rows = model.tables["users"]["rows"].clone()
    rows[row, -1] = 255 - rows[row, -1]
    return ModelInMemory(model.manifest, {**model.tables, "users": {"rows": rows}}, model.dense)


@pytest.fixture
def models() -> list[ModelInMemory]:
    made = [small_model(seed=1)]
    for row in (1, 2):
        made.append(turned_over(made[-1], row))
    return made


@pytest.fixture
def whole(tmp_path: Path, models: list[ModelInMemory]) -> list[Path]:
    return [write_model(tmp_path / f"whole-{n}", model) for n, model in enumerate(models)]


def export_delta(base: Path, new: Path, out: Path) -> Any:
    done = megalith("export", new, "--over", base, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def load(url: str) -> None:
    urllib.request.urlopen(f"{url}/v2/repository/models/small/load", b"").close()


def infer(url: str, inputs: dict[str, Any]) -> Any:
    tensors = [
        {"name": name, "datatype": kind, "shape": list(array.shape), "data": array.reshape(-1).tolist()}
        for (name, array), kind in zip(inputs.items(), ("FP32", "INT64", "INT32"), strict=True)
    ]
    with urllib.request.urlopen(
        f"{url}/v2/models/small/infer", json.dumps({"inputs": tensors}).encode()
    ) as answer:
        return json.load(answer)


def check(url: str, version: str, model: ModelInMemory) -> None:
    inputs = draw_inputs(30, 5)
    answer = infer(url, inputs)
    assert answer["model_version"] == version
    np.testing.assert_allclose(answer["outputs"][0]["data"], expected(model, inputs)["score"], rtol=2e-5)


def test_a_delta_that_the_command_made_is_loaded_over_http_and_after_a_restart(
    tmp_path: Path, models: list[ModelInMemory], whole: list[Path]
) -> None:
    repository = tmp_path / "models" / "small"
    repository.mkdir(parents=True)
    whole[0].rename(repository / "1")
    made = export_delta(repository / "1", whole[1], repository / "2")
    assert [(each["name"], each["kind"], each["rows"]) for each in made["tables"]] == [("users", "rows", 1)]
    assert "inputs/schema.json" not in made["files"]
    with running(repository.parent, "--cards", "0") as server:
        # The newest is a delta, which brings the version that it is over with it.
        check(server.url, "2", models[1])
        export_delta(whole[1], whole[2], repository / "3")
        load(server.url)
        check(server.url, "3", models[2])
        with urllib.request.urlopen(f"{server.url}/v2/models/small/config") as answer:
            parameters = json.load(answer)["parameters"]
        # Of the version that the deltas are over.
        columns = json.loads(parameters["raw_columns"]["string_value"])
        assert columns == ["n0", "n1", "n2", "user", "item", "seen"]
        raw = [
            {"name": name, "datatype": "FP32", "shape": [2], "data": [0.5, 1.0]}
            if name.startswith("n")
            else {"name": name, "datatype": "INT64", "shape": [2], "data": [3, 4]}
            for name in columns
        ]
        with urllib.request.urlopen(
            f"{server.url}/v2/models/small/infer", json.dumps({"inputs": raw}).encode()
        ) as answer:
            scores = json.load(answer)["outputs"][0]["data"]
        inputs = {
            "dense": np.array([[0.5] * 3, [1.0] * 3], np.float32),
            "values": np.array([3, 4] * 3),
            "lengths": np.ones((3, 2), np.int32),
        }
        np.testing.assert_allclose(scores, expected(models[2], inputs)["score"], rtol=2e-5)


def test_a_delta_over_an_older_version_is_served_from_that_one(
    tmp_path: Path, models: list[ModelInMemory], whole: list[Path]
) -> None:
    repository = tmp_path / "models" / "small"
    repository.mkdir(parents=True)
    export_delta(whole[0], whole[1], repository / "2")
    export_delta(whole[0], whole[2], repository / "3")
    whole[0].rename(repository / "1")
    request = RequestMaker(models[2], "whole").request(20)
    with Engine(EngineSettings(cards=0)) as engine:
        ModelFolders([repository.parent]).load_all(engine)
        answer = ask(engine, "small", request)
        assert answer.version == "3"
        assert equal(answer, in_process(models[2], request))
        assert engine.models()["small"].versions == ("3",)


def test_what_is_no_pair_of_versions_is_refused_in_a_sentence(tmp_path: Path, whole: list[Path]) -> None:
    out = tmp_path / "delta"
    export_delta(whole[0], whole[1], out)
    other = write_model(tmp_path / "other", _renamed_table(small_model(seed=1)))

    def said(*words: Any) -> str:
        return sentence_of(megalith("export", *words))

    none = tmp_path / "none"
    assert "Name the folder of the delta with --out" in said(whole[1], "--over", whole[0])
    assert "leave out --dense" in said(whole[1], "--over", whole[0], "--out", none, "--dense", "int8")
    assert "is a delta itself" in said(out, "--over", whole[0], "--out", none)
    assert "is no exported model" in said(tmp_path / "no", "--over", whole[0], "--out", none)
    assert "other tables" in said(other, "--over", whole[0], "--out", none)
    assert "is no delta; choose another folder" in said(whole[1], "--over", whole[0], "--out", whole[2])
    refused = sentence_of(megalith("serve", out, "--http", "0"))
    assert "put it beside the version that it is over" in refused
    assert not none.exists()


def _renamed_table(model: ModelInMemory) -> ModelInMemory:
    tables = tuple(
        record.model_copy(update={"name": "people"}) if record.name == "users" else record
        for record in model.manifest.tables
    )
    held = {"people" if name == "users" else name: tensors for name, tensors in model.tables.items()}
    return ModelInMemory(model.manifest.model_copy(update={"tables": tables}), held, model.dense)
