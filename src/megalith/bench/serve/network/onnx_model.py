"""The model that peers serve: onnxruntime from ids to scores, and the bodies they take and give."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from megalith.bench.serve.dense_peers import dynamic_int8
from megalith.bench.serve.network.models import Arrays
from megalith.bench.serve.shapes import Request, served_shape
from megalith.bench.serve.weights import ServedWeights
from megalith.bench.serve.whole_peers import OnnxTables, OnnxWhole

if TYPE_CHECKING:
    from megalith.bench.serve.graphs import TableWay

BINARY, JSON = "binary", "json"


class OnnxModel:
    """The whole model on onnxruntime: tables as `way` has them, layers of dynamic int8."""

    def __init__(self, shape_name: Any, rows: int | None, way: Any, threads: int) -> None:
        weights = ServedWeights(served_shape(shape_name, rows))
        self.shape = weights.shape
        self._run = _whole(weights, OnnxTables(weights, (_rows_of(way),)), way, threads)

    def scores(self, dense: NDArray[np.float32], values: NDArray[np.int32]) -> NDArray[np.float32]:
        """Of numbers and ids, feature-major, as many a sample as the shape has."""
        nothing = torch.empty(0, dtype=torch.int32)
        request = Request(torch.from_numpy(dense), torch.from_numpy(values), nothing, nothing)
        found: NDArray[np.float32] = self._run(request).numpy()[:, 0]
        return found

    def scores_of_bytes(self, received: bytes) -> bytes:
        """Of a binary body: samples in four bytes, numbers, ids."""
        # One copy out of the received bytes, which torch wants to be writable.
        body = bytearray(received)
        batch, numbers = int.from_bytes(body[:4], "little"), self.shape.tables.numbers
        dense = np.frombuffer(body, np.float32, batch * numbers, 4).reshape(batch, numbers)
        return self.scores(dense, np.frombuffer(body, np.int32, -1, 4 + dense.nbytes)).tobytes()

    def scores_of_json(self, content: dict[str, Any]) -> dict[str, Any]:
        """Of a JSON body, parsed."""
        dense = np.array(content["dense"], np.float32)
        return {"score": self.scores(dense, np.array(content["values"], np.int32)).tolist()}


def graph_seconds(weights: ServedWeights, requests: Sequence[Request], turns: int = 3) -> dict[str, float]:
    """What a request takes on one thread of onnxruntime, at best, by how tables are held."""
    best: dict[str, float] = {}
    ways: tuple[TableWay, ...] = ("float32", "dequantised", "product")
    for way in ways:
        run = _whole(weights, OnnxTables(weights, (_rows_of(way),)), way, 1)
        run(requests[0])
        for _ in range(turns):
            began = time.perf_counter()
            for request in requests:
                run(request)
            taken = (time.perf_counter() - began) / len(requests)
            best[way] = min(taken, best.get(way, taken))
    return best


def _whole(weights: ServedWeights, tables: OnnxTables, way: TableWay, threads: int) -> OnnxWhole:
    return OnnxWhole(weights, tables, way, threads, dynamic_int8)


def _rows_of(way: str) -> str:
    return "float32" if way == "float32" else "int8"


def peer_payload(arrays: Arrays, form: str) -> bytes:
    """A request as a peer takes it, with its HTTP head."""
    dense, values = arrays["dense"], arrays["values"]
    if form == BINARY:
        body = len(dense).to_bytes(4, "little") + dense.tobytes() + values.tobytes()
        kind = "application/octet-stream"
    else:
        body = json.dumps({"dense": dense.tolist(), "values": values.tolist()}).encode()
        kind = "application/json"
    head = (
        f"POST /infer HTTP/1.1\r\nHost: peer\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def peer_scores(body: bytes, form: str) -> NDArray[np.float32]:
    """The scores in what a peer answered."""
    if form == BINARY:
        return np.frombuffer(body, np.float32)
    return np.array(json.loads(body)["score"], np.float32)
