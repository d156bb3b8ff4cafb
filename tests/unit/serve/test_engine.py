"""The engine on threads of this process: answers, refusals, bounds, deadlines, cancellation."""

import queue
import threading
import time
from pathlib import Path

import pytest
import torch

from megalith.export.backends.conformance.models import ModelInMemory, probe_model
from megalith.export.backends.conformance.requests import RequestMaker
from megalith.serve.engine import Engine, EngineSettings
from megalith.serve.failures import (
    BadRequestError,
    DeadlineError,
    OverloadedError,
    RequestCancelledError,
    ShuttingDownError,
    UnknownModelError,
)
from megalith.serve.request import InferRequest, TensorView
from megalith.serve.runtime.recorded import recorded_tensors
from megalith.serve.runtime.scheduling.request_queue import TURN
from megalith.serve.runtime.scheduling.work import Pending
from served_models import ask, equal, in_process, opened, submit, write_model

MODEL = "probe-float32"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "probe")


@pytest.fixture(scope="module")
def engine(folder: Path):
    with Engine(EngineSettings(cards=0)) as engine:
        engine.load(folder)
        yield engine


@pytest.mark.parametrize("batch", [0, 1, 7, 300])
def test_an_answer_is_that_of_the_backend_in_process(engine: Engine, folder: Path, batch: int) -> None:
    maker = RequestMaker(opened(folder), "whole")
    request = maker.request(batch, seed=batch)
    assert equal(ask(engine, MODEL, request), in_process(opened(folder), request))


def test_features_of_the_user_sent_once_give_the_same_bits_as_sent_with_every_sample(
    engine: Engine, folder: Path
) -> None:
    maker = RequestMaker(opened(folder), "whole")
    tiled = maker.request(9, seed=3)
    assert equal(ask(engine, MODEL, maker.with_user_apart(tiled)), in_process(opened(folder), tiled))


def test_a_body_that_begins_with_a_header_of_any_length_is_read_right(engine: Engine, folder: Path) -> None:
    request = RequestMaker(opened(folder), "whole").request(5)
    for head in (1, 3, 63, 130):
        assert equal(ask(engine, MODEL, request, head=head), in_process(opened(folder), request))


def test_what_a_card_refuses_is_a_bad_request_with_its_sentence(engine: Engine, folder: Path) -> None:
    maker = RequestMaker(opened(folder), "whole")
    request = maker.request(4)
    feature, rows = maker.bounded_feature() or ("", 0)
    with pytest.raises(BadRequestError, match=f"{rows}"):
        ask(engine, MODEL, maker.with_id(request, feature, rows))
    assert request.lengths is not None
    with pytest.raises(BadRequestError, match="adds up"):
        ask(engine, MODEL, request._replace(lengths=request.lengths + 1))
    assert equal(ask(engine, MODEL, request), in_process(opened(folder), request))


def test_what_the_front_refuses_raises_at_once(engine: Engine, folder: Path) -> None:
    request = RequestMaker(opened(folder), "whole").request(4)
    assert request.dense is not None
    cases = [
        (request._replace(dense=None), "no 'dense'"),
        (request._replace(dense=request.dense[:3]), "send \\[4, 5\\]"),
        (request._replace(dense=request.dense.int()), "send FP32"),
    ]
    for wrong, sentence in cases:
        with pytest.raises(BadRequestError, match=sentence):
            ask(engine, MODEL, wrong)
    with pytest.raises(UnknownModelError, match="did you mean 'probe-float32'"):
        ask(engine, "probe-float", request)
    with pytest.raises(UnknownModelError, match="has no version '9'"):
        ask(engine, MODEL, request, version="9")
    with pytest.raises(BadRequestError, match="no output 'scor'"):
        ask(engine, MODEL, request, outputs=("scor",))
    room = engine.reserve(8)
    views = {"lengths": TensorView(0, 8 * 4, "INT32", (8, 1)), "values": TensorView(0, 0, "INT32", (0,))}
    with pytest.raises(BadRequestError, match="of a body of 8"):
        engine.submit(room, InferRequest(MODEL, views), lambda answer: None)
    assert engine.status()["queue"]["rooms"] == 0


