"""Programs on other libraries give what the interpreter gives."""

from dataclasses import replace

import pytest
import torch

from megalith.core.errors import ConfigError
from megalith.export.backends.base import LoadSettings
from megalith.export.backends.conformance.exact import extreme_numbers
from megalith.export.backends.conformance.models import one_layer, probe_model
from megalith.export.backends.conformance.requests import RequestMaker
from megalith.export.backends.inputs import ScoreRequest
from megalith.export.backends.kernels.twins import TorchBackend
from megalith.export.backends.registry import find_backend

LIBRARIES = ("onnxruntime", "openvino")


@pytest.fixture(params=LIBRARIES)
def backend(request):
    pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    return find_backend(request.param)


def answers(backend, model, request, **options):
    part = backend.load(model, "dense", LoadSettings(options=options))
    try:
        return part.run(request)
    finally:
        part.close()


def test_float32_layers_are_the_interpreters_within_rounding(backend):
    model = probe_model()
    request = RequestMaker(model, "dense").request(70)
    wanted, got = answers(TorchBackend(), model, request), answers(backend, model, request)
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], rtol=2e-5, atol=2e-5)


def test_narrow_layers_may_be_run_as_float32(backend):
    """With weights as they are stored."""
    model = probe_model("int8", "u8s7")
    plain = replace(probe_model(), dense=model.dense)
    request = RequestMaker(model, "dense").request(40)
    wanted = answers(TorchBackend(), plain, request)
    got = answers(backend, model, request, precision="float32")
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("products", ["u8s7", "u8s8"])
@pytest.mark.parametrize("columns", [1, 5, 64, 300])
def test_layers_of_eight_bits_on_onnxruntime_have_the_twins_bits(columns, products):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model = one_layer("int8", columns, products)
    request = ScoreRequest(dense=extreme_numbers(columns))
    wanted = answers(TorchBackend(), model, request)
    got = answers(find_backend("onnxruntime"), model, request)
    for name in wanted:
        assert torch.equal(got[name], wanted[name]), name


def test_rounding_by_batch_lets_samples_depend_on_each_other_and_by_sample_does_not():
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model = one_layer("int8", 20, "u8s7")
    numbers = torch.cat([torch.randn(1, 20), torch.full((1, 20), 1e4)])
    onnxruntime = find_backend("onnxruntime")
    for rounding, alike in (("sample", True), ("batch", False)):
        both = answers(onnxruntime, model, ScoreRequest(dense=numbers), rounding=rounding)["out0"][:1]
        alone = answers(onnxruntime, model, ScoreRequest(dense=numbers[:1]), rounding=rounding)["out0"]
        assert torch.equal(both, alone) is alike


def test_options_that_are_wrong_are_refused_with_the_right_ones(backend):
    model = one_layer("float32", 4, "float32")
    place = {"onnxruntime": "provider", "openvino": "device"}[backend.name]
    with pytest.raises(ConfigError, match="NoSuchCard"):
        backend.load(model, "dense", LoadSettings(options={place: "NoSuchCard"}))
    with pytest.raises(ConfigError, match="precision=int3"):
        backend.load(model, "dense", LoadSettings(options={"precision": "int3"}))
    with pytest.raises(ConfigError, match="has no option 'presision'; did you mean 'precision'"):
        backend.load(model, "dense", LoadSettings(options={"presision": "float32"}))
    with pytest.raises(ConfigError, match=f"Backend '{backend.name}' runs dense, not whole"):
        backend.load(model, "whole", LoadSettings())


def test_a_task_may_have_any_name(backend):
    """Names of values in a graph are of another kind than those of tasks."""
    model = one_layer("float32", 3, "float32")
    program = model.manifest.program
    tasks = tuple(
        task.model_copy(update={"name": name})
        for task, name in zip(program.outputs, ("v1", "c1", "y", "w", "b", "0", "x/y", "ü", " "), strict=True)
    )
    named = model.manifest.model_copy(update={"program": program.model_copy(update={"outputs": tasks})})
    model = type(model)(named, {}, model.dense)
    request = ScoreRequest(dense=torch.randn(2, 3))
    wanted, got = answers(TorchBackend(), model, request), answers(backend, model, request)
    assert list(got) == list(wanted)
