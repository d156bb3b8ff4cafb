"""The gRPC listener, on the event loop of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from megalith.core.errors import ConfigError
from megalith.serve.allocator import keep_freed_memory
from megalith.serve.front.service import InferenceService

if TYPE_CHECKING:
    from megalith.serve.http.server import TlsFiles

FIX = "install it with `pip install 'megalith[serve]'`, or start with --grpc -1"
_OVERHEAD_BYTES = 1 << 20
_MAX_CALLS = 1024
_FRAME_BYTES = (1 << 24) - 1
"""Of HTTP/2 at most."""
_WINDOW_BYTES = 4 << 20
"""That a call may send ahead of what was read."""


def check_installed() -> None:
    """Says how to get what gRPC needs, where it is missing."""
    try:
        import grpc
        from tritonclient.grpc import service_pb2
    except ImportError as error:
        raise ConfigError(f"gRPC needs the package '{error.name}', which is not here; {FIX}.") from error
    del grpc, service_pb2


@dataclass(slots=True)
class GrpcListener:
    """A running gRPC server and its port."""

    server: Any
    port: int

    async def stop(self, seconds: float) -> None:
        """Takes no more calls, and waits so long for those under way."""
        await self.server.stop(seconds)


async def listen(service: InferenceService, host: str, port: int, tls: TlsFiles | None) -> GrpcListener:
    """Starts to take calls."""
    import grpc.aio

    from megalith.serve.grpc.servicer import InferenceServicer

    keep_freed_memory()
    limit = service.max_request_bytes + _OVERHEAD_BYTES
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", limit),
            ("grpc.max_send_message_length", limit),
            ("grpc.so_reuseport", 0),
            ("grpc.max_metadata_size", 16 << 10),
            # Frames of 16 KiB, the default, cost a fifth more CPU time with requests of 700 KB.
            ("grpc.http2.max_frame_size", _FRAME_BYTES),
            ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
        ],
        maximum_concurrent_rpcs=_MAX_CALLS,
    )
    server.add_generic_rpc_handlers((InferenceServicer(service),))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is None:
            bound = server.add_insecure_port(address)
        else:
            pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
            bound = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"Port {port} of {host} cannot be listened on; choose another for --grpc."
        ) from error
    if not bound:
        raise ConfigError(f"Port {port} of {host} cannot be listened on; choose another for --grpc.")
    await server.start()
    return GrpcListener(server, bound)
