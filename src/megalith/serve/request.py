"""What goes into an engine and what comes out: rooms for bodies, requests, answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

InputType = Literal["FP32", "INT32", "INT64"]
ITEM_BYTES: dict[str, int] = {"FP32": 4, "INT32": 4, "INT64": 8}


class TensorView(NamedTuple):
    """A tensor of a request where it lies in the request's room, in row-major order."""

    offset: int
    """Bytes from the beginning of the room."""
    num_bytes: int
    dtype: InputType | str
    """As the Open Inference Protocol names it."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InferRequest:
    """Samples to score. Inputs are `dense`, `values`, `lengths`, and for features of the user that are sent
    once `user_values`, `user_lengths`."""

    model: str
    inputs: Mapping[str, TensorView]
    version: str | None = None
    """None is the newest."""
    id: str = ""
    deadline: float | None = None
    """As `time.monotonic()` counts; None waits as long as it takes."""
    priority: int = 0
    """Smaller goes first; among equals the one that came first."""
    outputs: tuple[str, ...] | None = None
    """Tasks asked for; None is all."""


class Timings(NamedTuple):
    """Where the nanoseconds of a request went."""

    queue_ns: int
    """From `submit` until a card had begun."""
    input_ns: int
    """Checks, and whatever had to be put together."""
    compute_ns: int
    output_ns: int
    """Until `done` was called."""
    started_ns: int
    """When it was submitted, as `time.monotonic_ns()` counts."""
    batch: int = 0
    """Samples that ran together with it, its own among them."""
    card: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """Scores of a request."""

    model: str
    version: str
    id: str
    outputs: Mapping[str, NDArray[np.float32]]
    """Float32 [samples] of each task, memory of its own."""
    timings: Timings
    degraded: bool = False
    """Some tables were lost and count as zeros; only where the engine's settings allow it."""


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """An input or output of a model as the protocol lists it; -1 is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model that is served."""

    name: str
    versions: tuple[str, ...]
    """The newest last."""
    inputs: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...]
    ready: bool
    backend: str
    folder: str
    """Of the newest version; of a delta that has none, the one that has its schema and vocabulary."""
    features: tuple[str, ...] = ()
    user_features: tuple[str, ...] = ()
    bytes: Mapping[str, int] = field(default_factory=dict)
    """Of the newest version, by what they are for."""
