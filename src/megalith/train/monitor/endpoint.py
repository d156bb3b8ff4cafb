"""The port on which Prometheus reads a run's numbers: `GET /metrics` over HTTP, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from megalith.core.errors import ConfigError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SILENCE_SECONDS = 10
"""A connection that says nothing is closed."""


class MetricsEndpoint:
    """Answers with what `text` returns, until it is closed; port 0 takes a free one."""

    def __init__(self, host: str, port: int, text: Callable[[], str]) -> None:
        class Handler(_Handler):
            pass

        Handler.text = staticmethod(text)
        try:
            self._server = _Server((host, port), Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"train.metrics_port={port} cannot be listened on at {host} ({why}); choose another port, "
                "or 0 for a free one."
            ) from error
        self.url = f"http://{host}:{self._server.server_address[1]}/metrics"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="megalith-metrics", daemon=True, args=(0.1,)
        )
        self._thread.start()

    def close(self) -> None:
        """Lets go of the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A silent client must not keep a run from ending.
    block_on_close = False

    def handle_error(self, *_: Any) -> None:
        """A client that left is no news."""


class _Handler(BaseHTTPRequestHandler):
    text: Callable[[], str]
    timeout = _SILENCE_SECONDS
    server_version, sys_version = "megalith", ""

    def do_GET(self) -> None:
        """All numbers, or where they are."""
        found = self.path.partition("?")[0] == "/metrics"
        body = (self.text() if found else "Metrics are at /metrics.\n").encode()
        self.send_response(HTTPStatus.OK if found else HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """The console is the run's."""
