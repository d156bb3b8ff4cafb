"""Pooled lookup against its plain-torch twin, on every processor variant, for any number of threads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lookup_worlds import worlds

from megalith.core.schema import TableSpec
from megalith.embeddings.descriptors import CollectionLookups
from megalith.ops.embedding.operators import embedding_forward
from megalith.ops.embedding.twin import embedding_forward_twin
from megalith.ops.native import SIMD_LEVELS
from megalith.ops.simd import use_simd
from megalith.ops.tensors import STORED_DTYPES

POOLED = ("sum", "mean", "max")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def widest_again():
    yield
    use_simd(None)


@given(worlds(poolings=POOLED), st.sampled_from(STORED_DTYPES))
@settings(deadline=None, max_examples=150)
def test_matches_the_twin(world, dtype):
    arguments = (
        world.weights,
        world.lookups.pooled_descriptors,
        *world.lookup,
        world.lookups.output_dim,
        dtype,
    )
    expected, found = embedding_forward_twin(*arguments), embedding_forward(*arguments)
    assert found.dtype == dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


@given(worlds(poolings=POOLED))
@settings(deadline=None, max_examples=100)
def test_every_processor_variant_gives_the_same_bits(world):
    arguments = (
        world.weights,
        world.lookups.pooled_descriptors,
        *world.lookup,
        world.lookups.output_dim,
        torch.float32,
    )
    results = []
    for level in SIMD_LEVELS:
        use_simd(level)
        results.append(embedding_forward(*arguments))
    assert all(torch.equal(one, results[0]) for one in results)


@pytest.mark.parametrize("lengths", [[1] * 4000, [0] * 3999 + [150_000], [40] * 2000])
def test_the_number_of_threads_does_not_change_a_bit(lengths):
    """Also for one bag so long that threads share it by columns."""
    tables = [TableSpec(name=f"t{dim}", rows=1000, dim=dim, features=("f",)) for dim in (3, 64, 130)]
    lookups = CollectionLookups(tables)
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(1000, table.dim, generator=generator) for table in tables]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    values = torch.randint(0, 1000, (sum(lengths),), generator=generator)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            arguments = weights, lookups.pooled_descriptors, values, offsets, None, 1, lookups.output_dim
            results.append(embedding_forward(*arguments, torch.float32))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, results[0]) for one in results)


def test_torch_knows_the_operator():
    lookups = CollectionLookups([TableSpec(name="t", rows=5, dim=3, features=("f",))])
    values, offsets = torch.tensor([1, 2, 4]), torch.tensor([0, 2, 3])
    arguments = [torch.randn(5, 3)], lookups.pooled_descriptors, values, offsets, None, 1, 3, torch.float32
    torch.library.opcheck(torch.ops.megalith.embedding_forward.default, arguments)
