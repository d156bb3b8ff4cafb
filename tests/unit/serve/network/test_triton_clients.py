"""Public clients get the plain model's scores: tritonclient over HTTP and gRPC, in both import orders."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from networked_models import draw_inputs, expected, small_model
from running_server import inputs_for

_TYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64"}


def check(result: Any, seed: int, samples: int, version: int = 3) -> None:
    scores = expected(small_model(seed=version), draw_inputs(samples, seed))
    for name, values in scores.items():
        np.testing.assert_allclose(result.as_numpy(name), values, rtol=2e-5, atol=2e-6)
    response = result.get_response()
    name, given = (
        (response["model_name"], response["model_version"])
        if isinstance(response, dict)
        else (response.model_name, response.model_version)
    )
    assert (name, given) == ("small", str(version))


@pytest.fixture
def http(server: Any) -> Any:
    with triton_http.InferenceServerClient(f"127.0.0.1:{server.http}", concurrency=4) as client:
        yield client


@pytest.fixture
def grpc(server: Any) -> Any:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        yield client


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("ids", [np.int32, np.int64])
def test_http_scores_are_the_models(http: Any, binary: bool, ids: Any) -> None:
    for seed, samples in enumerate((1, 7, 64)):
        inputs = inputs_for(triton_http, draw_inputs(samples, seed, ids), binary_data=binary)
        check(http.infer("small", inputs), seed, samples)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_bodies_may_be_compressed_both_ways(http: Any, coding: str) -> None:
    inputs = inputs_for(triton_http, draw_inputs(200, 1))
    result = http.infer(
        "small", inputs, request_compression_algorithm=coding, response_compression_algorithm=coding
    )
    check(result, 1, 200)


def test_outputs_are_those_asked_for_in_the_form_asked_for(http: Any) -> None:
    outputs = [
        triton_http.InferRequestedOutput("price", binary_data=False),
        triton_http.InferRequestedOutput("score", binary_data=True),
    ]
    inputs = inputs_for(triton_http, draw_inputs(5, 2))
    result = http.infer("small", inputs, outputs=outputs, request_id="a b")
    check(result, 2, 5)
    response = result.get_response()
    assert response["id"] == "a b"
    assert [("data" in output) for output in response["outputs"]] == [True, False]


def test_user_features_may_be_sent_once(http: Any, grpc: Any) -> None:
    for client, module in ((http, triton_http), (grpc, triton_grpc)):
        check(client.infer("small", inputs_for(module, draw_inputs(9, 4, apart=True))), 4, 9)


def test_a_version_may_be_chosen(http: Any, grpc: Any) -> None:
    for client, module in ((http, triton_http), (grpc, triton_grpc)):
        inputs = inputs_for(module, draw_inputs(3, 5))
        check(client.infer("small", inputs, model_version="2"), 5, 3, version=2)
        with pytest.raises(InferenceServerException, match="has no version '1'; it has 2, 3"):
            client.infer("small", inputs, model_version="1")


def test_many_requests_at_once(http: Any, grpc: Any) -> None:
    pending = [http.async_infer("small", inputs_for(triton_http, draw_inputs(n + 1, n))) for n in range(24)]
    for seed, each in enumerate(pending):
        check(each.get_result(), seed, seed + 1)
    import queue

    answers: queue.Queue[Any] = queue.Queue()
    for seed in range(24):
        grpc.async_infer(
            "small",
            inputs_for(triton_grpc, draw_inputs(seed + 1, seed)),
            lambda result, error, seed=seed: answers.put((seed, result, error)),
        )
    for _ in range(24):
        seed, result, error = answers.get(timeout=60)
        assert error is None, error
        check(result, seed, seed + 1)


def test_grpc_scores_are_the_models(grpc: Any) -> None:
    for seed, samples in enumerate((1, 7, 64)):
        check(grpc.infer("small", inputs_for(triton_grpc, draw_inputs(samples, seed))), seed, samples)


def test_grpc_streams(grpc: Any) -> None:
    import queue

    answers: queue.Queue[Any] = queue.Queue()
    grpc.start_stream(lambda result, error: answers.put((result, error)))
    for seed in range(3):
        grpc.async_stream_infer("small", inputs_for(triton_grpc, draw_inputs(4, seed)))
    for seed in range(3):
        result, error = answers.get(timeout=60)
        assert error is None, error
        check(result, seed, 4)
    grpc.stop_stream()


def test_health_metadata_config_and_statistics(http: Any, grpc: Any) -> None:
    for client in (http, grpc):
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("small")
        assert client.is_model_ready("small", "2")
    metadata = http.get_model_metadata("small")
    assert metadata["versions"] == ["2", "3"]
    assert {each["name"]: each["shape"] for each in metadata["inputs"]}["lengths"] == [3, -1]
    assert grpc.get_model_metadata("small", as_json=True)["inputs"][0]["name"] == "dense"
    assert "binary_tensor_data" in http.get_server_metadata()["extensions"]
    assert http.get_model_config("small")["input"][0]["data_type"] == "TYPE_FP32"
    assert grpc.get_model_config("small", as_json=True)["config"]["name"] == "small"
    before = http.get_inference_statistics("small", "3")["model_stats"][0]
    http.infer("small", inputs_for(triton_http, draw_inputs(6)))
    after = http.get_inference_statistics("small", "3")["model_stats"][0]
    assert after["inference_count"] - before["inference_count"] == 6
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 1
    assert after["inference_stats"]["compute_infer"]["ns"] > before["inference_stats"]["compute_infer"]["ns"]
    listed = grpc.get_inference_statistics("small", as_json=True)["model_stats"]
    assert {each["version"] for each in listed} == {"2", "3"}


def test_models_leave_and_come_back(http: Any, grpc: Any) -> None:
    for client, module in ((http, triton_http), (grpc, triton_grpc)):
        client.unload_model("other")
        index = client.get_model_repository_index()
        listed = index if isinstance(index, list) else [{"name": each.name} for each in index.models]
        assert "other" not in {each["name"] for each in listed}
        with pytest.raises(InferenceServerException, match="No model 'other' is served"):
            client.infer("other", inputs_for(module, draw_inputs(1)))
        client.load_model("other")
        assert client.is_model_ready("other")
        client.infer("other", inputs_for(module, draw_inputs(1)))
        with pytest.raises(InferenceServerException, match="No folder of this server holds a model 'none'"):
            client.load_model("none")


def test_what_is_not_there_is_unimplemented(http: Any, grpc: Any) -> None:
    with pytest.raises(InferenceServerException) as refused:
        http.get_system_shared_memory_status()
    assert refused.value.status() == "501"
    with pytest.raises(InferenceServerException) as refused:
        grpc.get_system_shared_memory_status()
    assert refused.value.status() == "StatusCode.UNIMPLEMENTED"
    with pytest.raises(InferenceServerException, match="keep no state"):
        http.infer("small", inputs_for(triton_http, draw_inputs(1)), sequence_id=3, sequence_start=True)


def test_typed_contents_are_read_too(server: Any) -> None:
    import grpc as grpc_core
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    arrays = draw_inputs(5, 3)
    request = service_pb2.ModelInferRequest(model_name="small")
    for name, array in arrays.items():
        tensor = request.inputs.add(name=name, datatype=_TYPES[str(array.dtype)], shape=array.shape)
        field = {"FP32": "fp32_contents", "INT64": "int64_contents", "INT32": "int_contents"}[tensor.datatype]
        getattr(tensor.contents, field).extend(array.reshape(-1).tolist())
    with grpc_core.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        response = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    scores = np.frombuffer(response.raw_output_contents[0], np.float32)
    np.testing.assert_allclose(scores, expected(small_model(seed=3), arrays)["score"], rtol=2e-5)


@pytest.mark.parametrize("first", ["client", "server"])
def test_both_orders_of_import_work(first: str) -> None:
    ours = "import megalith.serve.grpc.servicer"
    theirs = "import tritonclient.grpc, tritonclient.http"
    lines = [theirs, ours] if first == "client" else [ours, theirs]
    code = "\n".join([*lines, "tritonclient.grpc.service_pb2.ModelInferRequest(model_name='a')"])
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
