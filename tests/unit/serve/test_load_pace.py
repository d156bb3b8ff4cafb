"""The pace of a load: pauses by what pieces took, and cards that start while one is under way."""

import os
import signal
import threading
from pathlib import Path

import pytest

from megalith.core.errors import ConfigError
from megalith.export.backends.conformance.requests import RequestMaker
from megalith.serve.engine import Engine, EngineSettings
from megalith.serve.runtime.cards.load_pace import LoadPace
from served_models import ask, equal, in_process, opened, write_model

MODEL = "probe-float32"


def test_pauses_are_as_long_as_the_share_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0001, 0.0001, 0.0101, 0.0101, 0.0101, 0.0101])
    monkeypatch.setattr("time.thread_time", lambda: next(clock))
    waits: list[float] = []
    pace = LoadPace(0.25, waits.append)
    for _ in range(3):
        pace()
    # What was too short for a pause is made up in the next.
    assert waits == pytest.approx([0.0, 3 * 0.0101, 0.0])


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="load_share is 0"):
        EngineSettings(load_share=0)


def test_a_card_that_dies_during_a_load_is_replaced_before_the_load_ends(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "probe")
    request = RequestMaker(opened(folder), "whole").request(5)
    # Pauses of an hour and more: nothing that waited for the load would ever come.
    with Engine(EngineSettings(cards=1, load_share=1e-7)) as engine:
        engine.load(folder)
        failed: list[BaseException] = []

        def load() -> None:
            try:
                engine.load(folder)
            except BaseException as error:
                failed.append(error)

        loading = threading.Thread(target=load)
        loading.start()
        for _ in range(2):
            os.kill(engine.status()["cards"][0]["process"], signal.SIGKILL)
            answer = ask(engine, MODEL, request)
            assert answer.version == "1"
            assert equal(answer, in_process(opened(folder), request))
        assert loading.is_alive()
        os.kill(engine._fleet.processes.process, signal.SIGKILL)
        loading.join(60)
        assert len(failed) == 1
        assert equal(ask(engine, MODEL, request), in_process(opened(folder), request))
