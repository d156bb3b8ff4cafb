"""Registered operators given what they cannot use: one sentence, no crash, nothing written."""

from pathlib import Path

import pytest
from child_process import outcomes_of
from odd_inputs import CASES, TAKEN, Call

from megalith.ops.table import OPERATORS


@pytest.fixture(scope="module")
def outcomes():
    return outcomes_of(Path(__file__).parent / "odd_inputs.py", [*CASES, *TAKEN])


@pytest.mark.parametrize("case", CASES)
def test_an_odd_input_is_one_sentence(outcomes, case):
    (told,) = outcomes[case]
    assert "died" not in told, told["died"]
    assert told["unchanged"]
    assert told["error"] in ("ConfigError", "DataError"), told
    assert told["sentence"].endswith("."), told["sentence"]
    assert "\n" not in told["sentence"]


@pytest.mark.parametrize("case", TAKEN)
def test_what_is_only_read_may_have_gaps(outcomes, case):
    assert outcomes[case] == [{"exact": True}]


def test_the_call_that_is_changed_is_a_good_one():
    for operator in {operator for operator, _ in CASES.values()}:
        Call(operator).run()


def test_every_registered_operator_is_among_them():
    registered = {one.torch_name.removeprefix("megalith::") for one in OPERATORS if one.torch_name}
    assert {operator for operator, _ in CASES.values()} >= registered
