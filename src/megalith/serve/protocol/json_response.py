"""An answer as JSON, with values in it or behind it in binary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.serve.protocol.message import InferMessage
from megalith.serve.request import Answer


def answer_pieces(message: InferMessage, answer: Answer) -> tuple[list[bytes | memoryview], int | None]:
    """The body of a response, and the length of its JSON if tensors follow it."""
    outputs: list[dict[str, Any]] = []
    tail: list[bytes | memoryview] = []
    for name, values, binary in chosen_outputs(message, answer):
        entry: dict[str, Any] = {"name": name, "datatype": "FP32", "shape": list(values.shape)}
        if binary:
            entry["parameters"] = {"binary_data_size": values.nbytes}
            tail.append(values.data.cast("B") if values.size else b"")
        else:
            entry["data"] = values.tolist()
        outputs.append(entry)
    content: dict[str, Any] = {"model_name": answer.model, "model_version": answer.version}
    if message.id:
        content["id"] = message.id
    if answer.degraded:
        content["parameters"] = {"degraded": True}
    content["outputs"] = outputs
    head = json.dumps(content).encode()
    return [head, *tail], len(head) if tail else None


def chosen_outputs(message: InferMessage, answer: Answer) -> Sequence[tuple[str, NDArray[np.float32], bool]]:
    """Name, values and whether in binary, of the outputs that were asked for, in that order."""
    if not message.outputs:
        return [(name, values, message.binary_output) for name, values in answer.outputs.items()]
    return [(choice.name, answer.outputs[choice.name], choice.binary) for choice in message.outputs]
