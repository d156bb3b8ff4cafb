"""`InferenceService`: the requests of all protocols into one engine, and their answers back.

It lives on the thread of the event loop: calls come in there, answers are handed out there, and only what an
engine or a transform computes happens elsewhere. So its counts need no locks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from megalith.core.errors import nearest, sentence_of
from megalith.core.trace import Tracer
from megalith.serve.failures import BadRequestError, DeadlineError, RequestError, UnknownModelError
from megalith.serve.front.completions import Completions
from megalith.serve.front.model_folders import ModelFolders
from megalith.serve.front.raw_features import RawFeatures, is_raw, same_inputs
from megalith.serve.protocol.errors import UnsupportedError, failure_of
from megalith.serve.protocol.message import InferMessage
from megalith.serve.protocol.place import place_inputs
from megalith.serve.request import Answer, InferRequest, ModelDescription
from megalith.serve.status.load import LoadSamples
from megalith.serve.status.statistics import ServerStatistics

if TYPE_CHECKING:
    from megalith.serve.engine import Engine
    from megalith.serve.follow.followers import Followers
    from megalith.serve.front.recorder import RequestRecorder

USUAL_PRIORITY = 100
"""Of requests that name none; 1 is the most urgent."""
MAX_REQUEST_BYTES = 64 << 20
"""Most bytes of a request, compressed or not, unless told otherwise."""
_log = logging.getLogger(__name__)
_DESCRIPTIONS_SECONDS = 0.25

Done = Callable[["Answer | BaseException"], None]


@dataclass(slots=True)
class InferCall:
    """A request on its way, from its first byte to its answer."""

    model: ModelDescription
    version: str | None
    protocol: str
    started: float = field(default_factory=time.monotonic)
    num_bytes: int = 0
    room: Any = None
    """Where its body lies, until an engine has taken it over."""
    pending: Any = None
    cancelled: bool = False


class InferenceService:
    """One engine behind all protocols of a server."""

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        folders: ModelFolders | None = None,
        tracer: Tracer | None = None,
        trace_every: int = 1,
        recorder: RequestRecorder | None = None,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        followers: Followers | None = None,
    ) -> None:
        self.followers = followers
        self.engine, self.loop, self.recorder = engine, loop, recorder
        self.max_request_bytes = max_request_bytes
        self.folders = folders or ModelFolders(())
        self.statistics = ServerStatistics()
        self.load = LoadSamples(partial(engine.status, memory=False))
        self.completions = Completions(loop)
        self.workers = ThreadPoolExecutor(1, thread_name_prefix="transforms")
        """Transforms and loads, one at a time: cards need the cores."""
        self.draining = False
        self.under_way = 0
        self._tracer, self._trace_every, self._traced = tracer, max(1, trace_every), 0
        self._began = time.monotonic()
        self._raw = RawFeatures()
        self._descriptions: dict[str, ModelDescription] = {}
        self._described = 0.0

    def models(self) -> dict[str, ModelDescription]:
        """All models by name, as of a moment ago."""
        now = time.monotonic()
        if now - self._described > _DESCRIPTIONS_SECONDS:
            self._descriptions = self.engine.models()
            self._described = now
        return self._descriptions

    def forget_descriptions(self) -> None:
        """The models have changed."""
        self._described = 0.0

    def model(self, name: str, version: str | None = None) -> ModelDescription:
        """A model that is served, and has that version."""
        model = self.models().get(name)
        if model is None:
            self.forget_descriptions()
            model = self.models().get(name)
        if model is None:
            tail = nearest(name[:80], list(self._descriptions)) if self._descriptions else "none is loaded."
            raise UnknownModelError(f"No model '{name[:80]}' is served; {tail}")
        if version and version not in model.versions:
            listed = ", ".join(model.versions) or "none"
            raise UnknownModelError(f"Model '{name}' has no version '{version[:80]}'; it has {listed}.")
        return model

    def ready(self) -> bool:
        """Whether requests are taken, and every model can answer, those that are followed too."""
        followed = self.followers is None or self.followers.ready()
        return not self.draining and followed and all(model.ready for model in self.models().values())

    def call(self, name: str, version: str | None, protocol: str) -> InferCall:
        """Takes a request up by the name of its model."""
        return InferCall(self.model(name, version or None), version or None, protocol)

    def start(self, call: InferCall, message: InferMessage, done: Done) -> None:
        """Runs a request; `done` is called once, on this thread. What is wrong with it is raised here."""
        try:
            self._check(call.model, message)
            if is_raw(message, call.model):
                self._transform(call, message, done)
            else:
                self._submit(call, message, done)
        except BaseException as error:
            self._fail(call, error)
            raise

    def refuse(self, call: InferCall, error: BaseException) -> None:
        """Counts a request whose body could not be read, and frees its room."""
        self._fail(call, error)

    def cancel(self, call: InferCall) -> None:
        """Nobody waits for the answer any more."""
        call.cancelled = True
        if call.pending is not None:
            call.pending.cancel()
        elif call.room is not None:
            self._release(call)

    def change_repository(
        self,
        change: str,
        model: str,
        parameters: Mapping[str, Any],
        done: Callable[[BaseException | None], None],
    ) -> None:
        """Loads or unloads a model on another thread; `done` is called on this one."""
        for name in parameters:
            if name == "config" or name.startswith("file:"):
                raise UnsupportedError("Models come from the folders that the server was started with.")
            if name != "unload_dependents":
                raise BadRequestError(f"A {change} has no parameter '{name[:80]}'; send none.")
        if change == "unload":
            self.model(model)
            work = self.workers.submit(self.engine.unload, model)
        else:
            work = self.workers.submit(self.folders.load, self.engine, model)

        def finish(future: Future[Any]) -> None:
            self.forget_descriptions()
            error = future.exception()
            if error is not None and sentence_of(error) is None:
                _log.error("the %s of '%s' failed", change, model, exc_info=error)
            done(error)

        work.add_done_callback(lambda future: self.completions.post(finish, future))

    def close(self) -> None:
        """Ends the threads; the engine is its owner's."""
        self.load.stop()
        self.workers.shutdown(wait=True, cancel_futures=True)
        if self.recorder is not None:
            self.recorder.close()

    def _check(self, model: ModelDescription, message: InferMessage) -> None:
        names = [tensor.name for tensor in message.inputs]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BadRequestError(f"Input '{twice}' is sent twice; send it once.")
        known = [output.name for output in model.outputs]
        for choice in message.outputs:
            if choice.name not in known:
                raise BadRequestError(
                    f"Model '{model.name}' has no output '{choice.name}'; {nearest(choice.name, known)}"
                )

    def _submit(self, call: InferCall, message: InferMessage, done: Done) -> None:
        room, views = place_inputs(message, self.engine.reserve, call.room)
        if call.room is not None and room is not call.room:
            call.room.release()
        call.room = room
        if self.recorder is not None:
            self.recorder.record(call.model.name, message)
        outputs = tuple(dict.fromkeys(choice.name for choice in message.outputs)) or None
        deadline = None if message.timeout_seconds is None else call.started + message.timeout_seconds
        if deadline is not None and time.monotonic() >= deadline:
            raise DeadlineError("The deadline passed before the request had come; allow it more time.")
        request = InferRequest(
            model=call.model.name,
            inputs=views,
            version=call.version,
            id=message.id,
            deadline=deadline,
            priority=message.priority or USUAL_PRIORITY,
            outputs=outputs,
        )

        def finish(result: Answer | BaseException) -> None:
            self.under_way -= 1
            self._finish(call, result)
            done(result)

        # The engine frees the room from here on, whatever happens.
        call.room = None
        call.pending = self.engine.submit(room, request, lambda result: self.completions.post(finish, result))
        self.under_way += 1

    def _transform(self, call: InferCall, message: InferMessage, done: Done) -> None:
        """Raw columns to the model's inputs on another thread, then into the engine."""
        served = self.engine.manifest(call.model.name, call.version)

        def ready(future: Future[InferMessage]) -> None:
            self.under_way -= 1
            try:
                made = future.result()
                now = self.engine.manifest(call.model.name, call.version)
                if not same_inputs(served.manifest, now.manifest):
                    # A version with another vocabulary has taken over since.
                    self._transform(call, message, done)
                    return
                self._release(call)
                self._submit(call, made, done)
                if call.cancelled:
                    call.pending.cancel()
            except BaseException as error:
                self._fail(call, error)
                done(error)

        self.under_way += 1
        try:
            future = self.workers.submit(self._raw.message, call.model, call.version, message)
        except RuntimeError:
            self.under_way -= 1
            raise RequestError("The server is closing; send the request to another.") from None
        future.add_done_callback(lambda made: self.completions.post(ready, made))

    def _finish(self, call: InferCall, result: Answer | BaseException) -> None:
        if isinstance(result, BaseException):
            self._fail(call, result)
            return
        seconds = time.monotonic() - call.started
        self.statistics.succeeded(result, seconds, call.num_bytes, call.protocol)
        if self._tracer is not None:
            self._traced += 1
            if self._traced % self._trace_every == 0:
                self._trace(call, result, seconds)

    def _fail(self, call: InferCall, error: BaseException) -> None:
        self._release(call)
        version = call.version or (call.model.versions[-1] if call.model.versions else "")
        seconds = time.monotonic() - call.started
        reason = failure_of(error).reason
        self.statistics.failed(call.model.name, version, reason, seconds, call.num_bytes, call.protocol)

    def _release(self, call: InferCall) -> None:
        room, call.room = call.room, None
        if room is not None:
            room.release()

    def _trace(self, call: InferCall, answer: Answer, seconds: float) -> None:
        assert self._tracer is not None
        timings = answer.timings
        about = {"model": answer.model, "version": answer.version, "id": answer.id, "protocol": call.protocol}
        begin = call.started - self._began
        self._tracer.record("request", begin, seconds, bytes=call.num_bytes, batch=timings.batch, **about)
        at = timings.started_ns / 1e9 - self._began
        for name, taken in (
            ("queue", timings.queue_ns),
            ("input", timings.input_ns),
            ("compute", timings.compute_ns),
            ("output", timings.output_ns),
        ):
            self._tracer.record(name, at, taken / 1e9, card=timings.card, id=answer.id)
            at += taken / 1e9
