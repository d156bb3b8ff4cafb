"""HTTP as it comes off a socket: whole, in pieces, pipelined, cut off, or malformed."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import urllib.request
from typing import Any

import numpy as np
import pytest

from megalith.serve.protocol.packed import HEADER
from networked_models import draw_inputs, expected, small_model

_TYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64"}


class Client:
    """A socket that speaks bytes, and reads responses whole."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.held = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> tuple[int, dict[str, str], bytes]:
        while b"\r\n\r\n" not in self.held:
            self._more()
        head, self.held = self.held.split(b"\r\n\r\n", 1)
        lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
        size = int(headers.get("content-length", "0"))
        while len(self.held) < size:
            self._more()
        body, self.held = self.held[:size], self.held[size:]
        return int(lines[0].split()[1]), headers, body

    def closed(self) -> bool:
        return self.held == b"" and self.socket.recv(1) == b""

    def _more(self) -> None:
        piece = self.socket.recv(65536)
        assert piece, f"closed after {self.held!r}"
        self.held += piece


@pytest.fixture
def client(server: Any) -> Any:
    with Client(server.http) as made:
        yield made


def json_body(arrays: dict[str, Any], **rest: Any) -> bytes:
    inputs = [
        {
            "name": name,
            "datatype": _TYPES.get(str(array.dtype), "FP32"),
            "shape": list(array.shape),
            "data": array.reshape(-1).tolist(),
        }
        for name, array in arrays.items()
    ]
    return json.dumps({"inputs": inputs, **rest}).encode()


