"""Which backend is quickest here: each that is installed, with its settings, on the model's own samples.

A candidate must first give the outputs that the model was frozen with. Then all take turns, on batches of
several sizes, and the one with the least time over all sizes is the choice. One that is several times slower
than the best is measured no further.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from megalith.core.errors import ConfigError, MegalithError
from megalith.export.backends.base import Backend, LoadedPart, LoadSettings, ModelSource, Outputs
from megalith.export.backends.checks import recorded_checks
from megalith.export.backends.choice import BackendChoice, ModelChoice, load_whole
from megalith.export.backends.conformance.findings import compared
from megalith.export.backends.conformance.requests import RequestMaker, rows_of_request
from megalith.export.backends.inputs import ScoreRequest
from megalith.export.backends.kernels.twins import TorchBackend
from megalith.export.backends.registry import listed_backends
from megalith.hardware.timing import Timing, interleave

BATCHES = (1, 32, 256)
_HOPELESS = 4.0
"""Times the best: a candidate that took so long in its first turns takes no more of them."""
_EQUAL = 1.03
"""Times the best within which fewer threads are preferred."""
_LONGEST_ROUND = 0.05
"""Seconds; short runs are repeated within a round until they take about so long."""

Says = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A choice of backends with a number of threads, and what became of it."""

    choice: str
    threads: int
    timings: dict[int, Timing]
    """Of one request, by samples in it."""
    problem: str = ""
    """Why it was left out."""

    @property
    def seconds(self) -> float:
        """The geometric mean over sizes of batches; infinite where it was left out."""
        if self.problem or not self.timings:
            return math.inf
        return math.exp(sum(math.log(timing.median) for timing in self.timings.values()) / len(self.timings))

    def to_dict(self) -> dict[str, Any]:
        """As the manifest and `--json` have it."""
        timings = {str(batch): timing.median for batch, timing in self.timings.items()}
        spreads = {str(batch): timing.spread for batch, timing in self.timings.items()}
        content = {"choice": self.choice, "threads": self.threads, "seconds": timings, "spread": spreads}
        return content | {"problem": self.problem}


@dataclass(frozen=True, slots=True)
class Tuning:
    """All candidates, the best first."""

    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The quickest, or of those that are as quick the one with the fewest threads."""
        found = [each for each in self.candidates if each.seconds < math.inf]
        if not found:
            sentences = "; ".join(f"{each.choice}: {each.problem}" for each in self.candidates)
            raise ConfigError(f"No backend here runs this model ({sentences}).")
        least = min(each.seconds for each in found)
        return min(
            (each for each in found if each.seconds <= _EQUAL * least),
            key=lambda each: (each.threads, each.seconds),
        )


def tune(
    model: ModelSource,
    *,
    batches: Sequence[int] = BATCHES,
    threads: Sequence[int] | None = None,
    repeats: int = 9,
    says: Says = lambda line: None,
) -> Tuning:
    """Measures every candidate on this machine."""
    counts = tuple(threads or sorted({1, len(os.sched_getaffinity(0))}))
    asked, wanted = _samples(model)
    requests = {batch: _of_size(asked, batch) for batch in batches}
    done: list[Candidate] = []
    loaded: dict[tuple[str, int], LoadedPart] = {}
    try:
        for choice, backend in _choices(model):
            for count in counts:
                says(f"{choice}, {count} threads")
                try:
                    part = load_whole(model, choice, count)
                except MegalithError as error:
                    done.append(Candidate(str(choice), count, {}, str(error)))
                    continue
                limits = backend.tolerance(model, (choice.dense or choice.lookups).options)
                verdict = compared("", wanted, part.run(asked), limits, model.manifest.program)
                if verdict.passed:
                    loaded[str(choice), count] = part
                else:
                    part.close()
                    done.append(Candidate(str(choice), count, {}, f"gives {verdict.got}"))
        done += _timed(loaded, requests, repeats, says)
    finally:
        for part in loaded.values():
            part.close()
    return Tuning(tuple(sorted(done, key=lambda each: (each.seconds, each.choice, each.threads))))


def _choices(model: ModelSource) -> Iterator[tuple[ModelChoice, Backend]]:
    """Backends that run all of a model, and our lookups with those that run its dense part."""
    usable = {
        name: listed.backend
        for name, listed in listed_backends().items()
        if listed.backend and not listed.problem
    }
    for name, backend in usable.items():
        if "whole" in backend.parts:
            for options in backend.settings_to_try(model, "whole"):
                yield ModelChoice(BackendChoice(name, options)), backend
        if "dense" in backend.parts and name != "native" and "native" in usable and model.manifest.tables:
            for options in backend.settings_to_try(model, "dense"):
                yield ModelChoice(BackendChoice("native"), BackendChoice(name, options)), backend


def _samples(model: ModelSource) -> tuple[ScoreRequest, Outputs]:
    """Samples that the model came with, or drawn ones, and their outputs."""
    found = recorded_checks(model)
    if found is not None:
        return found
    request = RequestMaker(model, "whole").request(256)
    return request, TorchBackend().load(model, "whole", LoadSettings()).run(request)


def _of_size(request: ScoreRequest, batch: int) -> ScoreRequest:
    assert request.lengths is not None
    samples = request.lengths.shape[1]
    return rows_of_request(request, [row % samples for row in range(batch)])


def _timed(
    loaded: dict[tuple[str, int], LoadedPart],
    requests: dict[int, ScoreRequest],
    repeats: int,
    says: Says,
) -> list[Candidate]:
    timings: dict[tuple[str, int], dict[int, Timing]] = {key: {} for key in loaded}
    for batch, request in requests.items():
        says(f"batches of {batch}")
        first = interleave({_key(key): _runs(part, request, 1) for key, part in loaded.items()}, repeats=2)
        least = min((timing.median for timing in first.values()), default=0.0)
        keen = [key for key in loaded if first[_key(key)].median <= _HOPELESS * least]
        inner = max(1, min(1000, round(_LONGEST_ROUND / max(least, 1e-6))))
        long = interleave({_key(key): _runs(loaded[key], request, inner) for key in keen}, repeats)
        for key in loaded:
            timings[key][batch] = _single(long[_key(key)], inner) if key in keen else first[_key(key)]
    return [Candidate(choice, count, timings[choice, count]) for choice, count in loaded]


def _key(key: tuple[str, int]) -> str:
    return f"{key[0]} {key[1]}"


def _runs(part: LoadedPart, request: ScoreRequest, count: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(count):
            part.run(request)

    return run


def _single(timing: Timing, count: int) -> Timing:
    return Timing(
        tuple(seconds / count for seconds in timing.seconds),
        tuple(seconds / count for seconds in timing.cpu_seconds),
    )
