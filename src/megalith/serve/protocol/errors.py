"""Requests that a front end refuses by itself, and what a client is told of any error.

BadRequestError            of `failures`: the request is wrong as it stands (400, INVALID_ARGUMENT)
├── PathNotFoundError      no such path (404, NOT_FOUND)
├── TooLargeError          more bytes than the server takes (413, RESOURCE_EXHAUSTED)
└── UnsupportedError       an extension that this server does not have (501, UNIMPLEMENTED)
"""

from __future__ import annotations

import math
from typing import NamedTuple

from megalith.core.errors import ConfigError, DataError, QualityError, ServeError, sentence_of
from megalith.serve.failures import BadRequestError, RequestError


class PathNotFoundError(BadRequestError):
    """There is nothing under that path."""

    status = 404


class TooLargeError(BadRequestError):
    """More bytes than the server takes."""

    status = 413


class UnsupportedError(BadRequestError):
    """A part of the protocol that this server does not have."""

    status = 501


class Failure(NamedTuple):
    """An error as a client is told of it."""

    status: int
    """Of HTTP."""
    code: str
    """Of gRPC."""
    reason: str
    """The label of `nv_inference_request_failure`: REJECTED, CANCELED, BACKEND or OTHER."""
    sentence: str
    retry_after: int | None = None
    """Seconds after which the same request may succeed."""


_CODES = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    431: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    505: "UNIMPLEMENTED",
}


def failure_of(error: BaseException) -> Failure:
    """What to tell a client of an error; of one that is ours it learns that it happened and no more."""
    sentence = sentence_of(error)
    if sentence is None:
        return Failure(
            500, "INTERNAL", "BACKEND", "The server failed on this request; its log says why, try another."
        )
    if isinstance(error, RequestError):
        retry_after = getattr(error, "retry_after", None)
        if retry_after is None and error.status == 503:
            retry_after = 1.0
        seconds = None if retry_after is None else max(1, math.ceil(retry_after))
        return Failure(error.status, _CODES.get(error.status, "INTERNAL"), error.reason, sentence, seconds)
    if isinstance(error, (ServeError, DataError, ConfigError, QualityError)):
        return Failure(400, "INVALID_ARGUMENT", "OTHER", sentence)
    return Failure(500, "INTERNAL", "BACKEND", sentence)
