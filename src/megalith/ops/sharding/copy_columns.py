"""Columns of some matrices put together in another, a row at a time: native, and the plain twin.

copies = torch.tensor([(0, 0, 0, 4), (1, 2, 4, 8)])   # source, its column, column of the output, width
copy_columns([one, other], copies, 2, out)            # out[:, :4] from one, out[:, 4:12] from other[:, 2:10]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.ops import native


def copy_columns(sources: Sequence[Tensor], copies: Tensor, num_copied: int, out: Tensor) -> None:
    """The first `num_copied` are copied into `out`, those behind them added to it, in their order.

    All matrices are float32, of as many rows; none ends before the columns that are copied from it.
    """
    if out.device.type != "cpu":
        copy_columns_twin(sources, copies, num_copied, out)
        return
    native.share_torch_threads()
    assert out.stride(1) == 1 or out.shape[1] <= 1
    # Rows may have gaps between them, columns may not.
    readable = [source if source.stride(1) == 1 else source.contiguous() for source in sources]
    pointers = torch.tensor([source.data_ptr() for source in readable], dtype=torch.int64)
    strides = torch.tensor([source.stride(0) for source in readable], dtype=torch.int64)
    native.library().mg_copy_columns(
        *(pointers.data_ptr(), strides.data_ptr(), copies.data_ptr(), len(copies), num_copied),
        *(len(out), out.data_ptr(), out.stride(0)),
    )


def copy_columns_twin(sources: Sequence[Tensor], copies: Tensor, num_copied: int, out: Tensor) -> None:
    """The plain-torch truth of `copy_columns`."""
    for number, (source, column, output, width) in enumerate(copies.tolist()):
        read, written = sources[source][:, column : column + width], out[:, output : output + width]
        if number < num_copied:
            written.copy_(read)
        else:
            written.add_(read)
