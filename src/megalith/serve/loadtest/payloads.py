"""Requests as bytes: drawn for a model by what its server says of it, or recorded, and encoded once."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.core.errors import ConfigError, ServeError

Arrays = Mapping[str, NDArray[Any]]
_TYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64"}
_UNKNOWN_ROWS = 1_000_000


def fetch_json(url: str) -> Any:
    """A JSON document of a server."""
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise ServeError(f"{url} answers {error.code}: {_said(error)}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ServeError(f"{url} cannot be read ({reason}); check that the server runs there.") from error


def _said(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return "no sentence; check that this is an inference server."


def draw_requests(
    config: Mapping[str, Any],
    samples: int,
    count: int,
    *,
    seed: int = 0,
    wide: bool = False,
    once: bool = False,
) -> list[Arrays]:
    """Requests that a model can take, by its configuration: as many ids a sample as its features have on the
    average, spread evenly. `wide` ids have 64 bits; `once` sends those of the user once."""
    try:
        parameters = {key: json.loads(value["string_value"]) for key, value in config["parameters"].items()}
        features, num_dense = parameters["features"], int(parameters["num_dense"])
    except (KeyError, TypeError, ValueError) as error:
        raise ServeError(
            "The model's configuration does not say what its features are; replay recorded requests."
        ) from error
    if once and not any(feature["user_side"] for feature in features):
        raise ConfigError("The model has no features of the user; leave out --user-once.")
    return [
        _draw(features, num_dense, samples, np.random.default_rng((seed, number)), wide, once)
        for number in range(count)
    ]


def _draw(
    features: Sequence[Mapping[str, Any]],
    num_dense: int,
    samples: int,
    draw: np.random.Generator,
    wide: bool,
    once: bool,
) -> Arrays:
    kind = np.int64 if wide else np.int32
    made: dict[str, NDArray[Any]] = {}
    if num_dense:
        made["dense"] = draw.standard_normal((samples, num_dense), dtype=np.float32)
    groups: dict[str, tuple[list[NDArray[Any]], list[NDArray[Any]]]] = {"": ([], []), "user_": ([], [])}
    for feature in features:
        length = max(0, round(feature["average_length"] or 1))
        if feature["max_length"] is not None:
            length = min(length, feature["max_length"])
        rows = feature["rows"] or _UNKNOWN_ROWS
        user = bool(feature["user_side"])
        own = 1 if user else samples
        ids = draw.integers(0, rows, own * length).astype(kind)
        lengths = np.full(own, length, np.int32)
        if user and not once:
            ids, lengths = np.tile(ids, samples), np.full(samples, length, np.int32)
        values, sizes = groups["user_" if user and once else ""]
        values.append(ids)
        sizes.append(lengths)
    for prefix, (values, sizes) in groups.items():
        if values:
            made[f"{prefix}values"] = np.concatenate(values)
            made[f"{prefix}lengths"] = np.stack(sizes)
    return made


def http_payload(path: str, arrays: Arrays, host: str = "server") -> bytes:
    """A whole HTTP request with binary tensors, as it goes over the socket."""
    head, tail = binary_body(arrays)
    size = len(head) + sum(map(len, tail))
    lines = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {len(head)}\r\nContent-Length: {size}\r\n\r\n"
    )
    return b"".join([lines.encode(), head, *tail])


def binary_body(arrays: Arrays) -> tuple[bytes, list[bytes]]:
    """JSON and tensors of the binary extension."""
    inputs = [
        {**_described(name, array), "parameters": {"binary_data_size": array.nbytes}}
        for name, array in arrays.items()
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return head, [np.ascontiguousarray(array).tobytes() for array in arrays.values()]


def grpc_payload(model: str, arrays: Arrays) -> bytes:
    """A ModelInferRequest, encoded."""
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in arrays.items():
        request.inputs.add(**_described(name, array))
        request.raw_input_contents.append(np.ascontiguousarray(array).tobytes())
    return bytes(request.SerializeToString())


def _described(name: str, array: NDArray[Any]) -> dict[str, Any]:
    datatype = _TYPES.get(str(array.dtype))
    if datatype is None:
        raise ConfigError(f"Input '{name}' is {array.dtype}; record requests of float32, int32 and int64.")
    return {"name": name, "datatype": datatype, "shape": list(array.shape)}
