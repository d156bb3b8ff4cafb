"""Weights of layers in few bits are stored so, and read back to the bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megalith.core.errors import ServeError
from megalith.export.program import Affine, Linear, ModelProgram, ProgramOutput
from megalith.export.stored_weights import layer_weight, reduced_weights, scales_of
from megalith.export.tensor_file import read_tensors, write_tensors
from megalith.ops.dense.quantise import quantise_weight


def layer(precision, weight="w", given="x", output="y"):
    return Linear(inputs=(given,), output=output, weight=weight, bias="b", precision=precision)


def program(*operations):
    return ModelProgram(
        inputs={"x": 300}, operations=operations, outputs=(ProgramOutput(value=operations[-1].output),)
    )


def weights(seed, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(40, 300, generator=generator) * size, "b": torch.randn(40, generator=generator)}


@given(st.integers(0, 2**31), st.sampled_from([1e-40, 1e-3, 1.0, 1e30]))
def test_codes_of_a_layer_are_those_that_loading_would_make(seed, size):
    held, linear = weights(seed, size), layer("int8")
    stored = reduced_weights(program(linear), held, "u8s7")
    found, wanted = layer_weight(linear, stored, "u8s7"), quantise_weight(held["w"], "u8s7")
    assert torch.equal(found.codes, wanted.codes)
    assert torch.equal(found.scales, wanted.scales)
    assert torch.equal(stored["b"], held["b"])


def test_bfloat16_is_rounded_once():
    held, linear = weights(1), layer("bfloat16")
    stored = reduced_weights(program(linear), held, "u8s7")
    assert stored["w"].dtype == torch.bfloat16
    assert torch.equal(layer_weight(linear, stored, "u8s7"), layer_weight(linear, held, "u8s7"))


@pytest.mark.parametrize(("precision", "share"), [("float32", 1.0), ("bfloat16", 0.5), ("int8", 0.25)])
def test_a_file_is_as_small_as_its_precision(tmp_path, precision, share):
    held = weights(2)
    write_tensors(tmp_path / "dense", reduced_weights(program(layer(precision)), held, "u8s7"))
    other = 4 * 40 * (2 if precision == "int8" else 1)
    header = 512
    assert (tmp_path / "dense").stat().st_size <= share * 4 * 40 * 300 + other + header
    linear = layer(precision)
    found, wanted = (layer_weight(linear, each, "u8s7") for each in (read_tensors(tmp_path / "dense"), held))
    if precision == "int8":
        found, wanted = found.dequantised(), wanted.dequantised()
    assert torch.equal(found, wanted)


def test_what_is_read_in_two_ways_stays_float32():
    tied = program(layer("int8"), layer("bfloat16", output="z"))
    assert reduced_weights(tied, weights(3), "u8s7")["w"].dtype == torch.float32
    row = {"w": torch.randn(1, 300), "b": torch.randn(1)}
    scaled = Affine(inputs=("x",), output="s", weight="w", bias=0.0)
    assert reduced_weights(program(scaled, layer("int8")), row, "u8s7")["w"].dtype == torch.float32


def test_codes_run_in_float32_as_what_they_stand_for():
    held = weights(4)
    stored = reduced_weights(program(layer("int8")), held, "u8s7")
    found = layer_weight(layer("float32"), stored, "u8s7")
    assert torch.equal(found, quantise_weight(held["w"], "u8s7").dequantised())


def test_codes_without_scales_are_refused():
    stored = reduced_weights(program(layer("int8")), weights(5), "u8s7")
    del stored[scales_of("w")]
    with pytest.raises(ServeError, match="Weight 'w' has codes and no scales; export the model again"):
        layer_weight(layer("int8"), stored, "u8s7")
