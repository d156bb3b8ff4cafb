"""Where load goes: a server's address, its model, and the requests for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from megalith.core.errors import ConfigError, ServeError
from megalith.serve.front.recorder import read_requests
from megalith.serve.loadtest.clients import LoadClient, open_client
from megalith.serve.loadtest.payloads import (
    Arrays,
    draw_requests,
    fetch_json,
    grpc_payload,
    http_payload,
)

_DRAWN = 16


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """A server that is to be loaded."""

    url: str
    scheme: str
    host: str
    port: int
    http: str | None
    """Where it says what its models are; None of a server without HTTP."""

    @classmethod
    def of(cls, url: str, http: str | None = None) -> LoadTarget:
        """The server of a URL."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in ("http", "grpc") or not parts.hostname or port is None:
            raise ConfigError(f"'{url}' is no address; give http://HOST:PORT or grpc://HOST:PORT.")
        base = f"http://{parts.netloc}" if parts.scheme == "http" else http
        return cls(url, parts.scheme, parts.hostname, port, base)

    def client(self, connections: int = 256) -> LoadClient:
        """A client of its protocol; within an event loop."""
        return open_client(self.scheme, self.host, self.port, connections)

    def payloads(
        self,
        model: str | None = None,
        *,
        samples: int = 64,
        once: bool = False,
        wide: bool = False,
        replay: Path | None = None,
        seed: int = 0,
        count: int = _DRAWN,
    ) -> list[bytes]:
        """Encoded requests: recorded ones, or some that are drawn for the model."""
        if replay is not None:
            recorded = read_requests(replay)
            wanted = [each for each in recorded if model is None or each.model == model]
            if not wanted:
                raise ServeError(
                    f"{replay} has no request for the model '{model}'; it has {len(recorded)} others."
                )
            return [self.encode(each.model, each.inputs) for each in wanted]
        name = model or self._only_model()
        if self.http is None:
            raise ConfigError(
                "Requests are drawn by what the server says over HTTP; give --http or --replay."
            )
        config = fetch_json(f"{self.http}/v2/models/{quote(name, safe='')}/config")
        drawn = draw_requests(config, samples, count, seed=seed, wide=wide, once=once)
        return [self.encode(name, arrays) for arrays in drawn]

    def encode(self, model: str, arrays: Arrays) -> bytes:
        """One request of the target's protocol."""
        if self.scheme == "grpc":
            return grpc_payload(model, arrays)
        return http_payload(f"/v2/models/{quote(model, safe='')}/infer", arrays, self.host)

    def _only_model(self) -> str:
        if self.http is None:
            raise ConfigError("Name the model with --model; a server without HTTP does not list its own.")
        names = [each["name"] for each in fetch_json(f"{self.http}/v2/status")["served"]]
        if len(names) != 1:
            raise ConfigError(
                f"The server has {len(names)} models ({', '.join(names)}); choose with --model."
            )
        return str(names[0])
