"""The OpenAPI description of the server, true of what it answers: tests hold it against schemathesis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from megalith.serve.protocol.datatypes import BYTES, DATATYPES, MAX_DIMENSIONS, MAX_ELEMENTS

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_SIZES = {"type": "array", "items": {"type": "integer"}}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "properties": properties}
    return {**made, "required": list(required)} if required else made


def _list(item: Any, **limits: Any) -> dict[str, Any]:
    return {"type": "array", "items": item, **limits}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas() -> dict[str, Any]:
    duration = _object(("count", "ns"), count=_COUNT, ns=_COUNT)
    tensor = _object(("name", "datatype", "shape"), name=_TEXT, datatype=_TEXT, shape=_SIZES)
    return {
        "Error": _object(("error",), error=_TEXT),
        "Server": _object(
            ("name", "version", "extensions"), name=_TEXT, version=_TEXT, extensions=_list(_TEXT)
        ),
        "Tensor": tensor,
        "Model": _object(
            ("name", "versions", "platform", "inputs", "outputs"),
            name=_TEXT,
            versions=_list(_TEXT),
            platform=_TEXT,
            inputs=_list(_ref("Tensor")),
            outputs=_list(_ref("Tensor")),
        ),
        "Input": _object(
            ("name", "shape", "datatype"),
            name={"type": "string", "minLength": 1, "maxLength": 256},
            shape=_list({"type": "integer", "minimum": 0, "maximum": MAX_ELEMENTS}, maxItems=MAX_DIMENSIONS),
            datatype={"type": "string", "enum": [*DATATYPES, BYTES]},
            parameters=_object(binary_data_size=_COUNT),
            data={"type": "array", "items": {}},
        ),
        "InferRequest": _object(
            ("inputs",),
            id={"type": "string", "maxLength": 1024},
            parameters=_object(
                binary_data_output={"type": "boolean"},
                timeout={**_COUNT, "description": "Microseconds."},
                priority={**_COUNT, "description": "1 is the most urgent; 0 is as usual."},
            ),
            inputs=_list(_ref("Input"), minItems=1, maxItems=1024),
            outputs=_list(
                _object(("name",), name=_TEXT, parameters=_object(binary_data={"type": "boolean"})),
                maxItems=1024,
            ),
        ),
        "Output": _object(
            ("name", "shape", "datatype"),
            name=_TEXT,
            shape=_SIZES,
            datatype={"type": "string", "enum": ["FP32"]},
            parameters=_object(binary_data_size=_COUNT),
            data=_list({"type": "number"}),
        ),
        "InferResponse": _object(
            ("model_name", "model_version", "outputs"),
            model_name=_TEXT,
            model_version=_TEXT,
            id=_TEXT,
            parameters=_object(degraded={"type": "boolean"}),
            outputs=_list(_ref("Output")),
        ),
        "Statistics": _object(
            ("model_stats",),
            model_stats=_list(
                _object(
                    ("name", "version", "inference_count", "execution_count", "inference_stats"),
                    name=_TEXT,
                    version=_TEXT,
                    last_inference=_COUNT,
                    inference_count=_COUNT,
                    execution_count=_COUNT,
                    inference_stats=_object(
                        ("success", "fail", "queue"),
                        success=duration,
                        fail=duration,
                        queue=duration,
                        compute_input=duration,
                        compute_infer=duration,
                        compute_output=duration,
                    ),
                    batch_stats=_list({"type": "object"}),
                )
            ),
        ),
        "Index": _list(
            _object(
                ("name",), name=_TEXT, version=_TEXT, state={"enum": ["READY", "UNAVAILABLE"]}, reason=_TEXT
            )
        ),
    }


def _names(known: list[str]) -> dict[str, Any]:
    return {"type": "string", "enum": known} if known else {"type": "string", "pattern": "^[a-z0-9]+$"}


def _content(schema: Any, kind: str = "application/json") -> dict[str, Any]:
    return {"content": {kind: {"schema": schema}}}


def _responses(good: dict[str, Any] | None, *errors: int) -> dict[str, Any]:
    """A good answer, and those that any request may get beside its own errors."""
    about = {
        400: "The request is wrong; the sentence says what.",
        404: "There is no such model, version or path.",
        408: "The request took too long to arrive.",
        413: "The body is larger than the server takes.",
        431: "The head is larger than the server takes.",
        499: "The client went away.",
        500: "The server failed.",
        501: "A part of the protocol that this server has not.",
        503: "As many requests as are allowed are under way, or the server is not ready or closing.",
        504: "The request's timeout passed first.",
    }
    found: dict[str, Any] = {"200": {"description": "Done.", **(good or {})}}
    for status in sorted({400, 431, *errors}):
        found[str(status)] = {"description": about[status], **_content(_ref("Error"))}
        if status == 503:
            found["503"]["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return found


def _parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _ref(f"{name.capitalize()}Name")}


def _get(
    summary: str, good: dict[str, Any] | None, *errors: int, path: tuple[str, ...] = ()
) -> dict[str, Any]:
    made: dict[str, Any] = {"summary": summary, "responses": _responses(good, *errors)}
    if path:
        made["parameters"] = [_parameter(name) for name in path]
    return {"get": made}


def _infer(path: tuple[str, ...]) -> dict[str, Any]:
    length = {
        "name": "Inference-Header-Content-Length",
        "in": "header",
        "required": False,
        "schema": _COUNT,
        "description": "Bytes of JSON ahead of binary tensors; 0 for a body without JSON.",
    }
    good = {
        "content": {
            "application/json": {"schema": _ref("InferResponse")},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
        "headers": {"Inference-Header-Content-Length": {"schema": _COUNT}},
    }
    body = {
        "required": True,
        "content": {
            "application/json": {"schema": _ref("InferRequest")},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
    return {
        "post": {
            "summary": "Scores of some samples.",
            "parameters": [*(_parameter(name) for name in path), length],
            "requestBody": body,
            "responses": _responses(good, 404, 408, 413, 500, 501, 503, 504),
        }
    }


def _change(summary: str) -> dict[str, Any]:
    body = {"required": False, **_content(_object(parameters={"type": "object"}))}
    return {
        "post": {
            "summary": summary,
            "parameters": [_parameter("model")],
            "requestBody": body,
            "responses": _responses(_content({"type": "object"}), 404, 408, 413, 500, 501, 503),
        }
    }


def openapi(models: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The whole description, of a server of these models and their versions."""
    versions = sorted({version for listed in models.values() for version in listed})
    names = {"ModelName": _names(list(models)), "VersionName": _names(versions)}
    paths: dict[str, Any] = {
        "/v2/health/live": _get("Whether the server runs.", None),
        "/v2/health/ready": _get("Whether every model can answer.", None, 503),
        "/v2": _get("The server and its extensions.", _content(_ref("Server"))),
        "/v2/models/stats": _get("Counts of all models.", _content(_ref("Statistics"))),
        "/v2/status": _get("What the status page shows.", _content({"type": "object"})),
        "/metrics": _get("Prometheus metrics.", _content(_TEXT, "text/plain")),
        "/": _get("The status page.", _content(_TEXT, "text/html")),
        "/v2/openapi.json": _get("This description.", _content({"type": "object"})),
        "/v2/repository/models/{model}/load": _change("Loads a model, or its newest version."),
        "/v2/repository/models/{model}/unload": _change("Lets a model go."),
        "/v2/repository/index": {
            "post": {
                "summary": "Models and versions.",
                "requestBody": {"required": False, **_content(_object(ready={"type": "boolean"}))},
                "responses": _responses(_content(_ref("Index")), 408, 413, 501),
            }
        },
    }
    for tail, path in (("", ("model",)), ("/versions/{version}", ("model", "version"))):
        root = "/v2/models/{model}" + tail
        paths[root] = _get("Inputs and outputs.", _content(_ref("Model")), 404, path=path)
        paths[root + "/ready"] = _get("Whether it can answer.", None, 404, 503, path=path)
        paths[root + "/config"] = _get("Its configuration.", _content({"type": "object"}), 404, path=path)
        paths[root + "/stats"] = _get("Its counts.", _content(_ref("Statistics")), 404, path=path)
        paths[root + "/infer"] = _infer(path)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Megalith",
            "version": version("megalith"),
            "description": "Recommendation models behind the Open Inference Protocol.",
        },
        "paths": paths,
        "components": {"schemas": {**_schemas(), **names}},
    }
