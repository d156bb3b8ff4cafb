"""The JSON of an inference request, with tensors in it or behind it in binary.

    {"id": "a", "inputs": [{"name": "dense", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1.5]}, ...]}

An input of the binary extension has `"parameters": {"binary_data_size": n}` in place of data; its bytes
follow the JSON, in the order of inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from megalith.core.files import parse_json
from megalith.serve.failures import BadRequestError
from megalith.serve.protocol.datatypes import BYTES, DATATYPES, check_bytes, check_datatype, check_shape
from megalith.serve.protocol.message import (
    InferMessage,
    InputTensor,
    OutputChoice,
    check_count,
    check_id,
    check_no_shared_memory,
    check_output_parameters,
    read_parameters,
)
from megalith.serve.protocol.strings import join_strings


def read_json_request(header: bytes | memoryview, tail: memoryview, tail_offset: int | None) -> InferMessage:
    """A request of the JSON `header` and of the binary `tail`, which lies at `tail_offset` of a room."""
    content = read_object(header)
    parameters = _mapping(content, "parameters", "The request")
    message = InferMessage(
        id=check_id(content.get("id", "")),
        binary_output=_flag(parameters, "binary_data_output", "The request"),
    )
    read_parameters(message, parameters)
    used = 0
    for entry in _entries(content, "inputs"):
        used += _read_input(message, entry, tail, tail_offset, used)
    if used != len(tail):
        raise BadRequestError(
            f"The body has {len(tail)} bytes behind its JSON and inputs of 'binary_data_size' {used} in all; "
            "send as many."
        )
    for entry in _entries(content, "outputs"):
        name = _name(entry, "output")
        own = _mapping(entry, "parameters", f"Output '{name}'")
        check_output_parameters(name, own)
        binary = _flag(own, "binary_data", f"Output '{name}'") if "binary_data" in own else None
        message.outputs.append(OutputChoice(name, message.binary_output if binary is None else binary))
    return message


def read_object(text: bytes | memoryview) -> dict[str, Any]:
    """A JSON object, or the sentence that says where it is none."""
    try:
        content = parse_json(str(text, "utf-8"))
    except UnicodeDecodeError:
        raise BadRequestError("The JSON of the request is not UTF-8; encode it so.") from None
    except ValueError as error:
        raise BadRequestError(f"The JSON of the request cannot be read ({error}); fix it.") from None
    if not isinstance(content, dict):
        raise BadRequestError("The JSON of the request is no object; send { ... }.")
    return content


def _read_input(
    message: InferMessage, entry: Mapping[str, Any], tail: memoryview, tail_offset: int | None, used: int
) -> int:
    name = _name(entry, "input")
    datatype = check_datatype(entry.get("datatype"), name)
    shape = check_shape(entry.get("shape"), name)
    parameters = _mapping(entry, "parameters", f"Input '{name}'")
    check_no_shared_memory(f"Input '{name}'", parameters)
    size = parameters.get("binary_data_size")
    if size is None:
        if "data" not in entry:
            raise BadRequestError(f"Input '{name}' has no 'data' and no 'binary_data_size'; send one.")
        data = _json_data(entry["data"], datatype, shape, name)
        message.inputs.append(InputTensor(name, datatype, shape, data))
        return 0
    if type(size) is not int or size < 0:
        raise BadRequestError(f"'binary_data_size' of input '{name}' is to be a whole number from 0.")
    if "data" in entry:
        raise BadRequestError(f"Input '{name}' has both 'data' and 'binary_data_size'; send one.")
    if used + size > len(tail):
        raise BadRequestError(
            f"The body ends within input '{name}': {len(tail) - used} bytes are left of its "
            f"'binary_data_size' {size}; send all."
        )
    check_bytes(size, datatype, shape, name)
    offset = None if tail_offset is None else tail_offset + used
    message.inputs.append(InputTensor(name, datatype, shape, tail[used : used + size], offset))
    return size


def _json_data(data: Any, datatype: str, shape: tuple[int, ...], name: str) -> memoryview:
    if not isinstance(data, list):
        raise BadRequestError(f"'data' of input '{name}' is to be a list; send one.")
    elements = int(np.prod(shape, dtype=np.int64))
    if datatype == BYTES:
        return join_strings(_flat(data, name), elements, name)
    kind = np.dtype(DATATYPES[datatype])
    try:
        # A list of lists of one length becomes an array by itself; others are refused as such.
        values = np.array(data)
    except ValueError:
        raise BadRequestError(
            f"'data' of input '{name}' has lists of unequal length; send {list(shape)}."
        ) from None
    if values.size != elements:
        raise BadRequestError(
            f"Input '{name}' has {values.size} elements in 'data' and {elements} by its shape {list(shape)}; "
            "send as many."
        )
    if not elements:
        return memoryview(b"")
    allowed = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}[kind.kind]
    if values.dtype.kind not in allowed:
        raise BadRequestError(f"'data' of input '{name}' holds what is no {datatype}; send such numbers.")
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            raise BadRequestError(
                f"'data' of input '{name}' has numbers beyond {datatype}; send smaller ones."
            )
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=kind).data.cast("B")


def _flat(data: list[Any], name: str) -> list[Any]:
    while data and any(isinstance(item, list) for item in data):
        if not all(isinstance(item, list) for item in data):
            raise BadRequestError(f"'data' of input '{name}' mixes lists and values; send one kind.")
        data = [item for inner in data for item in inner]
    return data


def _entries(content: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    entries = content.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadRequestError(f"'{key}' of the request is to be a list of objects; send one.")
    if key == "inputs" and not entries:
        raise BadRequestError("The request has no 'inputs'; send those that the model's metadata lists.")
    check_count(key, len(entries))
    return entries


def _name(entry: Mapping[str, Any], kind: str) -> str:
    name = entry.get("name")
    if not isinstance(name, str) or not name or len(name) > 256:
        raise BadRequestError(f"An {kind} has no 'name' of up to 256 characters; give it one.")
    return name


def _mapping(content: Mapping[str, Any], key: str, what: str) -> dict[str, Any]:
    found = content.get(key, {})
    if not isinstance(found, dict):
        raise BadRequestError(f"{what} has '{key}' that are no object; send {{ ... }}.")
    return found


def _flag(parameters: Mapping[str, Any], key: str, what: str) -> bool:
    found = parameters.get(key, False)
    if not isinstance(found, bool):
        raise BadRequestError(f"{what} has a '{key}' that is neither true nor false; send one.")
    return found
