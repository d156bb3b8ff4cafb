"""Inference requests and answers between the stubs' messages and ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from megalith.serve.failures import BadRequestError
from megalith.serve.protocol.datatypes import BYTES, DATATYPES, check_bytes, check_datatype, check_shape
from megalith.serve.protocol.json_response import chosen_outputs
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
from megalith.serve.request import Answer

_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}


def read_infer_request(request: Any, raw: Sequence[memoryview]) -> InferMessage:
    """A ModelInferRequest, with its raw_input_contents apart."""
    message = InferMessage(id=check_id(request.id), binary_output=True)
    read_parameters(message, parameters_of(request.parameters))
    check_count("inputs", len(request.inputs))
    check_count("outputs", len(request.outputs))
    if not request.inputs:
        raise BadRequestError("The request has no inputs; send those that the model's metadata lists.")
    if raw and len(raw) != len(request.inputs):
        raise BadRequestError(
            f"The request has {len(request.inputs)} inputs and {len(raw)} raw_input_contents; send as many."
        )
    for place, tensor in enumerate(request.inputs):
        message.inputs.append(_read_input(tensor, raw[place] if raw else None))
    for output in request.outputs:
        if not output.name:
            raise BadRequestError("An output has no name; give it one.")
        check_output_parameters(output.name[:256], parameters_of(output.parameters))
        message.outputs.append(OutputChoice(output.name, True))
    return message


def infer_response(message: InferMessage, answer: Answer) -> Any:
    """The ModelInferResponse of an answer."""
    response = service_pb2.ModelInferResponse(
        model_name=answer.model, model_version=answer.version, id=message.id
    )
    if answer.degraded:
        response.parameters["degraded"].bool_param = True
    for name, values, _ in chosen_outputs(message, answer):
        response.outputs.add(name=name, datatype="FP32", shape=values.shape)
        response.raw_output_contents.append(values.tobytes())
    return response


def parameters_of(parameters: Any) -> dict[str, Any]:
    """A map of InferParameter as plain values."""
    found = {}
    for key, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        found[key] = None if kind is None else getattr(parameter, kind)
    return found


def _read_input(tensor: Any, raw: memoryview | None) -> InputTensor:
    name = tensor.name
    if not name or len(name) > 256:
        raise BadRequestError("An input has no name of up to 256 characters; give it one.")
    datatype = check_datatype(tensor.datatype, name)
    shape = check_shape(tuple(tensor.shape), name)
    check_no_shared_memory(f"Input '{name}'", parameters_of(tensor.parameters))
    if raw is not None:
        if tensor.HasField("contents"):
            raise BadRequestError(f"Input '{name}' has both contents and raw_input_contents; send one.")
        check_bytes(len(raw), datatype, shape, name)
        return InputTensor(name, datatype, shape, raw)
    return InputTensor(name, datatype, shape, _contents(tensor.contents, datatype, shape, name))


def _contents(contents: Any, datatype: str, shape: tuple[int, ...], name: str) -> memoryview:
    field = _CONTENTS.get(datatype)
    if field is None:
        raise BadRequestError(f"Input '{name}' of {datatype} has no typed contents; send raw_input_contents.")
    values = getattr(contents, field)
    elements = int(np.prod(shape, dtype=np.int64))
    if datatype == BYTES:
        return join_strings(values, elements, name)
    if len(values) != elements:
        raise BadRequestError(
            f"Input '{name}' has {len(values)} elements in {field} and {elements} by its shape "
            f"{list(shape)}; send as many."
        )
    kind = np.dtype(DATATYPES[datatype])
    array = np.array(values, dtype=np.int64 if kind.kind == "i" else kind)
    if (
        kind.kind == "i"
        and elements
        and (array.min() < np.iinfo(kind).min or array.max() > np.iinfo(kind).max)
    ):
        raise BadRequestError(f"Input '{name}' has numbers beyond {datatype}; send smaller ones.")
    return np.ascontiguousarray(array, dtype=kind).data.cast("B") if elements else memoryview(b"")
