"""The backend of a manifest, loaded and checked: what `mg.load_model` and `megalith predict` score with.

A backend must first give the outputs that the model came with, within what it promises: bit for bit where
`native` runs a model as its gate did, within `Backend.tolerance` for others. Where it is not installed here,
refuses the model or gives other outputs, `native` takes its place, with a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from megalith.core.errors import MegalithError, ServeError
from megalith.export.backends.base import LoadedPart, ModelSource
from megalith.export.backends.checks import recorded_checks
from megalith.export.backends.choice import ModelChoice, load_whole, parse_choice
from megalith.export.backends.conformance.findings import compared
from megalith.export.backends.registry import find_backend

FALLBACK = "native"


class ReadyModel(NamedTuple):
    """A whole model that takes requests, and the choice of backends that runs it."""

    part: LoadedPart
    choice: str


def ready_model(
    model: ModelSource, threads: int, tell: Callable[[str], None], backend: str | None = None
) -> ReadyModel:
    """The whole model on `backend`, or on that of its manifest, or else on `native`.

    A backend that was asked for by name is never replaced.
    """
    if backend is not None:
        return ReadyModel(load_checked(model, backend, threads), backend)
    named = model.manifest.backend
    try:
        return ReadyModel(load_checked(model, named, threads), named)
    except MegalithError as error:
        if named == FALLBACK:
            raise
        said = str(error).removesuffix(".")
        tell(f"Backend {named} of model '{model.manifest.name}' cannot run here ({said}); using {FALLBACK}.")
    return ReadyModel(load_checked(model, FALLBACK, threads), FALLBACK)


def load_checked(model: ModelSource, choice: ModelChoice | str, threads: int) -> LoadedPart:
    """The whole model on a choice of backends that gives the outputs the model came with."""
    chosen = parse_choice(choice) if isinstance(choice, str) else choice
    part = load_whole(model, chosen, threads)
    found = recorded_checks(model)
    if found is None:
        return part
    request, wanted = found
    last = chosen.dense or chosen.lookups
    limits = find_backend(last.name).tolerance(model, last.options)
    try:
        verdict = compared("", wanted, part.run(request), limits, model.manifest.program)
    except BaseException:
        part.close()
        raise
    if not verdict.passed:
        part.close()
        raise ServeError(
            f"Backend {chosen} gives {verdict.got} from what model '{model.manifest.name}' was checked with; "
            "choose another backend, or export the model again."
        )
    return part
