"""The linear layer with its ReLU against the two it stands for."""

import pytest
import torch
from torch import nn

from megalith.models.layers.linear import LinearReLU


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("batch", "width", "out"), [(1, 1, 1), (7, 13, 5), (64, 32, 48), (0, 3, 2), (33, 415, 16)]
)
def test_output_and_gradients_are_those_of_linear_and_relu(batch, width, out, dtype):
    torch.manual_seed(batch + width)
    ours = LinearReLU(width, out).to(dtype)
    theirs = nn.Sequential(nn.Linear(width, out), nn.ReLU()).to(dtype)
    theirs[0].load_state_dict(ours.state_dict())
    mine = torch.randn(batch, width, dtype=dtype, requires_grad=True)
    other = mine.detach().clone().requires_grad_()
    gradient = torch.randn(batch, out, dtype=dtype)
    result, wanted = ours(mine), theirs(other)
    result.backward(gradient)
    wanted.backward(gradient)
    for one, two in [
        (result, wanted),
        (mine.grad, other.grad),
        (ours.weight.grad, theirs[0].weight.grad),
        (ours.bias.grad, theirs[0].bias.grad),
    ]:
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


def test_inputs_that_want_no_gradient_get_none():
    layer = LinearReLU(4, 3)
    inputs = torch.randn(5, 4)
    layer(inputs).sum().backward()
    assert inputs.grad is None
    assert layer.weight.grad is not None
    assert layer.weight.grad.is_contiguous()
