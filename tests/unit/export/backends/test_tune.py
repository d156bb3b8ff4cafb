"""Tuning measures what is installed, leaves out what is wrong, and keeps the best in the manifest."""

import math

import pytest

from megalith.core.errors import ConfigError
from megalith.export.backends.checks import recorded_checks
from megalith.export.backends.choice import load_whole
from megalith.export.backends.conformance.models import ModelInMemory, probe_model
from megalith.export.backends.conformance.requests import RequestMaker
from megalith.export.backends.tune import Candidate, Tuning, tune
from megalith.hardware.timing import Timing


def with_checks(model, change=0.0):
    """The model with samples and the outputs that it gives for them."""
    request = RequestMaker(model, "whole").request(16)
    outputs = load_whole(model, "torch").run(request)
    checks = {"dense": request.dense, "values": request.values, "lengths": request.lengths}
    checks |= {f"output/{name}": out + change for name, out in outputs.items()}
    return ModelInMemory(model.manifest, model.tables, model.dense, checks)


def candidate(choice, threads, *seconds, problem=""):
    timings = {batch: Timing((value,)) for batch, value in enumerate(seconds)}
    return Candidate(choice, threads, timings, problem)


def test_recorded_samples_read_back():
    model = with_checks(probe_model())
    request, outputs = recorded_checks(model)
    assert sorted(outputs) == ["score", "watch_time"]
    assert request.user_lengths is None
    assert recorded_checks(probe_model()) is None


def test_every_installed_backend_is_measured():
    found = tune(with_checks(probe_model()), batches=(1, 8), threads=(1,), repeats=1)
    choices = {each.choice for each in found.candidates if not each.problem}
    assert choices >= {"native", "torch", "native+torch"}
    assert all(set(each.timings) == {1, 8} for each in found.candidates if not each.problem)
    assert found.best.seconds <= min(each.seconds for each in found.candidates) * 1.03
    assert found.candidates[0].seconds == min(each.seconds for each in found.candidates)


def test_layers_in_few_bits_are_also_tried_as_float32():
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    found = tune(with_checks(probe_model("int8", "u8s7")), batches=(2,), threads=(1,), repeats=1)
    choices = {each.choice for each in found.candidates}
    assert choices >= {"native+onnxruntime", "native+onnxruntime:precision=float32"}


def test_a_backend_with_other_outputs_is_left_out():
    found = tune(with_checks(probe_model(), change=0.1), batches=(1,), threads=(1,), repeats=1)
    assert all("apart" in each.problem for each in found.candidates)
    with pytest.raises(ConfigError, match=r"No backend here runs this model \(.*apart"):
        _ = found.best


def test_the_best_is_best_over_all_batches_and_frugal_with_threads():
    found = Tuning(
        (
            candidate("a", 2, 1.0, 4.0),
            candidate("b", 1, 1.01, 4.0),
            candidate("c", 1, 0.5, 100.0),
            candidate("d", 1, problem="gives nonsense"),
        )
    )
    assert found.best.choice == "b"
    assert found.candidates[3].seconds == math.inf
    assert found.candidates[0].seconds == pytest.approx(2.0)
