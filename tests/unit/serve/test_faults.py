"""Cards that die or hang under load: every answer right, no request lost, other cards in their place."""

import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from megalith.export.backends.conformance.requests import RequestMaker
from megalith.serve.engine import Engine, EngineSettings
from megalith.serve.failures import OverloadedError
from megalith.serve.runtime.cards.process_card import ProcessCard
from served_models import equal, in_process, opened, submit, write_model

MODEL = "probe-float32"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "probe")


class Load:
    """Requests from a thread, a few at a time, whose answers are compared with those precomputed."""

    def __init__(self, engine: Engine, folder: Path, at_once: int = 12) -> None:
        self.engine, self.at_once = engine, at_once
        maker, model = RequestMaker(opened(folder), "whole"), opened(folder)
        requests = [maker.request((1, 4, 40, 300)[seed % 4], seed=seed) for seed in range(16)]
        self.asked = [(request, in_process(model, request)) for request in requests]
        self.answered = self.refused = 0
        self.wrong: list[object] = []
        self.degraded = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for(self, more: int) -> None:
        """Until so many more were answered."""
        until = self.answered + more
        limit = time.monotonic() + 120
        while self.answered < until:
            assert time.monotonic() < limit, f"only {self.answered} answers"
            assert not self.wrong, self.wrong[:3]
            time.sleep(0.005)

    def _run(self) -> None:
        answers: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()
        waiting, turn = 0, 0
        while waiting or not self._stop.is_set():
            while waiting < self.at_once and not self._stop.is_set():
                turn = (turn + 1) % len(self.asked)
                try:
                    submit(
                        self.engine,
                        MODEL,
                        self.asked[turn][0],
                        lambda one, turn=turn: answers.put((turn, one)),
                    )
                except OverloadedError:
                    self.refused += 1
                    break
                waiting += 1
            place, answer = answers.get(timeout=120)
            waiting -= 1
            self.answered += 1
            if isinstance(answer, Exception) or not (answer.degraded or equal(answer, self.asked[place][1])):
                self.wrong.append(answer)
            else:
                self.degraded += answer.degraded


def _cards(engine: Engine) -> list[int]:
    return [card["process"] for card in engine.status()["cards"]]


@pytest.mark.parametrize(("cards", "partitions"), [(1, None), (2, None), (2, 2)])
def test_cards_that_are_killed_under_load_change_no_answer(
    folder: Path, cards: int, partitions: int | None
) -> None:
    said: list[str] = []
    with Engine(EngineSettings(cards=cards, partitions=partitions, attempts=50), said.append) as engine:
        engine.load(folder)
        with Load(engine, folder) as load:
            for seed in range(5):
                load.wait_for(random.Random(seed).randrange(20, 60))
                alive = _cards(engine)
                if alive:
                    # The one before may have ended and not be missed yet.
                    with suppress(ProcessLookupError):
                        os.kill(random.Random(seed).choice(alive), signal.SIGKILL)
            load.wait_for(50)
        assert not load.wrong, load.wrong[:3]
        assert engine.status()["lost_cards"] >= 3
        assert any("is lost" in sentence for sentence in said)
        assert engine.status()["queue"]["rooms"] == 0


@pytest.mark.parametrize("partitions", [None, 2])
def test_a_card_that_hangs_is_fenced_and_its_requests_are_answered(
    folder: Path, partitions: int | None
) -> None:
    said: list[str] = []
    settings = EngineSettings(cards=2, partitions=partitions, hang_seconds=1.0, attempts=50)
    with Engine(settings, said.append) as engine:
        engine.load(folder)
        with Load(engine, folder) as load:
            load.wait_for(30)
            os.kill(_cards(engine)[0], signal.SIGSTOP)
            load.wait_for(200)
            until = time.monotonic() + 60
            while not any("no sign" in sentence for sentence in said) and time.monotonic() < until:
                load.wait_for(10)
        assert not load.wrong, load.wrong[:3]
        assert any("no sign" in sentence for sentence in said)
        assert engine.status()["queue"]["rooms"] == 0


def test_a_request_whose_pooled_vectors_lay_on_a_lost_card_runs_again(folder: Path) -> None:
    request = RequestMaker(opened(folder), "whole").request(40)
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with Engine(EngineSettings(cards=2, partitions=2, hang_seconds=300.0)) as engine:
        engine.load(folder)
        held, scheduler = _cards(engine)[1], engine._scheduler
        os.kill(held, signal.SIGSTOP)
        submit(engine, MODEL, request, answers.put)

        def pooled_on() -> list[int]:
            """Cards that have done their part of the request, which waits for the one that was stopped."""
            with scheduler.lock:
                works = [work for card in scheduler.cards for work in card.tasks.values() if work]
                return [card.process for work in works for card, _ in work.pooled.values()]

        _until(lambda: bool(pooled_on()))
        [lost] = pooled_on()
        assert lost != held
        os.kill(lost, signal.SIGKILL)
        _until(lambda: engine.status()["lost_cards"] == 1)
        os.kill(held, signal.SIGCONT)
        answer = answers.get(timeout=120)
        assert equal(answer, in_process(opened(folder), request))
        assert engine.manifest(MODEL).statistics.retried == 1


def _until(reached: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_a_card_that_hangs_idle_is_found_without_a_request(folder: Path) -> None:
    with Engine(EngineSettings(cards=1, hang_seconds=0.5)) as engine:
        engine.load(folder)
        stopped = _cards(engine)[0]
        os.kill(stopped, signal.SIGSTOP)
        until = time.monotonic() + 60
        while stopped in _cards(engine) and time.monotonic() < until:
            time.sleep(0.05)
        assert stopped not in _cards(engine)
        with Load(engine, folder) as load:
            load.wait_for(20)
        assert not load.wrong


def test_the_end_of_the_process_that_forks_is_survived(folder: Path) -> None:
    with Engine(EngineSettings(cards=2, attempts=50)) as engine:
        engine.load(folder)
        with Load(engine, folder) as load:
            load.wait_for(20)
            os.kill(engine._fleet.processes.process, signal.SIGKILL)
            load.wait_for(200)
        assert not load.wrong, load.wrong[:3]


def test_degraded_answers_are_marked_and_only_given_where_allowed(folder: Path) -> None:
    with Engine(EngineSettings(cards=2, partitions=2, degraded=True, attempts=50)) as engine:
        engine.load(folder)
        with Load(engine, folder) as load:
            deadline = time.monotonic() + 60
            while not load.degraded and time.monotonic() < deadline:
                load.wait_for(20)
                for process in _cards(engine)[:1]:
                    os.kill(process, signal.SIGKILL)
            load.wait_for(50)
        assert load.degraded
        assert not load.wrong, load.wrong[:3]


def test_requests_are_answered_while_a_card_that_was_told_to_end_has_not_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[ProcessCard] = []
    kill = ProcessCard.stop

    def hold(card: ProcessCard) -> None:
        # As a process whose memory takes long to be given back.
        card.ending = True
        held.append(card)

    with Engine(EngineSettings(cards=1)) as engine:
        engine.load(folder)
        monkeypatch.setattr(ProcessCard, "stop", hold)
        engine.load(folder)
        with Load(engine, folder) as load:
            load.wait_for(20)
        assert not load.wrong
        assert [card.process in _cards(engine) for card in held] == [True]
        monkeypatch.undo()
        kill(held[0])
        until = time.monotonic() + 60
        while held[0].alive and time.monotonic() < until:
            time.sleep(0.01)
        assert held[0].process not in _cards(engine)
        assert engine.status()["lost_cards"] == 0
