"""`megalith bench serve --in-process` on small tables: the same scores from all sides, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from commands import megalith, unwrapped
from megalith.bench.serve.ours import Ours
from megalith.bench.serve.shapes import SHAPES, ShapeName, draw_request, served_shape
from megalith.bench.serve.suite import quickest_by_kind, ratios
from megalith.bench.serve.weights import ServedWeights, pooled

COMMAND = ("bench", "serve", "--in-process", "--rows", 50, "--repeats", 1, "--threads", 1, "--peer", "none")


@pytest.mark.parametrize("name", SHAPES)
def test_our_scores_are_those_of_the_model_over_decoded_rows(name: ShapeName) -> None:
    weights = ServedWeights(served_shape(name, rows=50))
    request = draw_request(weights.shape, 3, seed=1)
    columns = [
        weights.floats(table)[torch.from_numpy(ids).long()].sum(dim=1)
        for table, ids in enumerate(request.ids_of(weights.shape))
    ]
    embedded = torch.cat(columns, dim=1)
    torch.testing.assert_close(pooled(weights, request), embedded)
    expected = torch.sigmoid(weights.model(request.dense, embedded)).unsqueeze(1)
    torch.testing.assert_close(Ours(weights, "float32", 1)(request), expected, atol=1e-5, rtol=0)
    int8 = Ours(weights, "int8", 1)
    torch.testing.assert_close(int8(request), expected, atol=1e-2, rtol=0)
    torch.testing.assert_close(int8.dense(request.dense, embedded), int8(request), atol=1e-4, rtol=0)


@pytest.mark.parametrize("peer", ["onnxruntime", "onnxruntime-int8", "onnxruntime-int8-static"])
def test_graphs_of_the_dense_part_give_the_scores_of_the_model(peer: str) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from megalith.bench.serve.dense_peers import make_dense

    weights = ServedWeights(served_shape("dlrm-v2-half", rows=50))
    request = draw_request(weights.shape, 3, seed=1)
    embedded = pooled(weights, request)
    expected = torch.sigmoid(weights.model(request.dense, embedded)).unsqueeze(1)
    found = make_dense(peer, weights, 1)(request.dense, embedded)
    torch.testing.assert_close(found, expected, atol=1e-5 if peer == "onnxruntime" else 2e-2, rtol=0)


@pytest.mark.parametrize("way", ["float32", "dequantised", "product"])
def test_onnxruntime_from_end_to_end_gives_the_scores_of_the_model(way: str) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from megalith.bench.serve.whole_peers import OnnxTables, OnnxWhole

    weights = ServedWeights(served_shape("rm1", rows=50))
    request = draw_request(weights.shape, 3, seed=1)
    expected = torch.sigmoid(weights.model(request.dense, pooled(weights, request))).unsqueeze(1)
    whole = OnnxWhole(weights, OnnxTables(weights), way, 1)  # type: ignore[arg-type]
    torch.testing.assert_close(whole(request), expected, atol=1e-5, rtol=0)


def test_fbgemm_pools_the_same_rows() -> None:
    pytest.importorskip("fbgemm_gpu")
    from megalith.bench.serve.whole_peers import FbgemmLookups

    weights = ServedWeights(served_shape("rm1", rows=50))
    request = draw_request(weights.shape, 3, seed=1)
    torch.testing.assert_close(FbgemmLookups(weights, 1)(request), pooled(weights, request))


def test_a_result_says_what_was_measured(tmp_path: Path) -> None:
    done = megalith(*COMMAND, "--shape", "rm1", "--batch", "1,4", "--json", "--out", tmp_path / "result.json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert json.loads((tmp_path / "result.json").read_text()) == content
    assert [each["batch"] for each in content["results"]["measured"]] == [1, 4]
    for each in content["results"]["measured"]:
        assert each["shape"]["name"] == "rm1"
        assert each["shape"]["dense_flops_a_sample"] == 2 * (
            128 * 64 + 64 * 32 + 9 * 32 * 256 + 256 * 64 + 64
        )
        assert list(each["whole"]) == ["megalith-int8", "megalith-float32"]
        assert each["whole"]["megalith-float32"]["differs_by"] < 1e-5
        assert all(found["request_seconds"] > 0 for found in each["whole"].values())
    done = megalith(*COMMAND, "--shape", "rm1", "--batch", 2)
    assert done.returncode == 0, done.stderr
    assert "megalith-int8" in unwrapped(done.stdout)


def test_ratios_take_the_quickest_of_each_side() -> None:
    def taking(**seconds: float) -> dict[str, dict[str, float]]:
        return {name.replace("_", ", "): {"request_seconds": each} for name, each in seconds.items()}

    whole = taking(**{"megalith-int8": 2.0, "megalith-float32": 4.0, "onnxruntime_float32": 8.0})
    whole |= taking(**{"onnxruntime_product": 6.0, "fbgemm_torch": 5.0, "fbgemm_openvino-int8": 7.0})
    assert ratios(whole) == {"fbgemm": 2.5, "int8": 3.5, "onnxruntime": 3.0, "onnxruntime-float32": 4.0}
    dense = taking(**{"torch": 2.0, "openvino": 1.0, "onnxruntime": 3.0, "openvino-int8": 0.9})
    assert quickest_by_kind(dense) == ["openvino", "torch", "openvino-int8"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--shape", "rm1", "--batch", "1,2"], "Over the network --batch is one number"),
        (["--in-process", "--shape", "rm4"], "--shape rm4 is no model here"),
        (["--in-process", "--batch", "0"], "--batch must be numbers from 1 to 100000"),
        (["--in-process", "--peer", "tensorflow"], "--peer tensorflow is no peer here"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(words: list[str], sentence: str) -> None:
    done = megalith("bench", "serve", *words)
    assert done.returncode == 2
    assert sentence in unwrapped(done.stderr)
