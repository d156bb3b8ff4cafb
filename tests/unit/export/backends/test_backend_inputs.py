"""What a request may hold, and what is refused before any work."""

import pytest
import torch

from megalith.core.errors import ConfigError, ServeError
from megalith.export.backends.conformance.models import FEATURES, probe_model
from megalith.export.backends.conformance.requests import RequestMaker, rows_of_request
from megalith.export.backends.inputs import PartInputs, lookup_columns


@pytest.fixture(scope="module")
def model():
    return probe_model()


def test_columns_stand_table_by_table(model):
    columns = lookup_columns(model.manifest)
    assert [column.feature for column in columns] == ["a", "b", "user", "c", "d", "e", "user_history", "f"]
    assert [column.first for column in columns] == list(range(0, 64, 8))
    assert columns[-1].last == model.manifest.program.inputs["embedded"]


def test_a_lookups_part_reads_the_features_of_its_tables_in_the_order_of_the_manifest(model):
    inputs = PartInputs(model.manifest, "lookups", ("t_adaptive", "t_int8"))
    assert inputs.features == ("a", "b", "user_history", "e")
    assert inputs.user_features == ("user_history",)
    assert [column.table for column in inputs.columns] == ["t_int8", "t_int8", "t_adaptive", "t_adaptive"]


def test_offsets_are_those_of_the_lengths(model):
    request = RequestMaker(model, "whole").request(5, seed=1)
    batch, dense, ids = PartInputs(model.manifest, "whole", None).checked(request)
    assert batch == 5
    assert dense is not None
    assert torch.equal(ids.bags.offsets.diff(), request.lengths.reshape(-1).long())
    assert len(ids.bags.offsets) == len(FEATURES) * 5 + 1


def test_a_sum_that_overflows_is_no_reason_to_refuse(model):
    request = RequestMaker(model, "whole").request(3)
    large = request._replace(dense=torch.full_like(request.dense, 3e38))
    assert PartInputs(model.manifest, "whole", None).checked(large)[0] == 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dense": None}, r"A request has no 'dense'; send float32 \[batch, 5\]."),
        ({"dense": torch.zeros(4, 6)}, r"'dense' is \[4, 6\]; send \[batch, 5\]."),
        ({"dense": torch.zeros(4, 5).double()}, "'dense' is float64; send float32."),
        ({"dense": torch.zeros(3, 5)}, "'lengths' is for 4 samples, 'dense' for 3; send as many."),
        ({"values": None}, "A request has no 'values' and 'lengths'"),
        ({"values": torch.zeros(3)}, r"'values' is float32 \[3\]; send int32 or int64 \[ids\]."),
        (
            {"values": torch.zeros(3, dtype=torch.int64)},
            "'lengths' adds up to .* and 'values' has 3; send as many.",
        ),
        (
            {"lengths": torch.zeros(7, 4, dtype=torch.int32)},
            r"'lengths' is int32 \[7, 4\]; send int32 \[8, batch\].",
        ),
    ],
)
def test_a_wrong_request_is_refused_by_name(model, change, sentence):
    request = RequestMaker(model, "whole").request(4, seed=2)
    with pytest.raises(ServeError, match=sentence):
        PartInputs(model.manifest, "whole", None).checked(request._replace(**change))


def test_a_number_that_is_not_finite_is_named_by_sample_and_column(model):
    request = RequestMaker(model, "whole").request(4)
    request.dense[2, 3] = float("inf")
    with pytest.raises(ServeError, match=r"'dense' has inf in column 3 of sample 2; send finite numbers."):
        PartInputs(model.manifest, "whole", None).checked(request)


def test_a_negative_length_is_named_by_feature_and_sample(model):
    request = RequestMaker(model, "whole").request(4)
    request.lengths[2, 1] = -1
    with pytest.raises(ServeError, match=r"'lengths' of feature 'b' is negative in sample 1; send 0"):
        PartInputs(model.manifest, "whole", None).checked(request)


def test_the_users_lengths_are_for_one_sample(model):
    make = RequestMaker(model, "whole")
    request = make.with_user_apart(make.request(4))
    wide = request._replace(user_lengths=torch.zeros(2, 4, dtype=torch.int32), user_values=request.values[:0])
    with pytest.raises(ServeError, match=r"'user_lengths' is for 4 samples; send \[2, 1\]."):
        PartInputs(model.manifest, "whole", None).checked(wide)


def test_an_unknown_table_is_refused_with_the_nearest_name(model):
    with pytest.raises(ConfigError, match="has no table 't_int9'; did you mean 't_int"):
        PartInputs(model.manifest, "lookups", ("t_int9",))


def test_tables_are_chosen_for_lookups_alone(model):
    with pytest.raises(ConfigError, match="Tables are chosen for a lookups part, not for whole"):
        PartInputs(model.manifest, "whole", ("t_int8",))


def test_samples_of_a_request_carry_their_ids(model):
    request = RequestMaker(model, "whole").request(6, seed=3)
    both = rows_of_request(request, [4, 1])
    assert torch.equal(both.lengths, request.lengths[:, [4, 1]])
    again = rows_of_request(rows_of_request(request, list(range(5, -1, -1))), list(range(5, -1, -1)))
    assert torch.equal(again.values, request.values)
