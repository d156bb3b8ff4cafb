"""The dot interaction and its gradient against the plain-torch twin, on every processor variant."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.ops.interaction.dot import dot_interaction
from megalith.ops.interaction.dot_twin import dot_interaction_twin
from megalith.ops.native import SIMD_LEVELS
from megalith.ops.simd import use_simd


@pytest.fixture(autouse=True)
def widest_again():
    yield
    use_simd(None)


@st.composite
def inputs(draw):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    batch, count, dim = draw(st.integers(0, 5)), draw(st.integers(1, 40)), draw(st.integers(1, 70))
    first = torch.randn(batch, dim, generator=generator) if draw(st.booleans()) else None
    return first, torch.randn(batch, count * dim, generator=generator), dim


def with_gradients(operator, first, rest, dim):
    leaves = [None if one is None else one.clone().requires_grad_() for one in (first, rest)]
    out = operator(*leaves, dim)
    if out.requires_grad:
        (out * torch.linspace(-1, 1, max(1, out.numel()))[: out.numel()].view_as(out)).sum().backward()
    return [out.detach(), *(one.grad for one in leaves if one is not None and one.grad is not None)]


def test_products_are_those_of_every_pair_once():
    vectors = torch.randn(2, 4, 3)
    expected = [[(v[i] * v[j]).sum() for i in range(4) for j in range(i)] for v in vectors]
    torch.testing.assert_close(dot_interaction(None, vectors.flatten(1), 3), torch.tensor(expected))
    front = dot_interaction(vectors[:, 0], vectors[:, 1:].flatten(1), 3)
    torch.testing.assert_close(front, torch.cat([vectors[:, 0], torch.tensor(expected)], dim=1))


@given(inputs())
@settings(deadline=None, max_examples=100)
def test_matches_the_twin(arguments):
    found, expected = (with_gradients(one, *arguments) for one in (dot_interaction, dot_interaction_twin))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@given(inputs())
@settings(deadline=None, max_examples=60)
def test_every_processor_variant_gives_the_same_bits(arguments):
    results = []
    for level in SIMD_LEVELS:
        use_simd(level)
        results.append(with_gradients(dot_interaction, *arguments))
    for result in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(result, results[0], strict=True))


def test_torch_knows_the_operator():
    arguments = (torch.randn(4, 3, requires_grad=True), torch.randn(4, 6, requires_grad=True), 3)
    torch.library.opcheck(torch.ops.megalith.dot_interaction.default, arguments)
