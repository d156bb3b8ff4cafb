"""The HTTP listener, on the event loop of the server."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path

from megalith.core.errors import ConfigError
from megalith.serve.http.connection import Application, HttpConnection

MAX_CONNECTIONS = 4096
_SWEEP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A certificate chain and its key, in PEM."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """What a listener needs of them."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or error
            raise ConfigError(
                f"{self.certificate} and {self.key} are no certificate and key ({reason}); give both in PEM."
            ) from error
        return context


@dataclass(slots=True)
class HttpListener:
    """A running HTTP server, its connections and its port."""

    server: asyncio.Server
    port: int
    connections: set[HttpConnection] = field(default_factory=set)
    _sweeper: asyncio.Task[None] | None = None

    async def stop(self, seconds: float) -> None:
        """Takes no more connections, and waits so long for the requests under way."""
        self.server.close()
        for connection in list(self.connections):
            connection.drain()
        end = time.monotonic() + seconds
        while self.connections and time.monotonic() < end:
            await asyncio.sleep(0.02)
        for connection in list(self.connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()

    def start_sweeping(self) -> None:
        """Ends connections whose time is up; one timer for all."""

        async def sweep() -> None:
            while True:
                await asyncio.sleep(_SWEEP_SECONDS)
                now = time.monotonic()
                for connection in [each for each in self.connections if each.deadline < now]:
                    connection.end()

        self._sweeper = asyncio.get_running_loop().create_task(sweep())


async def listen(
    application: Application,
    host: str,
    port: int,
    tls: TlsFiles | None,
    max_connections: int = MAX_CONNECTIONS,
    *,
    share_port: bool = False,
) -> HttpListener:
    """Starts to take connections; with `share_port` other processes may do so on the same port."""
    loop = asyncio.get_running_loop()
    connections: set[HttpConnection] = set()
    context = None if tls is None else tls.context()
    try:
        server = await loop.create_server(
            lambda: HttpConnection(application, connections, max_connections),
            host,
            port,
            ssl=context,
            backlog=1024,
            reuse_port=share_port or None,
        )
    except OSError as error:
        raise ConfigError(
            f"Port {port} of {host} cannot be listened on ({error}); choose another."
        ) from error
    listener = HttpListener(server, server.sockets[0].getsockname()[1], connections)
    listener.start_sweeping()
    return listener
