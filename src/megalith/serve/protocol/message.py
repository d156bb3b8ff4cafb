"""An inference request as every transport reads it, before it is known whether a model can take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from megalith.serve.failures import BadRequestError
from megalith.serve.protocol.errors import UnsupportedError

MAX_TENSORS = 1024


@dataclass(slots=True)
class InputTensor:
    """One input: where its bytes are, and what they are of."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview
    """Row-major and little-endian; strings are each preceded by their length in 4 bytes."""
    offset: int | None = None
    """Where it begins in the request's room, if it lies there already."""


@dataclass(frozen=True, slots=True)
class OutputChoice:
    """An output that a client asks for."""

    name: str
    binary: bool


@dataclass(slots=True)
class InferMessage:
    """A request for a model."""

    id: str = ""
    inputs: list[InputTensor] = field(default_factory=list)
    outputs: list[OutputChoice] = field(default_factory=list)
    """Those asked for; none is all."""
    binary_output: bool = False
    """How outputs are sent that no choice is made of."""
    timeout_seconds: float | None = None
    priority: int = 0


def read_parameters(message: InferMessage, parameters: Mapping[str, Any]) -> None:
    """Takes over what a request's parameters ask for; those that no server rule covers are let be."""
    timeout = parameters.get("timeout")
    if timeout is not None:
        # Microseconds; 0 is none.
        message.timeout_seconds = _whole(timeout, "timeout") / 1e6 or None
    message.priority = min(_whole(parameters.get("priority", 0), "priority"), 1 << 31)
    if parameters.get("sequence_id") not in (None, 0, ""):
        raise UnsupportedError("Models here keep no state between requests; leave out 'sequence_id'.")


def check_output_parameters(name: str, parameters: Mapping[str, Any]) -> None:
    """Refuses what this server cannot do with an output."""
    if parameters.get("classification"):
        raise UnsupportedError(f"Output '{name}' cannot be classified here; ask for its values.")
    check_no_shared_memory(f"Output '{name}'", parameters)


def check_no_shared_memory(what: str, parameters: Mapping[str, Any]) -> None:
    """Refuses tensors in shared memory, which this server does not map."""
    if any(str(key).startswith("shared_memory") for key in parameters):
        raise UnsupportedError(f"{what} is in shared memory, which this server has not; send it in the body.")


def check_count(what: str, count: int) -> None:
    """Refuses more tensors than any model has."""
    if count > MAX_TENSORS:
        raise BadRequestError(f"The request has {count} {what}; send at most {MAX_TENSORS}.")


def check_id(text: object) -> str:
    """A request's id, which comes back with its answer."""
    if not isinstance(text, str) or len(text) > 1024:
        raise BadRequestError("The 'id' of a request is text of at most 1024 characters; send such a one.")
    return text


def _whole(value: Any, name: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if type(value) is not int or value < 0 or value >= 1 << 63:
        raise BadRequestError(f"Parameter '{name}' is to be a whole number from 0; send such a one.")
    return value
