"""`first_out_of_range`: finds the first index that lies outside its feature's table.

Registered with torch as `megalith::first_out_of_range`, so that torch.compile and opcheck see it. Values are
feature-major: feature f holds positions [feature_ends[f-1], feature_ends[f]).
"""

from __future__ import annotations

import torch
from torch import Tensor

from megalith.ops import native

_library = torch.library.Library("megalith", "FRAGMENT")
_library.define("first_out_of_range(Tensor values, Tensor feature_ends, Tensor feature_rows) -> Tensor")


def first_out_of_range(values: Tensor, feature_ends: Tensor, feature_rows: Tensor) -> Tensor:
    """The smallest position with an index outside [0, rows of its feature), or -1; int64, no dimensions."""
    found: Tensor = torch.ops.megalith.first_out_of_range.default(values, feature_ends, feature_rows)
    return found


@torch.library.impl(_library, "first_out_of_range", "CPU")
def _(values: Tensor, feature_ends: Tensor, feature_rows: Tensor) -> Tensor:
    if values.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"indices must be int32 or int64, not {values.dtype}")
    native.share_torch_threads()
    values, ends, rows = values.contiguous(), feature_ends.contiguous(), feature_rows.contiguous()
    position = native.library().mg_first_out_of_range(
        values.data_ptr(),
        values.element_size(),
        ends.data_ptr(),
        rows.data_ptr(),
        ends.numel(),
        values.numel(),
    )
    return torch.tensor(position, dtype=torch.int64)


@torch.library.register_fake("megalith::first_out_of_range", lib=_library)
def _(values: Tensor, feature_ends: Tensor, feature_rows: Tensor) -> Tensor:
    return values.new_empty((), dtype=torch.int64)


def first_out_of_range_twin(values: Tensor, feature_ends: Tensor, feature_rows: Tensor) -> Tensor:
    """The plain-torch truth of `first_out_of_range`."""
    sizes = torch.diff(feature_ends, prepend=feature_ends.new_zeros(1))
    rows = torch.repeat_interleave(feature_rows, sizes)
    bad = ((values < 0) | (values >= rows)).nonzero()
    return bad[0, 0] if len(bad) else torch.tensor(-1)
