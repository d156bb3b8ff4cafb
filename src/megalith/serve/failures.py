"""What a request can fail with, as a front end maps it to a status.

ServeError
├── BadRequestError          400  the request is wrong; the sentence says what
├── UnknownModelError        404  no such model or version
├── OverloadedError          503  all room is taken; `retry_after` says when to come back
├── DeadlineError            504  the deadline passed first
├── RequestCancelledError    499  whoever asked went away
├── BackendFailedError       500  a defect in a backend, or cards that died again and again
└── ShuttingDownError        503  the engine takes no more requests
"""

from __future__ import annotations

from typing import ClassVar

from megalith.core.errors import ServeError


class RequestError(ServeError):
    """A request that got no answer; `status` is that of HTTP, `reason` that of the metric of failures."""

    status: ClassVar[int] = 500
    reason: ClassVar[str] = "OTHER"


class BadRequestError(RequestError):
    """The request is wrong."""

    status = 400


class UnknownModelError(RequestError):
    """No model or no version of that name is served."""

    status = 404


class OverloadedError(RequestError):
    """As many requests are active and queued as are allowed."""

    status = 503
    reason = "REJECTED"

    def __init__(self, sentence: str, retry_after: float) -> None:
        super().__init__(sentence)
        self.retry_after = retry_after
        """Seconds after which it is worth trying again."""


class DeadlineError(RequestError):
    """The deadline of the request passed before its answer was there."""

    status = 504
    reason = "REJECTED"


class RequestCancelledError(RequestError):
    """The request was cancelled by who had sent it."""

    status = 499
    reason = "CANCELED"


class BackendFailedError(RequestError):
    """The backend broke on the request, or no card could finish it."""

    status = 500
    reason = "BACKEND"


class ShuttingDownError(RequestError):
    """The engine drains or is closed."""

    status = 503
    reason = "REJECTED"
    retry_after = 1.0
