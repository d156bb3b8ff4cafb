"""The dot interaction of DLRM: all pairwise dot products of a sample's vectors, the first vector in front.

Registered with torch as `megalith::dot_interaction` and its backward, so that autograd, torch.compile and
opcheck see them. The dense vector and the embeddings are read where they are: nothing is joined or sliced.
The plain-torch twin is in `dot_twin.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.ops import native
from megalith.ops.tensors import FLOAT_DTYPES, address, check_devices, check_tensor

_library = torch.library.Library("megalith", "FRAGMENT")
_library.define("dot_interaction(Tensor? first, Tensor rest, int dim) -> Tensor")
_library.define(
    "dot_interaction_backward(Tensor gradient, Tensor? first, Tensor rest, int dim) -> (Tensor, Tensor)"
)

dot_interaction_backward = torch.ops.megalith.dot_interaction_backward.default


def dot_interaction(first: Tensor | None, rest: Tensor, dim: int) -> Tensor:
    """[first | products]: first is [batch, dim] or None, rest [batch, n * dim].

    Products come row by row of the lower triangle: (1,0), (2,0), (2,1), (3,0), ...; vector 0 is `first`,
    where there is one.
    """
    out: Tensor = torch.ops.megalith.dot_interaction.default(first, rest, dim)
    return out


def _output_dim(first: Tensor | None, rest: Tensor, dim: int) -> int:
    count = rest.shape[1] // dim + (0 if first is None else 1)
    return (0 if first is None else dim) + count * (count - 1) // 2


def _check(first: Tensor | None, rest: Tensor, dim: int) -> None:
    """Refuses vectors that are not [batch, dim] and [batch, n * dim]."""
    check_devices([first, rest])
    if dim < 1:
        raise ConfigError(f"dim is {dim}; pass 1 or more.")
    if rest.dim() != 2 or rest.shape[1] % dim:
        raise ConfigError(f"rest is {list(rest.shape)}; pass [batch, n * {dim}].")
    if first is not None and (first.dim() != 2 or first.shape[0] != rest.shape[0] or first.shape[1] != dim):
        raise ConfigError(
            f"first is {list(first.shape)}; pass [{rest.shape[0]}, {dim}], as rest and dim say."
        )


def _check_memory(**tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None:
            check_tensor(name, tensor, FLOAT_DTYPES, 2)


@torch.library.impl(_library, "dot_interaction", "CPU")
def _(first: Tensor | None, rest: Tensor, dim: int) -> Tensor:
    _check_memory(first=first, rest=rest)
    _check(first, rest, dim)
    native.share_torch_threads()
    front = None if first is None else first.float().contiguous()
    others = rest.float().contiguous()
    out = torch.empty(len(rest), _output_dim(first, rest, dim))
    native.library().mg_dot_interaction(
        address(front), others.data_ptr(), len(rest), rest.shape[1] // dim, dim, out.data_ptr()
    )
    return out


@torch.library.impl(_library, "dot_interaction_backward", "CPU")
def _(gradient: Tensor, first: Tensor | None, rest: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    _check_memory(gradient=gradient, first=first, rest=rest)
    _check(first, rest, dim)
    if tuple(gradient.shape) != (len(rest), _output_dim(first, rest, dim)):
        wanted = [len(rest), _output_dim(first, rest, dim)]
        raise ConfigError(f"gradient is {list(gradient.shape)}; pass {wanted}.")
    native.share_torch_threads()
    front = None if first is None else first.float().contiguous()
    others, given = rest.float().contiguous(), gradient.float().contiguous()
    first_gradient = torch.empty(0) if front is None else torch.empty_like(front)
    rest_gradient = torch.empty_like(others)
    native.library().mg_dot_interaction_backward(
        *(given.data_ptr(), address(front), others.data_ptr(), len(rest), rest.shape[1] // dim, dim),
        *(first_gradient.data_ptr(), rest_gradient.data_ptr()),
    )
    return first_gradient, rest_gradient


@torch.library.register_fake("megalith::dot_interaction", lib=_library)
def _(first: Tensor | None, rest: Tensor, dim: int) -> Tensor:
    _check(first, rest, dim)
    return rest.new_empty(rest.shape[0], _output_dim(first, rest, dim), dtype=torch.float32)


@torch.library.register_fake("megalith::dot_interaction_backward", lib=_library)
def _(gradient: Tensor, first: Tensor | None, rest: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    check_devices([gradient, rest])
    _check(first, rest, dim)
    front = rest.new_empty(0) if first is None else first.new_empty(first.shape, dtype=torch.float32)
    return front, rest.new_empty(rest.shape, dtype=torch.float32)


def _setup(ctx: Any, inputs: tuple[Tensor | None, Tensor, int], output: Tensor) -> None:
    first, rest, ctx.dim = inputs
    ctx.save_for_backward(first, rest)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:
    first, rest = ctx.saved_tensors
    first_gradient, rest_gradient = dot_interaction_backward(gradient, first, rest, ctx.dim)
    return (None if first is None else first_gradient), rest_gradient, None


torch.library.register_autograd(
    "megalith::dot_interaction", _differentiate, setup_context=_setup, lib=_library
)
