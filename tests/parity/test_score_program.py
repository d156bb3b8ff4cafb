"""Whole requests in one call against lookups and then the program, and against the twins of both."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from frozen_worlds import frozen_worlds
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.core.errors import ConfigError
from megalith.ops.dense.operations import DenseDescription, DenseOperation, DenseOutput
from megalith.ops.dense.program import DenseProgram
from megalith.ops.frozen.encode import encode_rows
from megalith.ops.frozen.formats import RowFormat
from megalith.ops.frozen.lookup import FrozenLookup
from megalith.ops.frozen.table import FrozenTable
from megalith.ops.native import SIMD_LEVELS
from megalith.ops.serving.score import ScoreProgram
from megalith.ops.serving.score_twin import score_twin
from megalith.ops.simd import use_simd

NUMBERS = 3


@pytest.fixture(autouse=True)
def widest_again():
    yield
    use_simd(None)


def described(columns, outputs=1, numbers=NUMBERS, precision="u8s7", turned=False):
    """Numbers and vectors side by side into one layer."""
    generator = torch.Generator().manual_seed(columns)
    weight = torch.randn(outputs, numbers + columns, generator=generator) / (numbers + columns) ** 0.5
    operations = (
        DenseOperation("concat", ("dense", "embedded"), "joined"),
        DenseOperation("linear", ("joined",), "y", weight, torch.zeros(outputs), precision=precision),
    )
    inputs = {"dense": numbers, "embedded": columns}
    inputs = dict(reversed(inputs.items())) if turned else inputs
    return DenseDescription(inputs, operations, (DenseOutput("y"),))


def made(tables, features, numbers=NUMBERS, threads=None, **fields):
    lookup = FrozenLookup(tables, features)
    description = described(lookup.output_dim, numbers=numbers, **fields)
    kinds = ["numbers" if name == "dense" else "pooled" for name in description.inputs]
    return ScoreProgram(lookup, DenseProgram(description, threads), kinds, numbers), description


def small_tables(rows=50, dim=16):
    form = RowFormat("int8", "float16")
    weights = torch.randn(rows, dim, generator=torch.Generator().manual_seed(1))
    held = encode_rows(weights, form)
    return [FrozenTable(held, form, dim, (feature,), name=f"t{feature}") for feature in range(2)]


def request(batch=4, rows=50, length=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, length + 1, (2, batch), generator=generator, dtype=torch.int32)
    values = torch.randint(0, rows, (int(lengths.sum()),), generator=generator)
    return torch.randn(batch, NUMBERS, generator=generator), values, lengths


@given(frozen_worlds(), st.integers(1, 2), st.booleans(), st.sampled_from([0, NUMBERS]), st.data())
@settings(deadline=None, max_examples=60)
def test_a_request_gives_the_bits_of_the_twins(world, outputs, turned, numbers, data):
    batch = (len(world.offsets) - 1) // len(world.features)
    score, description = made(world.tables, world.features, numbers, outputs=outputs, turned=turned)
    dense = torch.randn(batch, numbers, generator=torch.Generator().manual_seed(batch))
    lengths = world.offsets.diff().to(torch.int32).view(len(world.features), batch)
    kinds = ["pooled", "numbers"] if turned else ["numbers", "pooled"]
    request = (dense, world.values, lengths)
    wanted = score_twin(world.tables, world.features, description, kinds, request)
    use_simd(data.draw(st.sampled_from(SIMD_LEVELS)))
    found = score.run(*request)
    if not batch:
        assert found is None
        return
    assert found.shape == ((batch,) if outputs == 1 else (batch, outputs))
    torch.testing.assert_close(found.view(batch, outputs), wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("batch", [1, 16, 700])
def test_threads_and_requests_at_once_change_no_bit(batch):
    tables, (dense, values, lengths) = small_tables(), request(batch, length=90)
    wanted = made(tables, ["a", "b"], threads=1)[0].run(dense, values, lengths)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        score, _ = made(tables, ["a", "b"], threads=2)
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda ids: score.run(dense, ids, lengths), [values, values.int()] * 8):
                assert torch.equal(found, wanted)
    finally:
        torch.set_num_threads(before)
    assert score.scratch_bytes() > 0


def test_scratch_of_large_requests_is_not_kept():
    tables = small_tables()
    score, _ = made(tables, ["a", "b"])
    dense, values, lengths = request(200_000, length=1)
    assert score.run(dense, values, lengths) is not None
    assert score.scratch_bytes() == 0


def with_value(tensor, place, value):
    changed = tensor.clone()
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    "wrong",
    [
        lambda dense, values, lengths: (None, values, lengths),
        lambda dense, values, lengths: (dense.double(), values, lengths),
        lambda dense, values, lengths: (dense[:3], values, lengths),
        lambda dense, values, lengths: (dense.t().contiguous().t(), values, lengths),
        lambda dense, values, lengths: (with_value(dense, (1, 2), float("nan")), values, lengths),
        lambda dense, values, lengths: (with_value(dense, (3, 0), -float("inf")), values, lengths),
        lambda dense, values, lengths: (dense, None, lengths),
        lambda dense, values, lengths: (dense, values.float(), lengths),
        lambda dense, values, lengths: (dense, values[:-1], lengths),
        lambda dense, values, lengths: (dense, values.repeat_interleave(2)[::2], lengths),
        lambda dense, values, lengths: (dense, with_value(values, 0, 50), lengths),
        lambda dense, values, lengths: (dense, with_value(values, 2, -1), lengths),
        lambda dense, values, lengths: (dense, values, lengths.long()),
        lambda dense, values, lengths: (dense, values, lengths[:1]),
        lambda dense, values, lengths: (dense, values, lengths.t().contiguous().t()),
        lambda dense, values, lengths: (dense, values, lengths + torch.tensor([[-9], [9]]).int()),
    ],
)
def test_what_is_wrong_or_in_pieces_is_left_to_others(wrong):
    score, _ = made(small_tables(), ["a", "b"])
    right = request()
    assert score.run(*right) is not None
    assert score.run(*wrong(*right)) is None
    assert torch.equal(score.run(*right), score.run(*right))


def test_largest_numbers_are_finite():
    score, _ = made(small_tables(), ["a", "b"])
    dense, values, lengths = request()
    assert score.run(torch.full_like(dense, 3e38), values, lengths) is not None


def test_inputs_that_do_not_fit_are_refused():
    lookup = FrozenLookup(small_tables(), ["a", "b"])
    with pytest.raises(ConfigError, match="Input 'dense' has 3 columns, and numbers are 4"):
        ScoreProgram(lookup, DenseProgram(described(32)), ["numbers", "pooled"], 4)
