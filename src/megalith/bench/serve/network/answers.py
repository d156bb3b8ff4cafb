"""Scores in the answers of servers, beside those of torch: a server that is quick and wrong is no peer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from megalith.bench.serve.network.models import Arrays
from megalith.bench.serve.shapes import Request
from megalith.bench.serve.weights import ServedWeights, pooled
from megalith.export.backends.base import LoadSettings
from megalith.export.backends.inputs import ScoreRequest
from megalith.export.backends.kernels.native import NativeBackend
from megalith.export.folder import FrozenModel
from megalith.serve.loadtest.loads import Check

Scores = NDArray[np.float32]
_LAYERS_OF_INT8 = 0.02
"""By how much scores may differ: about ten times what layers of int8 do to any model here."""


def reference_scores(weights: ServedWeights, arrays: Arrays) -> Scores:
    """Scores of a tiled request in plain torch, layers in float32."""
    dense, values, lengths = (torch.from_numpy(arrays[name]) for name in ("dense", "values", "lengths"))
    request = Request(dense, values, torch.empty(0, dtype=torch.int32), lengths)
    with torch.inference_mode():
        found: Scores = torch.sigmoid(weights.model(dense, pooled(weights, request))).numpy()
    return found


def frozen_scores(folder: Path, requests: Sequence[Arrays]) -> list[Scores]:
    """Scores of requests to the frozen model of a folder, by the native backend in this process: what its
    server gives, to the last bit."""
    part = NativeBackend().load(FrozenModel(folder), "whole", LoadSettings(threads=1))
    found = []
    for arrays in requests:
        given = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        found.append(part.run(ScoreRequest(**given))["score"].numpy().copy())
    part.close()
    return found


def answer_check(right: Sequence[Scores], read: Callable[[bytes], Scores]) -> Check:
    """Whether the body that answers request number n has its scores."""

    def check(place: int, body: bytes) -> bool:
        scores = read(body)
        wanted = right[place]
        return scores.shape == wanted.shape and bool(np.abs(scores - wanted).max() < _LAYERS_OF_INT8)

    return check


def http_scores(body: bytes) -> Scores:
    """Of our server: JSON, then the tensors."""
    end = body.find(b"}]}") + 3
    first = json.loads(body[:end])["outputs"][0]
    return np.frombuffer(body, np.float32, first["shape"][0], end)


def grpc_scores(body: bytes) -> Scores:
    """Of a ModelInferResponse."""
    from tritonclient.grpc import service_pb2

    return np.frombuffer(service_pb2.ModelInferResponse.FromString(body).raw_output_contents[0], np.float32)
