"""FastAPI under uvicorn with onnxruntime, as one would build it.

`python -m megalith.bench.serve.network.onnx_peer SHAPE ROWS WAY FORM WORKERS` with WAY as `graphs.TableWay`
has it, FORM `binary` (bytes in, floats out) or `json`. Workers are processes of one thread that share a port.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from megalith.bench.serve.dense_peers import dynamic_int8
from megalith.bench.serve.shapes import Request, served_shape
from megalith.bench.serve.weights import ServedWeights
from megalith.bench.serve.whole_peers import OnnxTables, OnnxWhole


class OnnxModel:
    """The whole model on onnxruntime: tables of int8, layers of dynamic int8."""

    def __init__(self, shape_name: Any, rows: int | None, way: Any, threads: int) -> None:
        weights = ServedWeights(served_shape(shape_name, rows))
        self.shape = weights.shape
        self._run = OnnxWhole(weights, OnnxTables(weights, ("int8",)), way, threads, dynamic_int8)

    def scores(self, dense: NDArray[np.float32], values: NDArray[np.int32]) -> NDArray[np.float32]:
        """Of numbers and ids, feature-major, as many a sample as the shape has."""
        nothing = torch.empty(0, dtype=torch.int32)
        request = Request(torch.from_numpy(dense), torch.from_numpy(values), nothing, nothing)
        found: NDArray[np.float32] = self._run(request).numpy()[:, 0]
        return found


def application(model: OnnxModel, form: str) -> Any:
    """The FastAPI application."""
    from fastapi import FastAPI, Request, Response

    numbers = model.shape.tables.numbers

    async def infer(request: Any) -> Any:
        # One copy out of the received bytes, which torch wants to be writable.
        body = bytearray(await request.body())
        batch = int.from_bytes(body[:4], "little")
        dense = np.frombuffer(body, np.float32, batch * numbers, 4).reshape(batch, numbers)
        scores = model.scores(dense, np.frombuffer(body, np.int32, -1, 4 + dense.nbytes))
        return Response(scores.tobytes(), media_type="application/octet-stream")

    async def infer_json(content: dict[str, Any]) -> dict[str, Any]:
        dense = np.array(content["dense"], np.float32)
        return {"score": model.scores(dense, np.array(content["values"], np.int32)).tolist()}

    infer.__annotations__["request"] = Request
    infer_json.__annotations__ = {"content": dict[str, Any], "return": dict[str, Any]}
    app = FastAPI()
    if form == "binary":
        app.post("/infer", response_model=None)(infer)
    else:
        app.post("/infer")(infer_json)
    return app


def main() -> None:
    """Serves until it is ended."""
    # Quantisation advises on every graph.
    logging.disable(logging.WARNING)
    shape, rows, way, form, workers = sys.argv[1:6]
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    reader, writer = os.pipe()
    for _ in range(int(workers)):
        if not os.fork():
            _work(listener, writer, OnnxModel(shape, int(rows) or None, way, 1), form)
            os._exit(0)
    for _ in range(int(workers)):
        os.read(reader, 1)
    print(json.dumps({"http": listener.getsockname()[1]}), flush=True)
    for _ in range(int(workers)):
        os.wait()


def _work(listener: socket.socket, writer: int, model: OnnxModel, form: str) -> None:
    import uvicorn

    app = application(model, form)
    config = uvicorn.Config(app, log_level="error", http="httptools", loop="uvloop", access_log=False)
    os.write(writer, b"1")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
