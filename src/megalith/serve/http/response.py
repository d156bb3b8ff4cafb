"""Responses and their bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from megalith.serve.http.bodies import compress
from megalith.serve.protocol.errors import failure_of

JSON = "application/json"
_COMPRESS_FROM_BYTES = 256
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A status, and a body in pieces."""

    status: int = 200
    pieces: Sequence[bytes | memoryview] = ()
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    close: bool = False
    """Whether the connection ends with it."""

    def encode(self, coding: str | None, keep_alive: bool, body: bool = True) -> bytes:
        """All bytes of it; with `body` false, as HEAD wants it."""
        pieces = self.pieces
        size = sum(len(piece) for piece in pieces)
        head = [f"HTTP/1.1 {self.status} {_PHRASES.get(self.status, 'Status')}\r\n"]
        if coding is not None and size >= _COMPRESS_FROM_BYTES:
            pieces = [compress(pieces, coding)]
            size = len(pieces[0])
            head.append(f"Content-Encoding: {coding}\r\n")
        head.append(f"Content-Type: {self.content_type}\r\nContent-Length: {size}\r\n")
        head += [f"{name}: {value}\r\n" for name, value in self.headers]
        if not keep_alive or self.close:
            head.append("Connection: close\r\n")
        head.append("\r\n")
        return b"".join(["".join(head).encode("latin-1"), *(pieces if body else ())])


def json_response(content: Any, status: int = 200) -> HttpResponse:
    """A value as JSON."""
    return HttpResponse(status, [json.dumps(content, allow_nan=False).encode()])


def error_response(error: BaseException, close: bool = False) -> HttpResponse:
    """The sentence of an error, and when to try again."""
    failure = failure_of(error)
    headers: tuple[tuple[str, str], ...] = ()
    if failure.retry_after is not None:
        headers = (("Retry-After", str(failure.retry_after)),)
    allowed = getattr(error, "allowed", None)
    if allowed is not None:
        headers = (*headers, ("Allow", allowed))
    return HttpResponse(
        failure.status, [json.dumps({"error": failure.sentence}).encode()], headers=headers, close=close
    )
