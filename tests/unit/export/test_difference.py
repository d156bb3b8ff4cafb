"""The search for the first place that differs finds what was changed, and blames nothing behind it."""

from dataclasses import replace

import pytest
import torch

from megalith.core.errors import ConfigError
from megalith.export.backends.conformance.models import ModelInMemory, probe_model
from megalith.export.backends.conformance.requests import RequestMaker
from megalith.export.difference import FrozenSide, find_difference
from megalith.export.difference.requests import batch_of, request_of, tiled
from megalith.export.program import Linear

PROBE = probe_model()


def request_for(model: ModelInMemory, samples: int = 20):
    return RequestMaker(model, "whole").request(samples)


def changed(model: ModelInMemory, name: str) -> ModelInMemory:
    """The model with one weight of its dense part moved."""
    weight = model.dense[name].clone()
    weight.view(-1)[0] += 1
    return replace(model, dense={**model.dense, name: weight})


def layers(model: ModelInMemory) -> list[Linear]:
    return [each for each in model.manifest.program.operations if isinstance(each, Linear)]


@pytest.mark.parametrize("number", [0, -1])
def test_the_layer_whose_weight_was_changed_is_found_and_those_behind_it_are_not_blamed(number: int) -> None:
    layer = layers(PROBE)[number]
    sides = FrozenSide(PROBE, "a"), FrozenSide(changed(PROBE, layer.weight), "b")
    found = find_difference(*sides, request_for(PROBE))
    assert found.first_different is not None
    assert found.first_different.name == layer.output
    assert {place.name for place in found.places if place.differs and place.kind == "layer"} <= {
        each.output for each in layers(PROBE) if each.weight == layer.weight
    }


@pytest.mark.parametrize("table", ["t_int8", "t_int4", "t_dynamic", "t_adaptive"])
def test_the_table_whose_rows_were_changed_is_found_and_the_bag_named(table: str) -> None:
    tables = {name: dict(held) for name, held in PROBE.tables.items()}
    tables[table]["rows"] = tables[table]["rows"] ^ 8
    other = replace(PROBE, tables=tables)
    request = request_for(PROBE)
    found = find_difference(FrozenSide(PROBE, "a"), FrozenSide(other, "b"), request, tolerance=0.0)
    first = found.first_different
    assert first is not None
    assert first.name.partition(" ")[0] == table
    assert first.farthest is not None
    assert first.farthest.first != first.farthest.second
    assert set(first.ids) <= set(request.values.tolist())


@pytest.mark.parametrize("other", ["torch", "native+onnxruntime", "native+openvino"])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_backends_of_one_model_differ_by_no_more_than_precisions_explain(precision: str, other: str) -> None:
    model = probe_model(precision, "u8s7" if precision == "int8" else "float32")
    found = find_difference(
        FrozenSide(model, "a", "native"), FrozenSide(model, "a", other), request_for(model)
    )
    assert found.first_different is None, found.first_different
    assert len(found.places) == len(FrozenSide(model, "a").columns) + len(
        model.manifest.program.operations
    ) + len(model.manifest.program.outputs)


def test_a_model_is_equal_to_itself_bit_for_bit() -> None:
    found = find_difference(FrozenSide(PROBE, "a"), FrozenSide(PROBE, "b"), request_for(PROBE), tolerance=0.0)
    assert found.first_unequal is None
    assert found.first_different is None
    assert found.samples == 20


def test_values_that_are_not_finite_on_one_side_alone_are_found() -> None:
    layer = layers(PROBE)[0]
    weight = PROBE.dense[layer.weight].clone()
    weight[0, 0] = float("nan")
    other = replace(PROBE, dense={**PROBE.dense, layer.weight: weight})
    found = find_difference(FrozenSide(PROBE, "a"), FrozenSide(other, "b"), request_for(PROBE))
    assert found.first_different is not None
    assert found.first_different.name == layer.output


def test_models_of_other_tables_are_refused_by_name() -> None:
    tables = PROBE.manifest.tables
    renamed = (tables[0].model_copy(update={"name": "elsewhere"}), *tables[1:])
    manifest = PROBE.manifest.model_copy(update={"tables": renamed})
    other = replace(PROBE, manifest=manifest)
    with pytest.raises(ConfigError, match="is not alike"):
        find_difference(FrozenSide(PROBE, "a"), FrozenSide(other, "b"), request_for(PROBE))


def test_a_backend_without_lookups_is_refused_with_what_to_pair_it_with() -> None:
    side = FrozenSide(PROBE, "a", "onnxruntime")
    with pytest.raises(ConfigError, match=r"native\+onnxruntime"):
        side.pooled(request_for(PROBE))


def test_a_request_with_the_users_features_once_is_the_same_request_when_tiled() -> None:
    maker = RequestMaker(PROBE, "whole")
    request = maker.request(7)
    user = [each.name for each in PROBE.manifest.features if each.user_side]
    whole = tiled(maker.with_user_apart(request), maker.inputs.features, user)
    assert torch.equal(whole.values, request.values)
    assert torch.equal(whole.lengths, request.lengths)
    assert tiled(request, maker.inputs.features, user) is request


def test_a_request_survives_being_a_batch() -> None:
    request = request_for(PROBE, 7)
    again = request_of(batch_of(request))
    assert all(
        torch.equal(getattr(again, name), getattr(request, name)) for name in ("dense", "values", "lengths")
    )