def test_beyond_its_bound_an_engine_refuses_and_says_when_to_come_back(folder: Path) -> None:
    with Engine(EngineSettings(cards=0, active=2, queued=3)) as engine:
        engine.load(folder)
        rooms = [engine.reserve(100) for _ in range(5)]
        with pytest.raises(OverloadedError) as refused:
            engine.reserve(100)
        assert refused.value.retry_after > 0
        for room in rooms:
            room.release()
        engine.reserve(100).release()
        with pytest.raises(BadRequestError, match="above the limit"):
            engine.reserve(1 << 40)


def test_a_deadline_that_has_passed_is_an_error_of_its_own(engine: Engine, folder: Path) -> None:
    request = RequestMaker(opened(folder), "whole").request(4)
    with blocked(engine), pytest.raises(DeadlineError):
        ask(engine, MODEL, request, deadline=time.monotonic() + 0.01)


def test_a_cancelled_request_is_answered_once(engine: Engine, folder: Path) -> None:
    request = RequestMaker(opened(folder), "whole").request(4)
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()
    with blocked(engine):
        pending = submit(engine, MODEL, request, answers.put)
        pending.cancel()
        pending.cancel()
        assert isinstance(answers.get(timeout=60), RequestCancelledError)
    assert equal(ask(engine, MODEL, request), in_process(opened(folder), request))
    assert answers.empty()


def test_small_requests_that_wait_run_together_and_a_wrong_one_spoils_no_other(
    engine: Engine, folder: Path
) -> None:
    maker = RequestMaker(opened(folder), "whole")
    requests = [maker.request(1 + seed % 3, seed=seed) for seed in range(12)]
    feature, rows = maker.bounded_feature() or ("", 0)
    wrong = maker.with_id(requests[5], feature, rows)
    answers: list[queue.SimpleQueue[object]] = [queue.SimpleQueue() for _ in requests]
    with blocked(engine):
        for place, (request, answer) in enumerate(zip(requests, answers, strict=True)):
            submit(engine, MODEL, wrong if place == 5 else request, answer.put)
    got = [answer.get(timeout=60) for answer in answers]
    assert isinstance(got.pop(5), BadRequestError)
    del requests[5]
    model = opened(folder)
    assert all(equal(one, in_process(model, ask)) for one, ask in zip(got, requests, strict=True))
    assert max(one.timings.batch for one in got) > 3


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_requests_with_the_user_apart_run_together_and_give_the_bits_of_tiled_ones(
    tmp_path: Path, backend: str
) -> None:
    model = probe_model()
    manifest = model.manifest.model_copy(update={"backend": backend})
    folder = write_model(tmp_path / "probe", ModelInMemory(manifest, model.tables, model.dense))
    maker = RequestMaker(opened(folder), "whole")
    tiled = [maker.request((1, 3, 4, 2)[seed % 4], seed=seed) for seed in range(12)]
    asked = [maker.with_user_apart(one) for one in tiled]
    # One tiled among them, and one whose user is wrong.
    asked[4] = tiled[4]
    asked[7] = asked[7]._replace(user_lengths=asked[7].user_lengths + 1)
    answers: list[queue.SimpleQueue[object]] = [queue.SimpleQueue() for _ in asked]
    with Engine(EngineSettings(cards=0)) as engine:
        engine.load(folder)
        with blocked(engine):
            for request, answer in zip(asked, answers, strict=True):
                submit(engine, MODEL, request, answer.put)
        got = [answer.get(timeout=60) for answer in answers]
        assert isinstance(got.pop(7), BadRequestError)
        del tiled[7]
        for one, request in zip(got, tiled, strict=True):
            wanted = in_process(model, request)
            # Sums of torch's float32 products depend on the batch.
            assert equal(one, wanted) or (
                backend == "torch"
                and all(abs(one.outputs[task] - wanted[task].numpy()).max() < 1e-6 for task in wanted)
            )
        assert max(one.timings.batch for one in got) > 4


