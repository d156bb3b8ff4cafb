"""`serve`: an engine behind HTTP and gRPC, from its start to the last answer after SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from megalith.core.errors import ConfigError
from megalith.core.trace import Tracer
from megalith.serve.engine import Engine
from megalith.serve.follow.followers import Followers
from megalith.serve.follow.settings import FollowSettings
from megalith.serve.front.model_folders import ModelFolders
from megalith.serve.front.recorder import RequestRecorder
from megalith.serve.front.service import MAX_REQUEST_BYTES, InferenceService
from megalith.serve.grpc import server as grpc_server
from megalith.serve.http import server as http_server
from megalith.serve.http.routes import HttpApplication
from megalith.serve.http.server import TlsFiles
from megalith.serve.settings import EngineSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What is listened on, and what is kept of requests."""

    host: str = "127.0.0.1"
    http_port: int | None = 8000
    """0 takes any free one; None is no HTTP."""
    grpc_port: int | None = None
    max_request_bytes: int = MAX_REQUEST_BYTES
    tls: TlsFiles | None = None
    trace: Path | None = None
    trace_every: int = 1
    """One of so many requests is traced."""
    record: Path | None = None
    record_requests: int = 256
    access_log: bool = False
    drain_seconds: float = 30.0
    """How long requests under way may take after SIGTERM."""
    share_port: bool = False
    """Other servers of this machine may listen on the same port of HTTP; the system deals connections out."""
    follow: FollowSettings = field(default_factory=FollowSettings)


class Addresses(NamedTuple):
    """What a server listens on."""

    http: int | None
    grpc: int | None


def serve(
    folders: ModelFolders,
    engine_settings: EngineSettings,
    settings: ServerSettings,
    started: Callable[[Addresses], None] = lambda _: None,
    says: Callable[[str], None] = lambda _: None,
) -> None:
    """Serves until SIGTERM or SIGINT, then answers what is under way and ends."""
    if settings.http_port is None and settings.grpc_port is None:
        raise ConfigError("There is nothing to listen on; give --http or --grpc a port.")
    if settings.grpc_port is not None:
        grpc_server.check_installed()
    folders.listed()
    with Engine(engine_settings, says) as engine:
        folders.load_all(engine)
        with Followers(settings.follow, engine, says) as followers, Tracer(settings.trace) as tracer:
            followers.begin()
            asyncio.run(_run(engine, folders, followers, settings, tracer, started))


async def _run(
    engine: Engine,
    folders: ModelFolders,
    followers: Followers,
    settings: ServerSettings,
    tracer: Tracer,
    started: Callable[[Addresses], None],
) -> None:
    loop = asyncio.get_running_loop()
    recorder = None if settings.record is None else RequestRecorder(settings.record, settings.record_requests)
    service = InferenceService(
        engine,
        loop,
        folders,
        None if settings.trace is None else tracer,
        settings.trace_every,
        recorder,
        settings.max_request_bytes,
        followers,
    )
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    listeners: list[http_server.HttpListener | grpc_server.GrpcListener] = []
    ports: dict[str, int | None] = {"http": None, "grpc": None}
    try:
        if settings.http_port is not None:
            application = HttpApplication(service, _log.info if settings.access_log else None)
            http = await http_server.listen(
                application, settings.host, settings.http_port, settings.tls, share_port=settings.share_port
            )
            listeners.append(http)
            ports["http"] = http.port
        if settings.grpc_port is not None:
            grpc = await grpc_server.listen(service, settings.host, settings.grpc_port, settings.tls)
            listeners.append(grpc)
            ports["grpc"] = grpc.port
        service.load.start(loop)
        started(Addresses(ports["http"], ports["grpc"]))
        await stopping.wait()
    finally:
        service.draining = True
        await asyncio.gather(*(listener.stop(settings.drain_seconds) for listener in listeners))
        service.close()
