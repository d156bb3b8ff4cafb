"""Clients that cost little, so that a load test measures the server: bytes out, bytes in, no parsing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from megalith.core.errors import ServeError

Done = Callable[[int, bytes], None]
"""Takes the status, 200 where all is well and 0 where the connection failed, and the body."""


class LoadClient(Protocol):
    """Sends payloads; of the event loop's thread."""

    def send(self, payload: bytes, done: Done) -> None:
        """Starts a request."""

    async def close(self) -> None:
        """Ends connections."""


class HttpLoadClient:
    """HTTP over as many connections as there are requests at a time, up to a bound; others wait."""

    def __init__(self, host: str, port: int, connections: int = 256) -> None:
        self._host, self._port, self._most = host, port, connections
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._opening = 0
        self._waiting: deque[tuple[bytes, Done]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, payload: bytes, done: Done) -> None:
        """Starts a request on a free connection, or on a new one."""
        if self._idle:
            self._idle.pop().send(payload, done)
            return
        self._waiting.append((payload, done))
        if len(self._all) + self._opening < self._most:
            self._opening += 1
            task = asyncio.get_running_loop().create_task(self._open())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def freed(self, connection: _Connection) -> None:
        """A connection has its answer."""
        if self._waiting:
            connection.send(*self._waiting.popleft())
        else:
            self._idle.append(connection)

    def lost(self, connection: _Connection) -> None:
        """A connection has ended."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    async def close(self) -> None:
        """Ends connections."""
        for connection in list(self._all):
            connection.close()

    async def _open(self) -> None:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self), self._host, self._port
            )
        except OSError:
            self._opening -= 1
            if self._waiting:
                self._waiting.popleft()[1](0, b"the connection was refused")
            return
        self._opening -= 1
        self._all.add(connection)
        self.freed(connection)


class _Connection(asyncio.Protocol):
    def __init__(self, client: HttpLoadClient) -> None:
        self._client = client
        self._done: Done | None = None
        self._held = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self, payload: bytes, done: Done) -> None:
        self._done = done
        self._transport.write(payload)

    def data_received(self, data: bytes) -> None:
        held = self._held = self._held + data if self._held else data
        end = held.find(b"\r\n\r\n")
        if end < 0 or self._done is None:
            return
        head = held[:end].lower()
        start = head.find(b"content-length:") + 15
        stop = head.find(b"\r\n", start)
        size = int(head[start : stop if stop >= 0 else None])
        if len(held) < end + 4 + size:
            return
        done, self._done, self._held = self._done, None, b""
        if b"\r\nconnection: close" in head:
            self._client.lost(self)
            self._transport.close()
        else:
            self._client.freed(self)
        done(int(held[9:12]), held[end + 4 :])

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.lost(self)
        if self._done is not None:
            done, self._done = self._done, None
            done(0, b"the connection was lost")

    def close(self) -> None:
        self._transport.close()


class GrpcLoadClient:
    """gRPC over one channel, with messages as bytes."""

    def __init__(self, host: str, port: int) -> None:
        from megalith.serve.grpc.server import check_installed

        check_installed()
        import grpc.aio

        limits = [("grpc.max_receive_message_length", 1 << 30), ("grpc.max_send_message_length", 1 << 30)]
        self._channel = grpc.aio.insecure_channel(f"{host}:{port}", options=limits)
        self._call = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        self._failure: Any = grpc.aio.AioRpcError
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, payload: bytes, done: Done) -> None:
        """Starts a call."""
        task = asyncio.get_running_loop().create_task(self._run(payload, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends the channel."""
        await self._channel.close()

    async def _run(self, payload: bytes, done: Done) -> None:
        try:
            body = await self._call(payload)
        except self._failure as error:
            status = {"UNAVAILABLE": 503, "INVALID_ARGUMENT": 400, "NOT_FOUND": 404}.get(
                error.code().name, 500
            )
            done(status, str(error.details()).encode())
            return
        done(200, body)


def open_client(scheme: str, host: str, port: int, connections: int) -> LoadClient:
    """The client of a protocol."""
    if scheme == "http":
        return HttpLoadClient(host, port, connections)
    if scheme == "grpc":
        return GrpcLoadClient(host, port)
    raise ServeError(f"'{scheme}' is no protocol of a load test; use http:// or grpc://.")
