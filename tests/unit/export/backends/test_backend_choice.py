"""Choices of backends as text, and models of two of them."""

import pytest
import torch

from megalith.core.errors import ConfigError, ServeError
from megalith.export.backends.choice import load_whole, parse_choice
from megalith.export.backends.conformance.models import probe_model
from megalith.export.backends.conformance.requests import RequestMaker


@pytest.mark.parametrize("text", ["native", "native+openvino", "a:x=1,y=2+b:z=3"])
def test_a_choice_reads_back(text):
    assert str(parse_choice(text)) == text


@pytest.mark.parametrize("text", ["", "+", "a+", "a+b+c", ":x=1", "a:x", "a:=1"])
def test_what_is_no_choice_is_refused(text):
    with pytest.raises(ConfigError, match=r"no choice of backends|must have the form key=value"):
        parse_choice(text)


def test_a_backend_of_one_part_is_to_be_paired():
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    with pytest.raises(
        ConfigError, match="runs dense alone; pair it with another, such as native\\+onnxruntime"
    ):
        load_whole(probe_model(), "onnxruntime")


def test_two_backends_make_a_whole():
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model = probe_model()
    request = RequestMaker(model, "whole").request(19)
    whole, pair = load_whole(model, "torch"), load_whole(model, "torch+onnxruntime")
    wanted, got = whole.run(request), pair.run(request)
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], rtol=2e-5, atol=2e-5)
    assert pair.bytes().keys() == {"tables", "dense"}
    assert pair.statistics().samples == 19
    pair.close()
    assert sum(pair.bytes().values()) == 0
    with pytest.raises(ServeError, match="is closed; load it again"):
        pair.run(request)
