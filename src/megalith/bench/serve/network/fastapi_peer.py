"""FastAPI under uvicorn with onnxruntime, as one would build it.

`python -m megalith.bench.serve.network.fastapi_peer SHAPE ROWS WAY FORM WORKERS` with WAY as
`graphs.TableWay` has it, FORM `binary` (bytes in, floats out) or `json`. Workers are processes of one thread
that share a port.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from typing import Any

from megalith.bench.serve.network.onnx_model import BINARY, OnnxModel


def application(model: OnnxModel, form: str) -> Any:
    """The FastAPI application."""
    from fastapi import FastAPI, Request, Response

    async def infer(request: Any) -> Any:
        scores = model.scores_of_bytes(await request.body())
        return Response(scores, media_type="application/octet-stream")

    async def infer_json(content: dict[str, Any]) -> dict[str, Any]:
        return model.scores_of_json(content)

    infer.__annotations__["request"] = Request
    infer_json.__annotations__ = {"content": dict[str, Any], "return": dict[str, Any]}
    app = FastAPI()
    if form == BINARY:
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
