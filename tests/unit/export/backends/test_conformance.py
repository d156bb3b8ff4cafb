"""Every backend passes the suite, and the suite finds what is wrong with one that does not."""

import pytest
import torch

from megalith.core.errors import ServeError
from megalith.export.backends.base import Health, LoadedPart, PartStatistics
from megalith.export.backends.conformance import check_backend, conforms
from megalith.export.backends.conformance.models import probe_model, probe_models
from megalith.export.backends.conformance.suite import CHECKS
from megalith.export.backends.kernels.twins import TorchBackend, TorchPart


def conforming(name, parts):
    findings = conforms(name)
    assert {finding.part for finding in findings} == set(parts)
    assert not [str(finding) for finding in findings if finding.check == "load"]
    passed = {finding.check for finding in findings if finding.result == "passed"}
    assert passed >= set(CHECKS) - {"recorded outputs", "promised bits"} - (
        {"empty bags", "repeated ids", "ids of 32 bits", "user once", "ids out of range"}
        if parts == ["dense"]
        else set()
    )
    return passed


@pytest.mark.parametrize("name", ["torch", "native"])
def test_ours_conform(name):
    assert "promised bits" in conforming(name, ["lookups", "dense", "whole"])


def test_onnxruntime_conforms():
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    assert "promised bits" in conforming("onnxruntime", ["dense"])


def test_openvino_conforms():
    pytest.importorskip("openvino", reason="openvino is not installed")
    conforming("openvino", ["dense"])


class Spoilt(TorchPart):
    """The twins, with one thing wrong."""

    def compute(self, batch, dense, ids):
        return self.spoil(super().compute(batch, dense, ids), batch, dense, ids)

    def spoil(self, outputs, batch, dense, ids):
        return outputs


def spoilt(**methods):
    part = type("SpoiltPart", (Spoilt,), methods)

    class SpoiltBackend(TorchBackend):
        name = "spoilt"

        def load(self, model, part_name, settings):
            self.check_load(part_name, settings)
            return part(model, part_name, settings)

    return SpoiltBackend()


def failures(backend, checks=tuple(CHECKS)):
    findings = check_backend(backend, probe_model(), largest_batch=40, checks=checks)
    return {finding.check for finding in findings if finding.result == "failed"}


def depends_on_mates(self, outputs, batch, dense, ids):
    return {name: out + batch * 0.01 for name, out in outputs.items()}


def counts(self):
    return PartStatistics(0, 0, 0, 0, 0.0)


def same_buffer(self, outputs, batch, dense, ids):
    kept = self.__dict__.setdefault("_kept", {})
    for name, out in outputs.items():
        buffer = kept.setdefault((name, batch), torch.empty_like(out))
        outputs[name] = buffer.copy_(out)
    return outputs


def crash(self, request):
    if request.dense is None and request.values is None:
        raise RuntimeError("no inputs")
    return LoadedPart.run(self, request)


def unchecked(self, request):
    try:
        return LoadedPart.run(self, request)
    except ServeError:
        return LoadedPart.run(self, request._replace(dense=torch.zeros(4, 5)))


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ({"spoil": depends_on_mates}, {"batch mates", "one sample", "largest batch"}),
        ({"spoil": lambda self, outputs, *rest: {n: o.double() for n, o in outputs.items()}}, {"one sample"}),
        ({"spoil": lambda self, outputs, *rest: {n: o * 0 for n, o in outputs.items()}}, {"one sample"}),
        ({"spoil": same_buffer}, {"inputs stay"}),
        ({"statistics": counts}, {"statistics"}),
        ({"bytes": lambda self: {"tables": 10, "dense": 10}}, {"bytes", "close"}),
        ({"health": lambda self: Health(True)}, {"close"}),
        ({"health": lambda self: Health(False, "no")}, {"health after errors"}),
        ({"run": crash}, {"health after errors", "statistics"}),
        ({"close": lambda self: None}, {"close"}),
        ({"run": unchecked}, {"not finite"}),
    ],
    ids=[
        "mates",
        "dtype",
        "zeros",
        "buffer",
        "statistics",
        "bytes",
        "healthy",
        "ill",
        "crash",
        "open",
        "finite",
    ],
)
def test_the_suite_finds_what_is_wrong(methods, expected):
    assert failures(spoilt(**methods), expected) == expected


def test_the_suite_finds_nothing_wrong_with_the_twins():
    assert failures(spoilt()) == set()


def test_a_failure_says_what_was_asked_wanted_and_got():
    backend = spoilt(statistics=counts)
    found = check_backend(backend, probe_model(), checks=["statistics"])
    assert str(found[0]) == (
        "statistics (lookups of probe-float32): failed. Asked: batches of 3, 0 and 5, and a wrong request. "
        "Wanted: 3 requests, 8 samples, 1 refused, 0 failed, some time. Got: 0 requests, 0 samples, "
        "0 refused, 0 failed, 0 s."
    )


def test_probe_models_hold_every_operation_and_every_kind_of_table():
    from typing import get_args

    from megalith.export.program import Operation

    kinds = {type(operation) for model in probe_models() for operation in model.manifest.program.operations}
    assert kinds == set(get_args(get_args(Operation)[0]))
    tables = probe_model().manifest.tables
    assert {table.precision for table in tables} == {"float32", "float16", "int8", "int4"}
    assert {table.pooling for table in tables} == {"sum", "mean", "max"}


def test_a_backend_that_refuses_everything_does_not_conform(monkeypatch):
    class Refusing(TorchBackend):
        def load(self, model, part, settings):
            raise ServeError("Not today.")

    monkeypatch.setattr("megalith.export.backends.conformance.suite.find_backend", lambda name: Refusing())
    with pytest.raises(AssertionError, match="Not today"):
        conforms("torch")
