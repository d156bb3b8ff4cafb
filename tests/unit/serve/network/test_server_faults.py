"""What a server does when there is too much, when it is to end, and when clients misbehave."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from networked_models import draw_inputs, expected, small_model, write_model
from running_server import inputs_for, running


def body_of(samples: int, seed: int) -> bytes:
    inputs = [
        {
            "name": name,
            "datatype": {"f": "FP32", "i": "INT32"}[array.dtype.kind]
            if array.dtype.itemsize == 4
            else "INT64",
            "shape": list(array.shape),
            "data": array.reshape(-1).tolist(),
        }
        for name, array in draw_inputs(samples, seed).items()
    ]
    return json.dumps({"inputs": inputs}).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "small", small_model(seed=1))


def test_more_than_is_allowed_is_refused_with_when_to_come_back(folder: Path) -> None:
    # A request whose body does not come holds its room: two of them fill a server that takes two.
    with running(folder, "--cards", "0", "--active", "1", "--queued", "1") as server:
        held = []
        for _ in range(2):
            waiting = socket.create_connection(("127.0.0.1", server.http))
            waiting.sendall(
                b"POST /v2/models/small/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n"
                b"Inference-Header-Content-Length: 800\r\n\r\n{"
            )
            held.append(waiting)
        refused = _until_refused(f"{server.url}/v2/models/small/infer")
        assert refused.code == 503
        assert int(refused.headers["Retry-After"]) >= 1
        assert "as many as are allowed" in json.load(refused)["error"]
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
            with pytest.raises(InferenceServerException) as unavailable:
                client.infer("small", inputs_for(triton_grpc, draw_inputs(1)))
            assert unavailable.value.status() == "StatusCode.UNAVAILABLE"
        with urllib.request.urlopen(f"{server.url}/metrics") as response:
            assert 'reason="REJECTED"} 2' in response.read().decode()
        for waiting in held:
            waiting.close()
        with triton_http.InferenceServerClient(f"127.0.0.1:{server.http}") as client:
            _retried(lambda: client.infer("small", inputs_for(triton_http, draw_inputs(1))))


def _until_refused(url: str) -> Any:
    """Asks until the rooms are taken, which they are once the server has read the heads before ours."""
    for _ in range(200):
        try:
            urllib.request.urlopen(url, body_of(1, 0)).close()
        except urllib.error.HTTPError as error:
            return error
        time.sleep(0.01)
    raise AssertionError("nothing was refused")


def _retried(ask: Any) -> Any:
    for _ in range(200):
        with contextlib.suppress(InferenceServerException):
            return ask()
        time.sleep(0.01)
    return ask()


def test_requests_under_way_are_answered_after_sigterm(folder: Path) -> None:
    with running(folder, "--cards", "1") as server:
        answers: list[int] = []
        wrong: list[Any] = []

        def ask() -> None:
            """Asks as long as the server takes requests; each that it took must be answered, and rightly."""
            wanted = expected(small_model(seed=1), draw_inputs(20, 3))["score"]
            while True:
                try:
                    with urllib.request.urlopen(
                        f"{server.url}/v2/models/small/infer", body_of(20, 3)
                    ) as found:
                        scores = json.load(found)["outputs"][0]["data"]
                except urllib.error.HTTPError as error:
                    wrong.extend([] if error.code == 503 else [error.read()])
                    return
                except (ConnectionRefusedError, urllib.error.URLError, ConnectionResetError):
                    return
                if not np.allclose(scores, wanted, rtol=2e-5):
                    wrong.append(scores)
                answers.append(1)

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask) for _ in range(4)]
            while len(answers) < 20:
                time.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
            for each in asking:
                each.result(timeout=60)
        assert server.process.wait(60) == 0
        assert not wrong


@pytest.mark.slow
def test_slow_clients_are_ended_and_do_not_hold_others_up(folder: Path) -> None:
    with running(folder, "--cards", "0") as server:
        slow = [socket.create_connection(("127.0.0.1", server.http), timeout=60) for _ in range(50)]
        for each in slow:
            each.sendall(b"GET /v2 HT")
        with triton_http.InferenceServerClient(f"127.0.0.1:{server.http}") as client:
            client.infer("small", inputs_for(triton_http, draw_inputs(1)))
        for each in slow:
            said = each.recv(1000)
            assert said.startswith(b"HTTP/1.1 408"), said
            each.close()


def test_a_client_that_goes_away_is_cancelled_and_its_room_is_freed(folder: Path) -> None:
    with running(folder, "--cards", "0", "--active", "1", "--queued", "1") as server:
        for _ in range(10):
            going = socket.create_connection(("127.0.0.1", server.http))
            going.sendall(
                b"POST /v2/models/small/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n"
                b"Inference-Header-Content-Length: 800\r\n\r\n{"
            )
            # A reset, not an orderly end.
            going.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            going.close()
        with triton_http.InferenceServerClient(f"127.0.0.1:{server.http}") as client:
            _retried(lambda: client.infer("small", inputs_for(triton_http, draw_inputs(1))))
            with urllib.request.urlopen(f"{server.url}/v2/status") as response:
                assert json.load(response)["engine"]["queue"]["rooms"] == 0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    made = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
            ),
            *("-addext", "subjectAltName=DNS:localhost", "-out", made[0], "-keyout", made[1]),
        ],
        check=True,
        capture_output=True,
    )
    return made


def test_both_protocols_over_tls(folder: Path, certificate: tuple[Path, Path]) -> None:
    public, key = certificate
    wanted = expected(small_model(seed=1), draw_inputs(20, 3))["score"]
    with running(folder, "--cards", "0", "--certificate", public, "--key", key) as server:
        trusted = ssl.create_default_context(cafile=public)
        url = f"https://localhost:{server.http}/v2/models/small/infer"
        with urllib.request.urlopen(url, body_of(20, 3), context=trusted) as response:
            np.testing.assert_allclose(json.load(response)["outputs"][0]["data"], wanted, rtol=2e-5)
        client = triton_grpc.InferenceServerClient(
            f"localhost:{server.grpc}", ssl=True, root_certificates=str(public)
        )
        result = client.infer("small", inputs_for(triton_grpc, draw_inputs(20, 3)))
        np.testing.assert_allclose(result.as_numpy("score"), wanted, rtol=2e-5)
        client.close()


def test_requests_of_many_clients_at_once_are_right(server: Any) -> None:
    failed: list[Any] = []

    def client_of(number: int) -> None:
        with triton_http.InferenceServerClient(f"127.0.0.1:{server.http}") as client:
            for seed in range(number, number + 20):
                wanted = expected(small_model(seed=3), draw_inputs(seed + 1, seed))["score"]
                found = client.infer("small", inputs_for(triton_http, draw_inputs(seed + 1, seed)))
                if not np.allclose(found.as_numpy("score"), wanted, rtol=2e-5):
                    failed.append(seed)

    threads = [threading.Thread(target=client_of, args=(10 * number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
