"""Malformed requests by the thousand, from a seed: every one gets a sentence, and the server stays as it is.

python tests/fuzz_server.py HTTP_PORT GRPC_PORT PROCESS_ID [COUNT [SEED]]
"""

from __future__ import annotations

import json
import random
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

PATH = "/v2/models/small/infer"
_REFUSED = ("INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "DEADLINE_EXCEEDED")
_ODD = (
    b"\x00",
    b"\xff",
    b"-1",
    b"99999999999999999999",
    b"NaN",
    b"[",
    b"{",
    b'"',
    b"\r\n",
    b"\n",
    b":",
    b"\\u0000",
)


def valid_requests() -> list[dict[str, Any]]:
    """Requests that are right, of several sizes, with ids of both widths, tiled and with the user's once."""
    import numpy as np

    from networked_models import draw_inputs

    made = []
    for seed, (ids, apart) in enumerate([(a, b) for a in (np.int32, np.int64) for b in (True, False)]):
        made += [draw_inputs(samples, seed, ids, apart) for samples in (1, 3, 17)]
    return made


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Some bytes changed, cut, doubled, or put in."""
    made = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(made) + 1)
        match draw.randrange(6):
            case 0 if made:
                made[place % len(made)] = draw.randrange(256)
            case 1:
                made[place:place] = draw.choice(_ODD)
            case 2:
                del made[place : place + draw.randint(1, 20)]
            case 3:
                made[place : place + 4] = draw.randbytes(4)
            case 4:
                del made[place:]
            case _:
                made[place:place] = made[place : place + draw.randint(1, 40)]
    return bytes(made)


class HttpFuzzer:
    """Sends damaged HTTP, and reads the answer of each."""

    def __init__(self, port: int, draw: random.Random) -> None:
        from megalith.serve.loadtest.payloads import http_payload

        self._port, self._draw = port, draw
        self._valid = [http_payload(PATH, arrays) for arrays in valid_requests()]
        self._kept: socket.socket | None = None
        self.statuses: Counter[int] = Counter()

    def one(self) -> None:
        """One damaged request and its answer."""
        request = self._draw.choice(self._valid)
        head, body = request.split(b"\r\n\r\n", 1)
        kind = self._draw.randrange(3)
        if kind == 0:
            # The body, with a length that is right: the connection goes on.
            damaged = mutated(body, self._draw)
            lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
            lines.append(b"Content-Length: %d" % len(damaged))
            if self._draw.random() < 0.3:
                lines = [line for line in lines if not line.startswith(b"Inference-Header")]
                lines.append(b"Inference-Header-Content-Length: %d" % self._draw.choice([0, 1, len(damaged)]))
            self._exchange(b"\r\n".join(lines) + b"\r\n\r\n" + damaged, keep=True)
        elif kind == 1:
            self._exchange(mutated(head, self._draw) + b"\r\n\r\n" + body, keep=False)
        else:
            self._exchange(mutated(request, self._draw), keep=False)

    def _exchange(self, data: bytes, keep: bool) -> None:
        connection = self._kept if keep and self._kept is not None else self._open()
        if keep:
            self._kept = connection
        try:
            connection.sendall(data)
            if not keep:
                connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError, OSError):
            # Refused before all was sent; the answer is there to be read, unless that was reset too.
            pass
        try:
            closing = self._answers(connection, keep)
        except (ConnectionResetError, BrokenPipeError):
            self.statuses[0] += 1
            closing = True
        if closing or not keep:
            connection.close()
            if keep:
                self._kept = None

    def close(self) -> None:
        """Ends the connection that was kept."""
        if self._kept is not None:
            self._kept.close()

    def _open(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), timeout=120)

    def _answers(self, connection: socket.socket, keep: bool) -> bool:
        """Reads one answer, or all until the server closes; whether it did."""
        held = b""
        while True:
            while b"\r\n\r\n" not in held:
                piece = connection.recv(65536)
                if not piece:
                    assert not held, held
                    return True
                held += piece
            head, held = held.split(b"\r\n\r\n", 1)
            lines = head.decode("latin-1").lower().split("\r\n")
            status = int(lines[0].split()[1])
            if status == 100:
                continue
            size = int(next(line for line in lines if line.startswith("content-length:")).split(":")[1])
            while len(held) < size:
                piece = connection.recv(65536)
                assert piece, "the answer is cut"
                held += piece
            body, held = held[:size], held[size:]
            self.statuses[status] += 1
            assert status == 200 or 400 <= status < 600, head
            assert status != 500, body
            if status != 200:
                assert json.loads(body)["error"].strip().endswith((".", "?")), body
            if "connection: close" in lines:
                assert connection.recv(1) == b""
                return True
            if keep:
                return False


def fuzz_grpc(port: int, count: int, draw: random.Random) -> Counter[str]:
    """Sends damaged messages; how many got which status."""
    import grpc

    from megalith.serve.loadtest.payloads import grpc_payload

    valid = [grpc_payload("small", arrays) for arrays in valid_requests()]
    statuses: Counter[str] = Counter()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for _ in range(count):
            try:
                call(mutated(draw.choice(valid), draw), timeout=120)
                statuses["OK"] += 1
            except grpc.RpcError as error:
                name = error.code().name
                statuses[name] += 1
                said = error.details().strip()
                if name not in _REFUSED or not said.endswith((".", "?")):
                    raise AssertionError(f"{name}: {said}") from error
    return statuses


def resident_bytes(process: int) -> int:
    """What a process has in memory of its own; not the files that it shares."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) << 10


def fuzz(http: int, grpc_port: int, process: int, count: int, seed: int = 0) -> dict[str, Any]:
    """Half over HTTP, half over gRPC; statuses, and by how much the server grew after the first tenth."""
    draw = random.Random(seed)
    fuzzer = HttpFuzzer(http, draw)
    calls: Counter[str] = Counter()
    start = 0
    tenth = max(1, count // 20)
    for part in range(10):
        for _ in range(tenth):
            fuzzer.one()
        calls += fuzz_grpc(grpc_port, tenth, draw)
        if part == 0:
            start = resident_bytes(process)
    fuzzer.close()
    return {
        "http": dict(fuzzer.statuses),
        "grpc": dict(calls),
        "grown_bytes": resident_bytes(process) - start,
        "resident_bytes": start,
    }


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    print(json.dumps(fuzz(*numbers[:3], *(numbers[3:] or [100_000]))))
