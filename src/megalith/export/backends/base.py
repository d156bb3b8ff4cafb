"""The interface between a frozen model and what runs it.

A backend loads a part of a model and runs requests on it:

    lookups   ids of some tables -> their pooled vectors side by side
    dense     numbers and pooled vectors -> one output a task
    whole     numbers and ids -> one output a task

`Backend` and `LoadedPart` are all that a server, `--tune` and the conformance suite know. A backend of one's
own subclasses both: `LoadedPart.run` checks, counts and times every request, and asks the subclass only for
`compute`.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, Protocol

from torch import Tensor

from megalith.core.errors import ConfigError, MegalithError, ServeError, nearest, without_controls
from megalith.export.backends.inputs import PartInputs, RequestIds, ScoreRequest
from megalith.export.manifest import ModelManifest

Part = Literal["lookups", "dense", "whole"]
PARTS: tuple[Part, ...] = ("lookups", "dense", "whole")
Outputs = dict[str, Tensor]
"""Float32 [batch] of each task by its name; of lookups `embedded` [batch, columns]."""


class ModelSource(Protocol):
    """A frozen model as backends see it; `megalith.export.folder` reads one from its folder."""

    @property
    def manifest(self) -> ModelManifest:
        """What the model says of itself."""

    def table(self, name: str) -> Mapping[str, Tensor]:
        """`rows`, and where the table has them `starts` and `ids`; mapped from the file, not copied."""

    def weights(self) -> Mapping[str, Tensor]:
        """Tensors of the program, by the names it gives them."""

    def checks(self) -> Mapping[str, Tensor]:
        """Some samples, and the outputs that the model gives for them."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How a part is loaded."""

    threads: int = 1
    """That one request may use."""
    tables: tuple[str, ...] | None = None
    """Those of a lookups part; None is all."""
    pooled: Literal["float32", "float16"] = "float32"
    """What a lookups part gives its vectors as."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The backend's own, such as a device; it refuses those it does not know."""


class Health(NamedTuple):
    """Whether a part can take requests, and if not, why."""

    ready: bool
    sentence: str = ""


class PartStatistics(NamedTuple):
    """What a part has done since it was loaded."""

    requests: int
    """That were answered."""
    samples: int
    """Of these requests."""
    refused: int
    """Requests that were wrong."""
    failed: int
    """Requests that broke within the backend."""
    seconds: float
    """Within `run`, over all requests that were answered."""


