"""`megalith serve`: exported models behind the Open Inference Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from megalith.cli.output import note, print_json, say


def serve(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR...", help="Exported models, or folders of them as MODEL/VERSION."),
    ] = None,
    follow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URI", help="Serve what a trainer publishes here, as it comes; may be repeated."
        ),
    ] = None,
    follow_seconds: Annotated[
        float, typer.Option(min=0.01, help="Look for newer versions this often.")
    ] = 1.0,
    follow_folder: Annotated[
        Path | None, typer.Option(help="Copies of what is followed [default: among temporary files].")
    ] = None,
    live_bound: Annotated[
        float | None,
        typer.Option(
            help="Refuse a followed version whose mean score differs by this share [default: none]."
        ),
    ] = None,
    cards: Annotated[int, typer.Option(min=0, help="Card processes; 0 computes in this one.")] = 2,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of a card [default: the cores, shared out].")
    ] = None,
    http: Annotated[int, typer.Option(help="Port of HTTP; 0 is any free one, -1 is none.")] = 8000,
    grpc: Annotated[int, typer.Option(help="Port of gRPC; 0 is any free one, -1 is none.")] = -1,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all.")] = "127.0.0.1",
    share_port: Annotated[
        bool, typer.Option("--share-port", help="Several servers of a machine listen on one port of HTTP.")
    ] = False,
    versions: Annotated[int, typer.Option(min=1, help="How many of a model's newest versions to serve.")] = 1,
    active: Annotated[int, typer.Option(min=1, help="Most requests that cards have at a time.")] = 48,
    queued: Annotated[int, typer.Option(min=0, help="Most requests that wait beside these.")] = 200,
    max_request_mb: Annotated[int, typer.Option(min=1, max=1024, help="Largest request, in MiB.")] = 64,
    card_memory_mb: Annotated[
        int | None, typer.Option(min=1, help="MiB of a card for tables and dense part [default: any].")
    ] = None,
    degraded: Annotated[
        bool, typer.Option("--degraded", help="Answer without the tables of a lost card, and say so.")
    ] = False,
    certificate: Annotated[Path | None, typer.Option(help="TLS: certificate chain, in PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="TLS: key of the certificate, in PEM.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write spans of requests to this JSONL file.")] = None,
    trace_every: Annotated[int, typer.Option(min=1, help="Trace one of so many requests.")] = 1,
    record: Annotated[
        Path | None, typer.Option(help="Keep the first requests in this safetensors file, to replay.")
    ] = None,
    record_requests: Annotated[int, typer.Option(min=1, help="How many of them.")] = 256,
    access_log: Annotated[bool, typer.Option("--access-log", help="A line for every HTTP request.")] = False,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="How long requests under way may take after SIGTERM.")
    ] = 30.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with the ports once it serves.")
    ] = False,
) -> None:
    """Serve exported models, or those that trainers publish, over HTTP and gRPC until SIGTERM.

    The protocol is the Open Inference Protocol.

    GET / in a browser shows cards, queue, latency and traffic. `--grpc` needs the extra
    `megalith[serve]`.
    """
    import logging
    import math

    from megalith.core.errors import ConfigError
    from megalith.serve.follow.settings import FollowSettings
    from megalith.serve.front.model_folders import ModelFolders
    from megalith.serve.http.server import TlsFiles
    from megalith.serve.server import Addresses, ServerSettings
    from megalith.serve.server import serve as run_server
    from megalith.serve.settings import EngineSettings

    if not folders and not follow:
        raise ConfigError("There is nothing to serve; give the folder of an exported model, or --follow URI.")
    if share_port and http < 1:
        raise ConfigError("--share-port needs a port that all servers name; give --http one.")
    if (certificate is None) != (key is None):
        raise ConfigError("TLS needs both --certificate and --key; give both.")
    if access_log:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    tls = TlsFiles(certificate, key) if certificate is not None and key is not None else None
    if tls is not None:
        tls.context()
    max_bytes = max_request_mb << 20
    engine = EngineSettings(
        cards=cards,
        threads=threads,
        active=active,
        queued=queued,
        room_bytes=max(1 << 30, 4 * max_bytes),
        request_bytes=max_bytes,
        card_memory=None if card_memory_mb is None else card_memory_mb << 20,
        degraded=degraded,
        live_bound=math.inf if live_bound is None else live_bound,
    )
    settings = ServerSettings(
        host=host,
        http_port=_port(http, "--http"),
        grpc_port=_port(grpc, "--grpc"),
        max_request_bytes=max_bytes,
        tls=tls,
        trace=trace,
        trace_every=trace_every,
        record=record,
        record_requests=record_requests,
        access_log=access_log,
        drain_seconds=drain_seconds,
        share_port=share_port,
        follow=FollowSettings(tuple(follow or ()), follow_seconds, follow_folder),
    )

    def started(addresses: Addresses) -> None:
        if as_json:
            print_json({"http": addresses.http, "grpc": addresses.grpc})
        else:
            scheme = "http" if tls is None else "https"
            if addresses.http is not None:
                say(f"HTTP on {scheme}://{host}:{addresses.http} (open it in a browser for the status page)")
            if addresses.grpc is not None:
                say(f"gRPC on {host}:{addresses.grpc}")
        _flush()

    run_server(
        ModelFolders(folders or (), versions), engine, settings, started, lambda line: note((line, "dim"))
    )


def _port(number: int, option: str) -> int | None:
    from megalith.core.errors import ConfigError

    if number == -1:
        return None
    if not 0 <= number <= 65535:
        raise ConfigError(f"{option} is {number}; use a port of 0 to 65535, or -1 for none.")
    return number


def _flush() -> None:
    import sys

    sys.stdout.flush()
