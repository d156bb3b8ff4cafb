"""The gradient of sample weights against its plain-torch twin."""

import torch
from hypothesis import given, settings
from lookup_worlds import worlds

from megalith.core.schema import TableSpec
from megalith.embeddings.descriptors import CollectionLookups
from megalith.ops.embedding.operators import sample_weight_gradient
from megalith.ops.embedding.twin import sample_weight_gradient_twin


@given(worlds(poolings=("sum", "mean", "max")))
@settings(deadline=None, max_examples=100)
def test_matches_the_twin(world):
    arguments = world.weights, world.lookups.pooled_descriptors, *world.lookup, world.gradient()
    expected = sample_weight_gradient_twin(*arguments)
    torch.testing.assert_close(sample_weight_gradient(*arguments), expected, rtol=1e-4, atol=1e-4)


def test_weights_of_ids_that_no_table_pools_have_none():
    lookups = CollectionLookups([TableSpec(name="t", rows=5, dim=3, features=("f",), pooling="none")])
    lookup = torch.tensor([1, 2, 4]), torch.tensor([0, 2, 3]), torch.rand(3), 1
    found = sample_weight_gradient(
        [torch.randn(5, 3)], lookups.pooled_descriptors, *lookup, torch.randn(2, 0)
    )
    assert torch.equal(found, torch.zeros(3))


def test_torch_knows_the_operator():
    lookups = CollectionLookups([TableSpec(name="t", rows=5, dim=3, features=("f",))])
    values, offsets = torch.tensor([1, 2, 4]), torch.tensor([0, 2, 3])
    arguments = (
        [torch.randn(5, 3)],
        lookups.pooled_descriptors,
        values,
        offsets,
        torch.rand(3),
        1,
        torch.randn(2, 3),
    )
    torch.library.opcheck(torch.ops.megalith.sample_weight_gradient.default, arguments)
