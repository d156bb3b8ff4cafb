"""One connection: heads into a small buffer, bodies from the socket straight to where they are needed.

A connection has one request at a time; what a client sends ahead waits in the buffer, then in the socket.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from enum import Enum
from typing import Protocol, cast

from megalith.core.errors import MegalithError
from megalith.serve.failures import BadRequestError
from megalith.serve.http.bodies import ChunkedBody, accepted_coding, too_large
from megalith.serve.http.head import MAX_HEAD_BYTES, HeadTooLargeError, RequestHead, parse_head
from megalith.serve.http.response import HttpResponse, error_response

IDLE_SECONDS, HEAD_SECONDS, LINGER_SECONDS, WRITE_SECONDS = 75.0, 10.0, 2.0, 30.0
BODY_SECONDS, BODY_BYTES_PER_SECOND = 10.0, 256 << 10
"""A body has this long, and longer by its size at this rate."""
_FOREVER = float("inf")
_discarded = memoryview(bytearray(256 << 10))
_log = logging.getLogger(__name__)

Reply = Callable[[HttpResponse], None]


class Upload(Protocol):
    """Takes the body of a request, and answers by the reply that it was opened with."""

    def destination(self, num_bytes: int) -> memoryview | None:
        """Where a body of known length is to be read; None leaves that to the connection."""

    def complete(self, body: memoryview) -> None:
        """The body is there."""

    def abandon(self) -> None:
        """The client went away, or failed to send a body; nobody waits for an answer."""


class Application(Protocol):
    """Who answers requests."""

    max_body_bytes: int

    def open(self, head: RequestHead, reply: Reply) -> Upload:
        """Takes a request up by its head; a MegalithError is the answer."""


class _State(Enum):
    HEAD = "waits for a head"
    BODY = "reads a body to its destination"
    CHUNKS = "reads a body in chunks"
    DISCARD = "reads a body that nobody needs"
    ANSWER = "waits for the answer"
    CLOSING = "waits for the client to see the last answer"


class HttpConnection(asyncio.BufferedProtocol):
    """Reads requests of one client and writes the answers in their order."""

    def __init__(self, application: Application, connections: set[HttpConnection], max_count: int) -> None:
        self._application, self._connections, self._max_count = application, connections, max_count
        self._buffer = memoryview(bytearray(MAX_HEAD_BYTES))
        self._start = self._end = 0
        """What the buffer holds and nobody has taken."""
        self._state = _State.HEAD
        self._body, self._filled, self._left = memoryview(b""), 0, 0
        self._chunks: ChunkedBody | None = None
        self._upload: Upload | None = None
        self._head: RequestHead | None = None
        self._paused = self._congested = self._half_closed = self._advancing = False
        self._draining = False
        self.deadline = _FOREVER
        """When the server ends it, on the monotonic clock."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        self.deadline = time.monotonic() + IDLE_SECONDS
        if len(self._connections) > self._max_count:
            # Refused before a head costs anything.
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone; what it asked for is taken back."""
        self._connections.discard(self)
        self._abandon()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes are to go."""
        if self._state is _State.BODY:
            return self._body[self._filled :]
        if self._state in (_State.DISCARD, _State.CLOSING):
            return _discarded if self._state is _State.CLOSING else _discarded[: max(1, self._left)]
        if self._end == len(self._buffer):
            self._compact()
        # Never empty: reading is paused before the buffer is full, and a head that fills it is refused.
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have come to where `get_buffer` said."""
        if self._state is _State.BODY:
            self._filled += nbytes
            if self._filled == len(self._body):
                self._complete(self._body)
                self._advance()
        elif self._state is _State.DISCARD:
            self._left -= nbytes
            if self._left <= 0:
                self._next_request()
                self._advance()
        elif self._state is not _State.CLOSING:
            self._end += nbytes
            self._advance()

    def eof_received(self) -> bool:
        """Says whether to keep the way to the client open: it may have sent all and wait for the answer."""
        self._half_closed = True
        if self._state is _State.ANSWER or self._congested:
            return True
        self._refuse_unfinished()
        return False

    def pause_writing(self) -> None:
        """The client reads slower than we answer."""
        self._congested = True
        self.deadline = time.monotonic() + WRITE_SECONDS

    def resume_writing(self) -> None:
        """It has caught up."""
        self._congested = False
        if self._state is not _State.ANSWER:
            self.deadline = time.monotonic() + IDLE_SECONDS
        self._advance()

    def drain(self) -> None:
        """No further request: an idle connection ends now, another with its answer."""
        self._draining = True
        if self._state is _State.HEAD and self._start == self._end:
            self._transport.close()

    def abort(self) -> None:
        """Ends it whatever it does."""
        self._transport.abort()

    def end(self) -> None:
        """Time is up."""
        if self._state is _State.HEAD and self._end > self._start:
            self._refuse(LateRequestError("The head of the request took too long; send it in one go."))
        elif self._state in (_State.BODY, _State.CHUNKS):
            self._refuse(LateRequestError("The body of the request took too long; send it in one go."))
        elif self._state is _State.HEAD and not self._congested:
            self._transport.close()
        else:
            self._transport.abort()

    def _advance(self) -> None:
        """Goes on as far as the bytes suffice."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._step():
                pass
        finally:
            self._advancing = False
        if self._half_closed and self._state not in (_State.ANSWER, _State.CLOSING) and not self._congested:
            # What it needs to go on will never come.
            self._refuse_unfinished()
            self._transport.close()
            return
        if self._state is _State.ANSWER and self._end == len(self._buffer) and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        elif self._paused and self._state is not _State.ANSWER:
            self._paused = False
            self._transport.resume_reading()

    def _refuse_unfinished(self) -> None:
        """Answers a request that the client has ended too soon, if there is one."""
        if self._state in (_State.BODY, _State.CHUNKS):
            self._refuse(BadRequestError("The body ended before its length was reached; send all of it."))
        elif self._state is _State.HEAD and self._end > self._start:
            self._refuse(BadRequestError("The request ended within its head; send all of it."))

    def _step(self) -> bool:
        if self._transport.is_closing() or self._congested:
            return False
        waiting = self._end - self._start
        if self._state is _State.HEAD:
            return self._step_head()
        if self._state is _State.BODY:
            taken = min(waiting, len(self._body) - self._filled)
            self._body[self._filled : self._filled + taken] = self._buffer[self._start : self._start + taken]
            self._filled += taken
            self._start += taken
            if self._filled < len(self._body):
                return False
            self._complete(self._body)
            return True
        if self._state is _State.CHUNKS and waiting:
            return self._step_chunks()
        if self._state is _State.DISCARD:
            taken = min(waiting, self._left)
            self._left -= taken
            self._start += taken
            if self._left:
                return False
            self._next_request()
            return True
        return False

    def _step_head(self) -> bool:
        if self._start == self._end:
            self._start = self._end = 0
            return False
        held = bytes(self._buffer[self._start : self._end])
        end = held.find(b"\r\n\r\n")
        if end < 0:
            if held.startswith(b"\r\n"):
                # Empty lines ahead of a request are passed over, as the standard has it.
                self._start += 2
                return True
            if len(held) >= len(self._buffer):
                size = len(self._buffer)
                self._refuse(HeadTooLargeError(f"The head has more than {size} bytes; send fewer headers."))
            elif self._start == 0 and held.find(b"\n") == 0:
                self._refuse(BadRequestError("The request begins with an empty line; send the request line."))
            else:
                self.deadline = min(self.deadline, time.monotonic() + HEAD_SECONDS)
            return False
        self._start += end + 4
        try:
            head = parse_head(held[: end + 4].lstrip(b"\r\n") if held[:2] == b"\r\n" else held[: end + 4])
        except MegalithError as error:
            self._refuse(error)
            return False
        return self._open(head)

    def _open(self, head: RequestHead) -> bool:
        self._head = head
        limit = self._application.max_body_bytes
        try:
            if (head.content_length or 0) > limit:
                self._refuse(too_large(limit))
                return False
            upload = self._application.open(head, self._reply)
            destination = upload.destination(head.content_length) if head.content_length else None
        except Exception as error:
            return self._answer_early(head, error)
        self._upload = upload
        if not head.has_body:
            self._complete(memoryview(b""))
            return True
        if head.expects_continue and self._end == self._start:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if head.chunked:
            self._state, self._chunks = _State.CHUNKS, ChunkedBody(limit)
        else:
            size = head.content_length or 0
            self._body = memoryview(bytearray(size)) if destination is None else destination
            self._state, self._filled = _State.BODY, 0
        seconds = BODY_SECONDS + (head.content_length or limit) / BODY_BYTES_PER_SECOND
        self.deadline = time.monotonic() + seconds
        return True

    def _answer_early(self, head: RequestHead, error: Exception) -> bool:
        """Refuses a request by its head; its body is read past, so that the connection can go on."""
        if not isinstance(error, MegalithError):
            _log.exception("request failed")
        if head.chunked or (head.expects_continue and self._end == self._start):
            # A client may or may not send the body now; there is no telling where the next request begins.
            self._refuse(error)
            return False
        left = head.content_length or 0
        self._write(error_response(error))
        if self._state is not _State.CLOSING:
            self._state, self._left = _State.DISCARD, left
            self.deadline = time.monotonic() + BODY_SECONDS + left / BODY_BYTES_PER_SECOND
        return True

    def _step_chunks(self) -> bool:
        assert self._chunks is not None
        try:
            self._start += self._chunks.feed(self._buffer[self._start : self._end])
        except MegalithError as error:
            self._refuse(error)
            return False
        if not self._chunks.done:
            return False
        self._complete(memoryview(self._chunks.data))
        return True

    def _complete(self, body: memoryview) -> None:
        assert self._upload is not None
        self._state, self.deadline = _State.ANSWER, _FOREVER
        self._body, self._chunks = memoryview(b""), None
        try:
            self._upload.complete(body)
        except Exception as error:
            if not isinstance(error, MegalithError):
                _log.exception("request failed")
            self._reply(error_response(error))

    def _reply(self, response: HttpResponse) -> None:
        """The answer to the request under way."""
        if self._state is not _State.ANSWER or self._transport.is_closing():
            return
        self._upload = None
        self._write(response)
        if self._state is _State.ANSWER:
            self._next_request()
        self._advance()

    def _write(self, response: HttpResponse) -> None:
        head = self._head
        keep = head is not None and head.keep_alive and not self._draining and not response.close
        coding = accepted_coding(head.headers.get("accept-encoding")) if head is not None else None
        with_body = head is None or head.method != "HEAD"
        self._transport.write(response.encode(coding, keep, with_body))
        if not keep or (self._half_closed and self._start == self._end):
            self._linger()

    def _refuse(self, error: BaseException) -> None:
        """Answers with an error and ends the connection."""
        self._abandon()
        if not self._transport.is_closing():
            self._write(error_response(error, close=True))

    def _linger(self) -> None:
        """Ends our side, and reads on for a moment: closing at once could cost the client the answer."""
        self._state = _State.CLOSING
        self._start = self._end = 0
        if self._half_closed or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        self.deadline = time.monotonic() + LINGER_SECONDS

    def _next_request(self) -> None:
        self._state, self._head, self._upload = _State.HEAD, None, None
        self.deadline = time.monotonic() + IDLE_SECONDS

    def _abandon(self) -> None:
        upload, self._upload = self._upload, None
        self._body, self._chunks = memoryview(b""), None
        if upload is not None:
            upload.abandon()

    def _compact(self) -> None:
        kept = bytes(self._buffer[self._start : self._end])
        self._buffer[: len(kept)] = kept
        self._start, self._end = 0, len(kept)


class LateRequestError(BadRequestError):
    """A request whose bytes took too long to come (408)."""

    status = 408
