"""`lookup_fault`: finds what is wrong with the indices of a lookup before anything reads memory by them.

Values are feature-major: bag n = f * batch + b covers values[offsets[n] : offsets[n + 1]].
"""

from __future__ import annotations

import torch
from torch import Tensor

from megalith.ops import native

NONE, OFFSETS = -1, -2
"""What `lookup_fault` says when all is well, and when offsets do not rise from 0 to the number of values."""


def lookup_fault(values: Tensor, offsets: Tensor, feature_rows: Tensor) -> int:
    """NONE, OFFSETS, or the smallest position with an index outside [0, rows of its feature).

    `offsets` has features * batch + 1 entries, `feature_rows` one for each feature. A plain call into the
    core: a lookup of a small batch should not wait for torch's dispatcher.
    """
    if values.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"indices must be int32 or int64, not {values.dtype}")
    if offsets.dtype != torch.int64:
        raise TypeError(f"offsets must be int64, not {offsets.dtype}")
    if values.device.type != "cpu":
        return lookup_fault_twin(values, offsets, feature_rows)
    native.share_torch_threads()
    values, offsets = values.contiguous(), offsets.contiguous()
    num_features = len(feature_rows)
    batch = (len(offsets) - 1) // num_features
    found: int = native.library().mg_lookup_fault(
        *(values.data_ptr(), values.element_size(), len(values)),
        *(offsets.data_ptr(), batch, feature_rows.data_ptr(), num_features),
    )
    return found


def lookup_fault_twin(values: Tensor, offsets: Tensor, feature_rows: Tensor) -> int:
    """The plain-torch truth of `lookup_fault`."""
    first, last = int(offsets[0]), int(offsets[-1])
    if first != 0 or last != len(values) or bool((offsets[1:] < offsets[:-1]).any()):
        return OFFSETS
    batch = (len(offsets) - 1) // len(feature_rows)
    sizes = offsets[batch::batch] - offsets[:-1:batch] if batch else torch.zeros_like(feature_rows)
    rows = torch.repeat_interleave(feature_rows, sizes)
    bad = ((values < 0) | (values >= rows)).nonzero()
    return int(bad[0, 0]) if len(bad) else NONE
