"""Sequence lookup against its plain-torch twin."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lookup_worlds import worlds

from megalith.core.schema import TableSpec
from megalith.embeddings.descriptors import CollectionLookups
from megalith.ops.embedding.operators import embedding_sequence
from megalith.ops.embedding.twin import embedding_sequence_twin
from megalith.ops.tensors import STORED_DTYPES


@given(worlds(poolings=("none", "none", "sum")), st.sampled_from(STORED_DTYPES))
@settings(deadline=None, max_examples=100)
def test_matches_the_twin_bit_for_bit(world, dtype):
    for number, table, _ in world.lookups.sequences:
        arguments = world.weights, world.lookups.descriptors, *world.lookup, number, table.dim, dtype
        assert torch.equal(embedding_sequence(*arguments), embedding_sequence_twin(*arguments))


def test_torch_knows_the_operator():
    lookups = CollectionLookups([TableSpec(name="t", rows=5, dim=3, features=("f",), pooling="none")])
    values, offsets = torch.tensor([1, 2, 4]), torch.tensor([0, 2, 3])
    arguments = [torch.randn(5, 3)], lookups.descriptors, values, offsets, None, 1, 0, 3, torch.float32
    torch.library.opcheck(torch.ops.megalith.embedding_sequence.default, arguments)
