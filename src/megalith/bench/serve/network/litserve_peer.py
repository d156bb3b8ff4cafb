"""LitServe with onnxruntime.

`python -m megalith.bench.serve.network.litserve_peer SHAPE ROWS WAY FORM WORKERS`: FORM `json` is LitServe as
its guide shows it; `binary` is tuned, with bodies of bytes and its queue over ZeroMQ (`fast_queue`). In both
each worker is a process of one thread with its own model, behind as many HTTP processes, its default.
"""

# LitServe compares annotations themselves with FastAPI's types, so they must not be strings.
import json
import logging
import os
import socket
import sys
import threading
import urllib.request
from typing import Annotated, Any

import litserve
from fastapi import Depends, Request, Response

from megalith.bench.serve.network.onnx_model import BINARY, OnnxModel
from megalith.bench.serve.network.servers import wait_for


async def read_body(request: Request) -> bytes:
    """What was sent, unparsed."""
    return await request.body()


class JsonApi(litserve.LitAPI):
    """JSON in, JSON out."""

    def __init__(self, shape: str, rows: int | None, way: str) -> None:
        super().__init__(api_path="/infer")
        self._asked = shape, rows, way

    def setup(self, device: str) -> None:
        """Called in each worker."""
        logging.disable(logging.WARNING)
        self.model = OnnxModel(*self._asked, 1)

    def decode_request(self, request: Request) -> Any:
        """The parsed body."""
        return request

    def predict(self, x: Any) -> Any:
        """Scores."""
        return self.model.scores_of_json(x)

    def encode_response(self, output: Any) -> Response:
        """As it is."""
        return output


class BinaryApi(JsonApi):
    """Bytes in, floats out."""

    def decode_request(self, request: Annotated[bytes, Depends(read_body)]) -> Any:
        """The body as it came."""
        return request

    def predict(self, x: bytes) -> bytes:
        """Scores."""
        return self.model.scores_of_bytes(x)

    def encode_response(self, output: bytes) -> Response:
        """An answer that nothing encodes once more."""
        return Response(output, media_type="application/octet-stream")


def main() -> None:
    """Serves until it is ended."""
    logging.disable(logging.WARNING)
    shape, rows, way, form, workers = sys.argv[1:6]
    # It writes to standard output, where the port is expected.
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    threading.Thread(target=_announce, args=(port, said), daemon=True).start()
    api = (BinaryApi if form == BINARY else JsonApi)(shape, int(rows) or None, way)
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=int(workers), timeout=False, fast_queue=form == BINARY
    )
    server.run(host="127.0.0.1", port=port, log_level="error", access_log=False, generate_client_file=False)


def _announce(port: int, said: Any) -> None:
    def healthy() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    wait_for(healthy, "LitServe")
    print(json.dumps({"http": port}), file=said, flush=True)


if __name__ == "__main__":
    main()
