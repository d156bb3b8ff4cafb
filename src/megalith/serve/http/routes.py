"""Which path does what."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from megalith.serve.failures import BadRequestError, ShuttingDownError
from megalith.serve.follow.status import follow_families
from megalith.serve.front.descriptions import (
    model_config,
    model_metadata,
    model_statistics,
    repository_index,
    server_metadata,
)
from megalith.serve.front.service import InferenceService
from megalith.serve.http.bodies import content_codings, decompress
from megalith.serve.http.connection import Reply, Upload
from megalith.serve.http.head import RequestHead
from megalith.serve.http.infer import InferUpload
from megalith.serve.http.openapi import openapi
from megalith.serve.http.response import HttpResponse, error_response, json_response
from megalith.serve.protocol.errors import PathNotFoundError, UnsupportedError
from megalith.serve.protocol.json_request import read_object
from megalith.serve.status.metrics import CONTENT_TYPE, metrics_text
from megalith.serve.status.page import PAGE
from megalith.serve.status.summary import engine_gauges, pending_requests, status_summary

Parts = Mapping[str, str | None]
_MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?"
_HTML = "text/html; charset=utf-8"


class MethodNotAllowedError(BadRequestError):
    """The path is right and its method is not (405)."""

    status = 405

    def __init__(self, allowed: str) -> None:
        super().__init__(f"This path takes {allowed}; use that.")
        self.allowed = allowed


class _Route(NamedTuple):
    method: str
    pattern: re.Pattern[str]
    name: str


def _route(method: str, pattern: str, name: str) -> _Route:
    return _Route(method, re.compile(pattern), name)


ROUTES = (
    _route("POST", _MODEL + "/infer", "infer"),
    _route("GET", "/v2/health/live", "live"),
    _route("GET", "/v2/health/ready", "ready"),
    _route("GET", "/v2", "server"),
    _route("GET", "/v2/openapi.json", "openapi"),
    _route("GET", "/v2/status", "status"),
    _route("GET", "/v2/models/stats", "statistics"),
    _route("GET", _MODEL, "model"),
    _route("GET", _MODEL + "/ready", "model_ready"),
    _route("GET", _MODEL + "/config", "config"),
    _route("GET", _MODEL + "/stats", "statistics"),
    _route("POST", "/v2/repository/index", "index"),
    _route("POST", r"/v2/repository/models/(?P<model>[^/]+)/load", "load"),
    _route("POST", r"/v2/repository/models/(?P<model>[^/]+)/unload", "unload"),
    _route("GET", "/metrics", "metrics"),
    _route("GET", "/", "page"),
)
_UNSUPPORTED = re.compile(
    r"/v2/(systemsharedmemory|cudasharedmemory|trace|logging)(/.*)?|/v2/models/.+/(generate|generate_stream|trace/setting)"
)


class HttpApplication:
    """Answers requests from a service."""

    def __init__(self, service: InferenceService, access_log: Callable[[str], None] | None = None) -> None:
        self.service, self._access_log = service, access_log
        self.max_body_bytes = service.max_request_bytes

    def open(self, head: RequestHead, reply: Reply) -> Upload:
        """Finds who answers; the error of a path or method that there is not."""
        if self._access_log is not None:
            reply = self._logged(head, reply, self._access_log)
        method = "GET" if head.method == "HEAD" else head.method
        path = head.path if head.path == "/" else head.path.rstrip("/")
        allowed = []
        for route in ROUTES:
            found = route.pattern.fullmatch(path)
            if found is None:
                continue
            if route.method == method:
                return self._upload(route.name, found.groupdict(), head, reply)
            allowed.append(route.method)
        if allowed:
            raise MethodNotAllowedError(", ".join(allowed))
        if _UNSUPPORTED.fullmatch(path):
            raise UnsupportedError(f"This server has no {path[:80]}; its metadata lists its own.")
        raise PathNotFoundError(f"There is no {head.path[:80]} here; GET /v2/openapi.json lists all.")

    def _upload(self, name: str, parts: Parts, head: RequestHead, reply: Reply) -> Upload:
        if name == "infer":
            if self.service.draining:
                raise ShuttingDownError("The server is closing; send the request to another.")
            call = self.service.call(parts["model"] or "", parts["version"], "http")
            return InferUpload(self.service, call, head, reply)
        if name in ("load", "unload", "index"):
            return _JsonUpload(self, name, parts, head, reply)
        return _Simple(self, name, parts, reply)

    def respond(self, name: str, parts: Parts) -> HttpResponse:
        """What a path without a body gives."""
        service = self.service
        model, version = parts.get("model"), parts.get("version")
        match name:
            case "live":
                return HttpResponse()
            case "ready":
                return HttpResponse() if service.ready() else _not_ready("The server is not ready")
            case "server":
                return json_response(server_metadata())
            case "model_ready":
                ready = service.model(model or "", version).ready and not service.draining
                return HttpResponse() if ready else _not_ready(f"Model '{model}' is not ready")
            case "model":
                return json_response(model_metadata(service.model(model or "", version)))
            case "config":
                return json_response(model_config(service, service.model(model or "", version), version))
            case "statistics":
                return json_response(model_statistics(service, model, version))
            case "openapi":
                return json_response(
                    openapi({each.name: each.versions for each in service.models().values()})
                )
            case "status":
                return json_response(status_summary(service))
            case "metrics":
                for each in service.models().values():
                    for number in each.versions:
                        # Dashboards want a zero before the first request.
                        service.statistics.of(each.name, number)
                followed = service.followers.statuses if service.followers is not None else ()
                text = metrics_text(
                    service.statistics,
                    pending_requests(service),
                    engine_gauges(service),
                    follow_families(followed),
                )
                return HttpResponse(200, [text.encode()], CONTENT_TYPE)
            case _:
                return HttpResponse(200, [PAGE], _HTML, (("Cache-Control", "no-cache"),))

    def _logged(self, head: RequestHead, reply: Reply, log: Callable[[str], None]) -> Reply:
        def logged(response: HttpResponse) -> None:
            log(f"{head.method} {head.path} {response.status} {head.content_length or 0}")
            reply(response)

        return logged


class _Simple:
    """A path that needs no body; one that is sent is read and left alone."""

    def __init__(self, application: HttpApplication, name: str, parts: Parts, reply: Reply) -> None:
        self._application, self._name, self._parts, self._reply = application, name, parts, reply

    def destination(self, num_bytes: int) -> memoryview | None:
        """Anywhere."""
        del num_bytes
        return None

    def complete(self, body: memoryview) -> None:
        """Answers at once."""
        del body
        self._reply(self._application.respond(self._name, self._parts))

    def abandon(self) -> None:
        """Nothing is under way."""


class _JsonUpload:
    """The repository extension: an optional JSON object, and work that may take a while."""

    def __init__(
        self, application: HttpApplication, name: str, parts: Parts, head: RequestHead, reply: Reply
    ) -> None:
        self._service, self._name, self._reply = application.service, name, reply
        self._model = parts.get("model") or ""
        self._codings = content_codings(head.headers.get("content-encoding", ""))

    def destination(self, num_bytes: int) -> memoryview | None:
        """Anywhere."""
        del num_bytes
        return None

    def complete(self, body: memoryview) -> None:
        """Reads the object, and starts the work."""
        if self._codings:
            body = memoryview(decompress(body, self._codings[0], self._service.max_request_bytes))
        content: dict[str, Any] = read_object(bytes(body)) if len(body) else {}
        if self._name == "index":
            ready = content.get("ready", False)
            if not isinstance(ready, bool):
                raise BadRequestError("'ready' is to be true or false; send one.")
            self._reply(json_response(repository_index(self._service, ready)))
            return
        parameters = content.get("parameters", {})
        if not isinstance(parameters, dict):
            raise BadRequestError("'parameters' of the request are no object; send { ... }.")
        self._service.change_repository(self._name, self._model, parameters, self._finish)

    def abandon(self) -> None:
        """A load that has begun goes on."""

    def _finish(self, error: BaseException | None) -> None:
        self._reply(json_response({}) if error is None else error_response(error))


def _not_ready(what: str) -> HttpResponse:
    from megalith.serve.failures import OverloadedError

    return error_response(OverloadedError(f"{what}; ask again later.", 1.0))