def binary_body(arrays: dict[str, Any]) -> tuple[int, bytes]:
    inputs = [
        {
            "name": name,
            "datatype": _TYPES[str(array.dtype)],
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in arrays.items()
    ]
    head = json.dumps({"inputs": inputs}).encode()
    return len(head), head + b"".join(array.tobytes() for array in arrays.values())


def packed_body(arrays: dict[str, Any]) -> bytes:
    apart = "user_lengths" in arrays
    order = ["dense", "lengths", *(["user_lengths"] if apart else []), "values"]
    order += ["user_values"] if apart else []
    header = HEADER.pack(len(arrays["dense"]), arrays["values"].itemsize, int(apart), 0)
    return header + b"".join(arrays[name].tobytes() for name in order)


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def scores(body: bytes) -> list[float]:
    return json.loads(body)["outputs"][0]["data"]


INFER = "/v2/models/small/infer"


def right(body: bytes, seed: int, samples: int) -> None:
    np.testing.assert_allclose(
        scores(body), expected(small_model(seed=3), draw_inputs(samples, seed))["score"], rtol=2e-5
    )


def test_requests_sent_at_once_are_answered_in_their_order(client: Client) -> None:
    sent = b""
    for seed in range(30):
        arrays = draw_inputs(seed + 1, seed)
        length, body = binary_body(arrays)
        if seed % 3 == 0:
            sent += post(INFER, json_body(arrays))
        elif seed % 3 == 1:
            sent += post(INFER, body, f"Inference-Header-Content-Length: {length}")
        else:
            sent += b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
    client.send(sent)
    for seed in range(30):
        status, _, body = client.read()
        assert status == 200, body
        if seed % 3 == 2:
            assert body == b""
        else:
            right(body, seed, seed + 1)


def test_a_request_may_come_byte_by_byte(client: Client) -> None:
    length, body = binary_body(draw_inputs(2, 1))
    for byte in post(INFER, body, f"Inference-Header-Content-Length: {length}"):
        client.send(bytes([byte]))
    status, _, answer = client.read()
    assert status == 200
    right(answer, 1, 2)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("ids", [np.int32, np.int64])
def test_raw_binary_needs_no_json(client: Client, apart: bool, ids: Any) -> None:
    body = packed_body(draw_inputs(6, 2, ids, apart))
    client.send(post(INFER, body, "Inference-Header-Content-Length: 0"))
    status, headers, answer = client.read()
    assert status == 200, answer
    length = int(headers["inference-header-content-length"])
    outputs = json.loads(answer[:length])["outputs"]
    found = np.frombuffer(answer[length:], np.float32).reshape(2, 6)
    assert [output["name"] for output in outputs] == ["score", "price"]
    wanted = expected(small_model(seed=3), draw_inputs(6, 2))
    np.testing.assert_allclose(found, [wanted["score"], wanted["price"]], rtol=2e-5, atol=2e-6)


def test_a_body_may_come_in_chunks_and_compressed(client: Client) -> None:
    body = gzip.compress(json_body(draw_inputs(9, 3)))
    lines = (
        f"POST {INFER} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n\r\n"
    )
    client.send(lines.encode())
    for start in range(0, len(body), 50):
        piece = body[start : start + 50]
        client.send(f"{len(piece):x};a=b\r\n".encode() + piece + b"\r\n")
    client.send(b"0\r\nTrailer: x\r\n\r\n")
    status, _, answer = client.read()
    assert status == 200, answer
    right(answer, 3, 9)


def test_a_client_that_waits_for_continue_is_told_so(client: Client) -> None:
    body = json_body(draw_inputs(2, 1))
    request = post(INFER, body, "Expect: 100-continue")
    client.send(request[: -len(body)])
    assert client.read()[0] == 100
    client.send(body)
    assert client.read()[0] == 200
    client.send(post("/v2/models/none/infer", b"x" * 9, "Expect: 100-continue")[:-9])
    assert client.read()[0] == 404
    assert client.closed()


def test_a_half_closed_client_gets_its_answer(client: Client) -> None:
    client.send(post(INFER, json_body(draw_inputs(2, 1))))
    client.socket.shutdown(socket.SHUT_WR)
    assert client.read()[0] == 200
    assert client.closed()


@pytest.mark.parametrize("cut", [5, 40, -1])
def test_what_is_cut_off_behind_a_request_is_refused_when_that_is_answered(client: Client, cut: int) -> None:
    request = post(INFER, json_body(draw_inputs(2, 1)))
    client.send(request + request[:cut])
    client.socket.shutdown(socket.SHUT_WR)
    assert client.read()[0] == 200
    status, _, body = client.read()
    assert status == 400
    assert "ended" in json.loads(body)["error"]
    assert client.closed()


@pytest.mark.parametrize("cut", [5, 40, -1])
def test_a_request_that_is_cut_off_is_refused(client: Client, cut: int) -> None:
    client.send(post(INFER, json_body(draw_inputs(2, 1)))[:cut])
    client.socket.shutdown(socket.SHUT_WR)
    status, _, body = client.read()
    assert status == 400
    assert "ended" in json.loads(body)["error"]


def test_a_request_that_is_refused_does_not_end_the_connection(client: Client) -> None:
    client.send(post("/v2/models/none/infer", b"x" * 100_000))
    client.send(post("/v2/models/small/infer", b"{}"))
    client.send(post("/nothing", b"abc"))
    client.send(b"DELETE /v2 HTTP/1.1\r\nHost: a\r\n\r\n")
    client.send(b"HEAD /v2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    found = [client.read() for _ in range(4)]
    assert [status for status, _, _ in found] == [404, 400, 404, 405]
    assert found[3][1]["allow"] == "GET"
    assert "no 'inputs'" in json.loads(found[1][2])["error"]
    while b"\r\n\r\n" not in client.held:
        client._more()
    assert client.held.startswith(b"HTTP/1.1 200 OK")
    assert client.held.endswith(b"\r\n\r\n")
    client.held = b""
    assert client.closed()


MALFORMED = {
    b"GET /v2 HTTP/1.1\r\n\r\n": 400,
    b"GET  /v2 HTTP/1.1\r\nHost: a\r\n\r\n": 400,
    b"GET /v2 HTTP/2.0\r\nHost: a\r\n\r\n": 505,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": 505,
    b"\x16\x03\x01\x02\x00\x01\r\n\r\n": 400,
    b"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n": 400,
    b"GET /v2 HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n": 400,
    b"GET /v2 HTTP/1.1\r\nHost : a\r\n\r\n": 400,
    b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n": 400,
    b"GET /v2 HTTP/1.1\r\nHost: a\nX: b\r\n\r\n": 400,
    b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n": 400,
    b"GET /%ff HTTP/1.1\r\nHost: a\r\n\r\n": 400,
    b"GET v2 HTTP/1.1\r\nHost: a\r\n\r\n": 400,
    b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde": 400,
    b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\nabcde": 400,
    b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n": 400,
    b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\na": 400,
    b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n": 400,
    b"POST /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n": 501,
    b"POST /v2/repository/index HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n": 400,
    b"POST /v2/repository/index HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n": 400,
    b"POST /v2/repository/index HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n": 413,
    b"POST /v2/models/small/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n": 413,
    b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20000 + b"\r\n\r\n": 431,
    b"GET /v2 HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n": 431,
}


@pytest.mark.parametrize("request_bytes", list(MALFORMED), ids=range(len(MALFORMED)))
def test_malformed_http_is_refused_with_a_sentence(client: Client, request_bytes: bytes) -> None:
    client.send(request_bytes)
    status, headers, body = client.read()
    assert status == MALFORMED[request_bytes]
    assert json.loads(body)["error"].endswith(".")
    assert headers["connection"] == "close"
    assert client.closed()


def _drop(arrays: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in arrays.items() if key != name}


_GOOD = draw_inputs(2, 1)
WRONG = {
    "is no object": b"[]",
    "cannot be read": b"{",
    "not UTF-8": b"\xff\xfe",
    "nested more than": b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "has no 'name'": b'{"inputs": [{}]}',
    "has the datatype 'FP31'": json_body(_GOOD).replace(b"FP32", b"FP31"),
    "BF16": json_body(_GOOD).replace(b"FP32", b"BF16"),
    "none negative": json_body(_GOOD).replace(b"[2, 3]", b"[-2, -3]"),
    "elements in 'data'": json_body(_GOOD).replace(b"[2, 3]", b"[2, 4]"),
    "holds what is no FP32": json_body({**_GOOD, "dense": np.array([["x"] * 3] * 2)}),
    "is sent twice": json_body(_GOOD).replace(b'"lengths"', b'"values"'),
    "adds up to": json_body({**_GOOD, "lengths": _GOOD["lengths"] + 1}),
    "has no 'dense'": json_body(_drop(_GOOD, "dense")),
    "has no output 'skore'": json_body(_GOOD, outputs=[{"name": "skore"}]),
    "'timeout' is to be a whole number": json_body(_GOOD, parameters={"timeout": -1}),
    "shared memory": json_body(_GOOD, outputs=[{"name": "score", "parameters": {"shared_memory_region": 1}}]),
    "deadline passed": json_body(_GOOD, parameters={"timeout": 1}),
    "no column": json_body({"x": _GOOD["dense"]}),
}


@pytest.mark.parametrize("said", list(WRONG))
def test_a_wrong_request_gets_a_sentence(client: Client, said: str) -> None:
    client.send(post(INFER, WRONG[said]))
    status, _, body = client.read()
    assert status in (400, 501, 504)
    assert said in json.loads(body)["error"]


def test_compressed_bodies_cannot_be_larger_than_the_limit(client: Client) -> None:
    bomb = gzip.compress(b" " * (9 << 20))
    client.send(post(INFER, bomb, "Content-Encoding: gzip"))
    assert client.read()[0] == 413
    client.send(post(INFER, bomb[:-3], "Content-Encoding: gzip"))
    assert client.read()[0] in (400, 413)
    client.send(post(INFER, b"abc", "Content-Encoding: br"))
    assert client.read()[0] == 501


@pytest.mark.parametrize("length", [0, 10, 10_000])
def test_lengths_that_do_not_fit_are_refused(client: Client, length: int) -> None:
    _, body = binary_body(_GOOD)
    client.send(post(INFER, body, f"Inference-Header-Content-Length: {length}"))
    assert client.read()[0] == 400


def test_raw_columns_are_transformed(client: Client) -> None:
    draw = np.random.default_rng(0)
    numbers = {f"n{place}": draw.standard_normal(4).astype(np.float32) for place in range(3)}
    ids = {name: draw.integers(0, 50, 4) for name in ("user", "item", "seen")}
    client.send(post(INFER, json_body({**numbers, **ids})))
    status, _, body = client.read()
    assert status == 200, body
    arrays = {
        "dense": np.stack(list(numbers.values()), axis=1),
        "values": np.concatenate(list(ids.values())),
        "lengths": np.ones((3, 4), np.int32),
    }
    np.testing.assert_allclose(scores(body), expected(small_model(seed=3), arrays)["score"], rtol=2e-5)
    client.send(post(INFER, json_body({**numbers, **ids, "item": np.array([1, 2, 99, 3])})))
    status, _, body = client.read()
    assert status == 400
    assert "The request, row 3: column 'item' holds id 99" in json.loads(body)["error"]


def test_curl_and_urllib_are_served(server: Any, tmp_path: Any) -> None:
    (tmp_path / "body").write_bytes(json_body(draw_inputs(2, 1)))
    command = ["curl", "-s", "--fail", "--compressed", "-d", f"@{tmp_path}/body", server.url + INFER]
    right(subprocess.run(command, check=True, capture_output=True).stdout, 1, 2)
    request = urllib.request.Request(server.url + INFER, data=(tmp_path / "body").read_bytes())
    with urllib.request.urlopen(request) as response:
        right(response.read(), 1, 2)


def test_metrics_have_the_names_that_dashboards_expect(server: Any) -> None:
    urllib.request.urlopen(
        urllib.request.Request(server.url + INFER, data=json_body(draw_inputs(2, 1)))
    ).close()
    with urllib.request.urlopen(server.url + "/metrics") as response:
        text = response.read().decode()
    for name in (
        "nv_inference_request_success",
        "nv_inference_count",
        "nv_inference_exec_count",
        "nv_inference_pending_request_count",
        "nv_inference_request_duration_us",
        "nv_inference_queue_duration_us",
        "nv_inference_compute_infer_duration_us",
    ):
        assert f'{name}{{model="small",version="3"}} ' in text
    assert 'nv_inference_request_failure{model="small",version="3",reason="REJECTED"} ' in text
    assert 'nv_inference_request_success{model="other",version="1"} ' in text