class LoadedPart(ABC):
    """A part of a model that takes requests, from any thread, until it is closed.

    Subclasses define `compute`, `bytes` and `release`. Threads may be inside `compute` at the same time; a
    backend that cannot have that sets `one_at_a_time`.
    """

    one_at_a_time: ClassVar[bool] = False

    def __init__(self, manifest: ModelManifest, part: Part, settings: LoadSettings) -> None:
        self.inputs = PartInputs(manifest, part, settings.tables)
        self.part: Part = part
        self.settings = settings
        self.joins_users = False
        """Whether `answer` takes requests of several users as one (`RequestIds.user_samples`)."""
        self._counts = threading.Lock()
        self._running = threading.Lock()
        self._idle = threading.Condition(self._counts)
        self._under_way = self._requests = self._samples = self._refused = self._failed = 0
        self._seconds = 0.0
        self._closed = False
        self._failure = ""

    @abstractmethod
    def compute(self, batch: int, dense: Tensor | None, ids: RequestIds | None) -> Outputs:
        """Outputs of a request that was checked. `dense` has the numbers, beside which a dense part finds
        the pooled vectors in `ids.pooled`."""

    @abstractmethod
    def bytes(self) -> dict[str, int]:
        """Bytes that this part holds by what they are for: `tables`, `index` (of listed ids), `dense`,
        `scratch`; all zero once closed."""

    @abstractmethod
    def release(self) -> None:
        """Lets go of what was loaded; called once, when nothing runs any more."""

    def run(self, request: ScoreRequest) -> Outputs:
        """The outputs of a request. A wrong one is refused with a sentence that names what is wrong."""
        started = time.perf_counter()
        with self._counts:
            if self._closed:
                raise ServeError("This part of the model is closed; load it again.")
            self._under_way += 1
        refused = failed = samples = 0
        try:
            at_once = self.run_at_once(request)
            if at_once is not None:
                samples, outputs = at_once
            else:
                samples, dense, ids = self.inputs.checked(request)
                outputs = self.answer(samples, dense, ids)
        except MegalithError:
            refused = 1
            raise
        except Exception as error:
            failed = 1
            self._failure = without_controls(f"{type(error).__name__}: {error}")
            raise
        else:
            self._failure = ""
            return outputs
        finally:
            taken = time.perf_counter() - started
            with self._counts:
                self._under_way -= 1
                self._refused += refused
                self._failed += failed
                if not refused and not failed:
                    self._requests += 1
                    self._samples += samples
                    self._seconds += taken
                if self._closed and not self._under_way:
                    self._idle.notify_all()

    def run_at_once(self, request: ScoreRequest) -> tuple[int, Outputs] | None:
        """Samples and outputs of a request, for backends that check and compute in one call; None, as always
        here, where it is to be checked and computed step by step: so must be one that is wrong, for the
        sentence that says what is."""
        del request
        return None

    def answer(self, batch: int, dense: Tensor | None, ids: RequestIds | None) -> Outputs:
        """`compute`, by one thread at a time where that is asked for; an empty batch is answered here."""
        if not batch:
            return self.inputs.empty_outputs(self.settings.pooled)
        if not self.one_at_a_time:
            return self.compute(batch, dense, ids)
        with self._running:
            return self.compute(batch, dense, ids)

    def health(self) -> Health:
        """Whether it can take requests. A request that was wrong changes nothing; one that broke within the
        backend does, until another succeeds."""
        if self._closed:
            return Health(False, "It is closed; load the model again.")
        if self._failure:
            return Health(False, f"The last request failed ({self._failure}); run another, or load again.")
        return Health(True)

    def statistics(self) -> PartStatistics:
        """Counts since it was loaded."""
        with self._counts:
            return PartStatistics(self._requests, self._samples, self._refused, self._failed, self._seconds)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Waits for requests under way and lets go of the memory; a second call does nothing."""
        with self._counts:
            if self._closed:
                return
            self._closed = True
            while self._under_way:
                self._idle.wait()
        self.release()


class Backend(ABC):
    """Something that runs parts of frozen models; made without arguments by the registry."""

    name: ClassVar[str]
    """As `--backend` has it."""
    parts: ClassVar[tuple[Part, ...]]
    """Those that it can run."""
    exact: ClassVar[frozenset[str]] = frozenset()
    """What it promises to give bit for bit as the twins do: of `lookups`, `int8`, `bfloat16`."""
    options: ClassVar[Mapping[str, str]] = {}
    """Options that `load` takes, and what each means."""

    def unavailable(self) -> str | None:
        """None where it can run here, else one sentence: why not, and how to get it."""
        return None

    def settings_to_try(self, model: ModelSource, part: Part) -> tuple[Mapping[str, str], ...]:
        """Options that `--tune` measures, each a candidate of its own."""
        del model, part
        return ({},)

    def rounds_as_defined(self, model: ModelSource, options: Mapping[str, str]) -> bool:
        """Whether activations of layers in few bits are rounded where the twins round them. One that rounds
        in its own way, or leaves it out, says so: it may then be further from them."""
        del model, options
        return True

    def tolerance(self, model: ModelSource, options: Mapping[str, str]) -> Mapping[str, float]:
        """How far each output may be from the twins' where no bits are promised: a probability as such, a
        number relative to the largest."""
        from megalith.export.backends.tolerance import usual_tolerance

        return usual_tolerance(model, rounds_as_defined=self.rounds_as_defined(model, options))

    @abstractmethod
    def load(self, model: ModelSource, part: Part, settings: LoadSettings) -> LoadedPart:
        """The part, ready for requests. What cannot be run is refused here with a sentence that names it."""

    def check_load(self, part: Part, settings: LoadSettings) -> None:
        """Refuses a part or an option that this backend does not know; for the first line of `load`."""
        if part not in self.parts:
            can = " and ".join(self.parts)
            raise ConfigError(f"Backend '{self.name}' runs {can}, not {part}; choose another for it.")
        for option in settings.options:
            if option not in self.options:
                tail = nearest(option, list(self.options)) if self.options else "it takes none."
                raise ConfigError(f"Backend '{self.name}' has no option '{option}'; {tail}")
        why = self.unavailable()
        if why is not None:
            raise ConfigError(why)
