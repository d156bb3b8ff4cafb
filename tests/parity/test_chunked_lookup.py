"""Lookups of chunked rows beside whole ones: against twins, on every processor variant, and bit for bit."""

import pytest
import torch
from chunked_lookups import chunked_lookups
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.ops.embedding.native_tables import NativeTables
from megalith.ops.embedding.twin import (
    embedding_forward_twin,
    embedding_sequence_twin,
    sample_weight_gradient_twin,
)
from megalith.ops.native import SIMD_LEVELS
from megalith.ops.simd import use_simd
from megalith.ops.tensors import STORED_DTYPES

POOLED = ("sum", "mean", "max")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def widest_again():
    yield
    use_simd(None)


def pooled_output(lookups, dtype=torch.float32):
    pooled = lookups.pooled(lookups.descriptors)
    return lookups.tables.forward(pooled, lookups.batch, lookups.world.lookups.output_dim, dtype)


def sequence_outputs(lookups, dtype=torch.float32):
    return [
        lookups.tables.sequence(lookups.descriptors, lookups.batch, number, table.dim, dtype)
        for number, table, _ in lookups.world.lookups.sequences
    ]


@given(chunked_lookups(poolings=POOLED), st.sampled_from(STORED_DTYPES))
@settings(deadline=None, max_examples=150)
def test_pooled_rows_match_the_twin(lookups, dtype):
    given_ids = lookups.pooled(lookups.id_descriptors), *lookups.id_batch
    output_dim = lookups.world.lookups.output_dim
    expected = embedding_forward_twin(lookups.expanded(), *given_ids, output_dim, dtype)
    tolerance = TOLERANCE[dtype]
    found = pooled_output(lookups, dtype)
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


@given(chunked_lookups(poolings=("none",)), st.sampled_from(STORED_DTYPES))
@settings(deadline=None, max_examples=60)
def test_sequences_match_the_twin(lookups, dtype):
    for found, (number, table, _) in zip(
        sequence_outputs(lookups, dtype), lookups.world.lookups.sequences, strict=True
    ):
        given_ids = lookups.id_descriptors, *lookups.id_batch
        expected = embedding_sequence_twin(lookups.expanded(), *given_ids, number, table.dim, dtype)
        assert torch.equal(found, expected)


@given(chunked_lookups(poolings=("sum", "mean")))
@settings(deadline=None, max_examples=60)
def test_gradients_of_sample_weights_match_the_twin(lookups):
    gradient = lookups.world.gradient()
    found = lookups.tables.sample_weight_gradient(lookups.descriptors, lookups.batch, gradient)
    given_ids = lookups.id_descriptors, *lookups.id_batch
    expected = sample_weight_gradient_twin(lookups.expanded(), *given_ids, gradient)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-4)


@given(chunked_lookups())
@settings(deadline=None, max_examples=60)
def test_every_processor_variant_gives_the_same_bits(lookups):
    results, gradient = [], lookups.world.gradient()
    for level in SIMD_LEVELS:
        use_simd(level)
        factors = lookups.tables.sample_weight_gradient(lookups.descriptors, lookups.batch, gradient)
        results.append([pooled_output(lookups), *sequence_outputs(lookups), factors])
    for result in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(result, results[0], strict=True))


@given(chunked_lookups(all_live=True), st.sampled_from(STORED_DTYPES))
@settings(deadline=None, max_examples=100)
def test_with_all_chunks_live_outputs_are_those_of_whole_rows_bit_for_bit(lookups, dtype):
    world = lookups.world
    whole = NativeTables(world.weights, world.first, world.second)
    pooled = lookups.pooled(lookups.id_descriptors)
    expected = [whole.forward(pooled, lookups.id_batch, world.lookups.output_dim, dtype)]
    for number, table, _ in world.lookups.sequences:
        expected.append(whole.sequence(lookups.id_descriptors, lookups.id_batch, number, table.dim, dtype))
    found = [pooled_output(lookups, dtype), *sequence_outputs(lookups, dtype)]
    given_ids = lookups.id_descriptors, lookups.id_batch, world.gradient()
    expected.append(whole.sample_weight_gradient(*given_ids))
    found.append(lookups.tables.sample_weight_gradient(lookups.descriptors, lookups.batch, world.gradient()))
    assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))


def same_bits(one, other):
    return one.dtype == other.dtype and torch.equal(
        one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)
    )
