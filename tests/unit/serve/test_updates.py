"""Newer versions under load: checked beside the old one, switched without a lost request, or rolled back."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from megalith.core.errors import QualityError, ServeError
from megalith.export.backends.conformance.models import ModelInMemory, probe_model
from megalith.export.backends.conformance.requests import RequestMaker
from megalith.export.delta import write_delta
from megalith.export.folder import read_manifest, write_manifest
from megalith.export.tensor_file import file_record, read_tensors, write_tensors
from megalith.serve.engine import Engine, EngineSettings
from megalith.serve.protocol.errors import failure_of
from megalith.serve.request import Answer
from served_models import ask, equal, in_process, opened, write_model

MODEL = "probe-float32"


def changed_model(factor: float) -> ModelInMemory:
    """The probe with other weights in its dense part."""
    model = probe_model()
    dense = {name: tensor * factor if name.endswith("0") else tensor for name, tensor in model.dense.items()}
    return ModelInMemory(model.manifest, model.tables, dense)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("models")
    return [write_model(root / f"v{n}", changed_model(1 + 0.001 * n)) for n in range(3)]


@pytest.fixture(params=[0, 2], ids=["threads", "processes"])
def engine(request: pytest.FixtureRequest, folders: list[Path]) -> Iterator[Engine]:
    with Engine(EngineSettings(cards=request.param)) as engine:
        engine.load(folders[0])
        yield engine


def test_every_answer_is_that_of_the_version_it_names(engine: Engine, folders: list[Path]) -> None:
    request = RequestMaker(opened(folders[0]), "whole").request(7)
    wanted = {str(n + 1): in_process(opened(folder), request) for n, folder in enumerate(folders)}
    seen: list[Answer] = []
    stop = threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            seen.append(ask(engine, MODEL, request))

    threads = [threading.Thread(target=keep_asking) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for folder in folders[1:]:
            report = engine.load(folder)
            assert report.checks["samples"] == 8
            assert report.memory.peak <= report.memory.limit
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert all(equal(answer, wanted[answer.version]) for answer in seen)
    assert equal(ask(engine, MODEL, request), wanted["3"])
    assert engine.models()[MODEL].versions == ("3",)


def test_a_version_whose_own_samples_come_out_otherwise_does_not_take_over(
    engine: Engine, folders: list[Path], tmp_path: Path
) -> None:
    wrong = write_model(tmp_path / "wrong", changed_model(1.001))
    path = wrong / "checks.safetensors"
    tensors = {name: tensor.clone() for name, tensor in read_tensors(path).items()}
    tensors = {name: one + 0.5 if name.startswith("output/") else one for name, one in tensors.items()}
    path.unlink()
    write_tensors(path, tensors)
    manifest = read_manifest(wrong)
    files = {**manifest.files, path.name: file_record(path)}
    write_manifest(wrong, manifest.model_copy(update={"files": files}))
    request = RequestMaker(opened(folders[0]), "whole").request(7)
    with pytest.raises(QualityError, match="its own samples"):
        engine.load(wrong)
    answer = ask(engine, MODEL, request)
    assert answer.version == "1"
    assert equal(answer, in_process(opened(folders[0]), request))
    engine.load(wrong, check=False)
    assert ask(engine, MODEL, request).version == "2"


def test_a_version_that_scores_recorded_requests_much_higher_does_not_take_over(
    folders: list[Path], tmp_path: Path
) -> None:
    model = probe_model()
    far = ModelInMemory(
        model.manifest, model.tables, {name: one * 9 + 0.4 for name, one in model.dense.items()}
    )
    folder = write_model(tmp_path / "far", far)
    said: list[str] = []
    with Engine(EngineSettings(cards=0, calibration_bound=0.01), said.append) as engine:
        engine.load(folders[0])
        request = RequestMaker(opened(folders[0]), "whole").request(50)
        ask(engine, MODEL, request)
        assert engine.load(folders[1]).checks["requests"] == 1
        with pytest.raises(QualityError, match="times as high") as refused:
            engine.load(folder)
        # Whoever asked for it is told what is wrong, and so is the operator.
        told = failure_of(refused.value)
        assert (told.status, told.sentence) == (400, str(refused.value))
        assert said[-1].endswith(str(refused.value))
        assert ask(engine, MODEL, request).version == "2"
        assert engine.statistics()[MODEL, "2"]["success"] == 1


def test_a_load_beyond_the_limit_of_memory_is_refused_before_it_begins(folders: list[Path]) -> None:
    said: list[str] = []
    with Engine(EngineSettings(cards=0, memory_limit=1 << 20), said.append) as engine:
        with pytest.raises(ServeError, match="above the limit of"):
            engine.load(folders[0])
        assert "at the peak" in said[0]
        assert not engine.models()
        assert not engine.ready()


def test_versions_that_are_kept_are_served_by_their_number_until_unloaded(
    engine: Engine, folders: list[Path]
) -> None:
    request = RequestMaker(opened(folders[0]), "whole").request(7)
    engine.load(folders[1], keep=True)
    assert engine.models()[MODEL].versions == ("1", "2")
    for number in (0, 1):
        answer = ask(engine, MODEL, request, version=str(number + 1))
        assert equal(answer, in_process(opened(folders[number]), request))
    engine.unload(MODEL, "1")
    assert engine.models()[MODEL].versions == ("2",)
    assert ask(engine, MODEL, request).version == "2"
    engine.unload(MODEL)
    assert not engine.models()
    engine.load(folders[2])
    assert equal(ask(engine, MODEL, request), in_process(opened(folders[2]), request))


def test_two_models_are_updated_apart(folders: list[Path]) -> None:
    with Engine(EngineSettings(cards=1)) as engine:
        engine.load(folders[0], "first")
        engine.load(folders[1], "second")
        request = RequestMaker(opened(folders[0]), "whole").request(7)
        engine.load(folders[2], "first")
        assert equal(ask(engine, "first", request), in_process(opened(folders[2]), request))
        assert equal(ask(engine, "second", request), in_process(opened(folders[1]), request))
        assert ask(engine, "second", request).version == "1"
        until = time.monotonic() + 60
        while len(engine.status()["cards"]) > 1 and time.monotonic() < until:
            time.sleep(0.01)
        assert len(engine.status()["cards"]) == 1
    torch.manual_seed(0)


@pytest.mark.parametrize("cards", [0, 2])
def test_a_delta_takes_over_under_load_and_a_delta_over_it(
    folders: list[Path], tmp_path: Path, cards: int
) -> None:
    request = RequestMaker(opened(folders[0]), "whole").request(7)
    wanted = {str(n + 1): in_process(opened(folder), request) for n, folder in enumerate(folders)}
    with Engine(EngineSettings(cards=cards)) as engine:
        engine.load(folders[0])
        seen: list[Answer] = []
        stop = threading.Event()

        def keep_asking() -> None:
            while not stop.is_set():
                seen.append(ask(engine, MODEL, request))

        thread = threading.Thread(target=keep_asking)
        thread.start()
        try:
            for number in (1, 2):
                write_delta(folders[number - 1], folders[number], tmp_path / f"d{number}")
                assert engine.load(tmp_path / f"d{number}").version == str(number + 1)
        finally:
            stop.set()
            thread.join()
        assert all(equal(answer, wanted[answer.version]) for answer in seen)
        assert equal(ask(engine, MODEL, request), wanted["3"])
        with pytest.raises(ServeError, match="is not served"):
            engine.load(tmp_path / "d1")


def test_after_the_end_of_the_process_that_forks_a_delta_is_served_again(
    folders: list[Path], tmp_path: Path
) -> None:
    request = RequestMaker(opened(folders[0]), "whole").request(7)
    with Engine(EngineSettings(cards=1, attempts=50)) as engine:
        engine.load(folders[0])
        write_delta(folders[0], folders[1], tmp_path / "delta")
        engine.load(tmp_path / "delta")
        os.kill(engine._fleet.processes.process, signal.SIGKILL)
        answer = ask(engine, MODEL, request)
        assert answer.version == "2"
        assert equal(answer, in_process(opened(folders[1]), request))


def test_a_delta_of_a_model_with_a_dense_part_of_int8_takes_over_and_one_that_is_wrong_does_not(
    tmp_path: Path,
) -> None:
    model = probe_model("int8", "u8s8")
    tables = {name: {key: one.clone() for key, one in held.items()} for name, held in model.tables.items()}
    changed = next(held["rows"] for held in tables.values() if held["rows"].dim() == 2)
    changed[1] = changed[2]
    before = write_model(tmp_path / "before", model)
    after = write_model(tmp_path / "after", ModelInMemory(model.manifest, tables, model.dense))
    write_delta(before, after, tmp_path / "delta")
    request = RequestMaker(opened(before), "whole").request(7)
    with Engine(EngineSettings(cards=0)) as engine:
        engine.load(before)
        assert engine.load(tmp_path / "delta").checks["samples"] == 8
        assert equal(ask(engine, model.manifest.name, request), in_process(opened(after), request))
    path = after / "checks.safetensors"
    wrong = {
        name: one + 0.5 if name.startswith("output/") else one.clone()
        for name, one in read_tensors(path).items()
    }
    path.unlink()
    write_tensors(path, wrong)
    manifest = read_manifest(after)
    write_manifest(
        after, manifest.model_copy(update={"files": {**manifest.files, path.name: file_record(path)}})
    )
    write_delta(before, after, tmp_path / "wrong")
    with Engine(EngineSettings(cards=0)) as engine:
        engine.load(before)
        with pytest.raises(QualityError, match="its own samples"):
            engine.load(tmp_path / "wrong")
        engine.unload(model.manifest.name)
        engine.load(before, check=False)
        with pytest.raises(ServeError, match="loaded without checks"):
            engine.load(tmp_path / "wrong")