def test_smaller_priorities_go_first(folder: Path) -> None:
    with Engine(EngineSettings(cards=0, depth=1, max_batch=1)) as engine:
        engine.load(folder)
        request = RequestMaker(opened(folder), "whole").request(4)
        order: queue.SimpleQueue[str] = queue.SimpleQueue()
        with blocked(engine):
            for priority in (0, 3, 1, 2):
                submit(
                    engine,
                    MODEL,
                    request,
                    lambda answer: order.put(answer.id),
                    id=str(priority),
                    priority=priority,
                )
        # The first found an idle card.
        assert [order.get(timeout=60) for _ in range(4)] == ["0", "1", "2", "3"]


def test_requests_of_the_engine_itself_go_behind_those_of_users_and_get_their_turn(folder: Path) -> None:
    with Engine(EngineSettings(cards=0, depth=1, max_batch=1)) as engine:
        engine.load(folder)
        request = RequestMaker(opened(folder), "whole").request(4)
        version, scheduler = engine.manifest(MODEL), engine._scheduler
        order: queue.SimpleQueue[str] = queue.SimpleQueue()

        def done(outcome: object) -> None:
            order.put(getattr(outcome, "id", repr(outcome)))

        with blocked(engine):
            submit(engine, MODEL, request, done, id="first")
            for name in ("check 0", "check 1"):
                kept = recorded_tensors(request)
                room = engine.reserve(len(kept.body))
                room.memory[:] = kept.body
                asked = InferRequest(MODEL, kept.inputs, id=name)
                entry = version.check.entry(asked, room)
                order_of = scheduler.next_order()
                scheduler.submit(
                    Pending(asked, room, entry, version, done, order_of, scheduler.cancel, background=True)
                )
            for number in range(TURN + 3):
                submit(engine, MODEL, request, done, id=str(number), priority=1 << 31)
        got = [order.get(timeout=60) for _ in range(TURN + 6)]
        # The first found an idle card, and counts among those that went ahead.
        users = [str(number) for number in range(TURN + 3)]
        ahead = TURN - 1
        assert got == ["first", *users[:ahead], "check 0", *users[ahead:], "check 1"]
        assert engine.statistics()[MODEL, "1"]["success"] == TURN + 4


def test_a_drained_engine_answers_what_it_took_and_takes_no_more(folder: Path) -> None:
    with Engine(EngineSettings(cards=0)) as engine:
        engine.load(folder)
        request = RequestMaker(opened(folder), "whole").request(4)
        answers: queue.SimpleQueue[object] = queue.SimpleQueue()
        for _ in range(20):
            submit(engine, MODEL, request, answers.put)
        assert engine.drain(timeout=60)
        wanted = in_process(opened(folder), request)
        assert all(equal(answers.get(timeout=60), wanted) for _ in range(20))
        with pytest.raises(ShuttingDownError):
            engine.reserve(10)


def test_a_newer_version_takes_over_without_a_lost_request(tmp_path: Path, folder: Path) -> None:
    with Engine(EngineSettings(cards=0)) as engine:
        engine.load(folder)
        request = RequestMaker(opened(folder), "whole").request(4)
        wanted = in_process(opened(folder), request)
        stop, seen = threading.Event(), []

        def keep_asking() -> None:
            while not stop.is_set():
                seen.append(ask(engine, MODEL, request))

        thread = threading.Thread(target=keep_asking)
        thread.start()
        try:
            for version in range(2, 5):
                assert engine.load(folder).version == str(version)
        finally:
            stop.set()
            thread.join()
        assert all(equal(answer, wanted) for answer in seen)
        assert list(dict.fromkeys(answer.version for answer in seen)) == sorted(
            {answer.version for answer in seen}
        )
        assert ask(engine, MODEL, request).version == "4"
        assert engine.models()[MODEL].versions == ("4",)


class blocked:  # noqa: N801
    """Keeps the cards of a local engine busy, so that what is asked meanwhile waits."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.gate = engine, threading.Event()

    def __enter__(self) -> None:
        for card in self.engine._scheduler.cards:
            run, gate = card._worker.run, self.gate

            def waits(task, run=run, gate=gate):
                gate.wait(60)
                return run(task)

            card._worker.run = waits

    def __exit__(self, *_: object) -> None:
        for card in self.engine._scheduler.cards:
            del card._worker.run
        self.gate.set()
        torch.manual_seed(0)
