"""Columns of some matrices put together in another, a row at a time: native, and the plain twin.

runs = torch.tensor([(0, 0, 0, 4), (1, 2, 4, 8)])   # source, its column, column of the output, width
copy_columns([one, other], runs, 2, out)            # out[:, :4] from one, out[:, 4:12] from other[:, 2:10]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.ops import native


def copy_columns(sources: Sequence[Tensor], runs: Tensor, num_copied: int, out: Tensor) -> None:
    """The first `num_copied` runs are copied into `out`, those behind them added to it, in their order.

    All matrices are float32, of as many rows; those of a run end where the run does or later.
    """
    if out.device.type != "cpu":
        copy_columns_twin(sources, runs, num_copied, out)
        return
    native.share_torch_threads()
    assert out.stride(1) == 1 or out.shape[1] <= 1
    # Rows may lie apart, columns may not.
    lying = [one if one.stride(1) == 1 else one.contiguous() for one in sources]
    pointers = torch.tensor([one.data_ptr() for one in lying], dtype=torch.int64)
    strides = torch.tensor([one.stride(0) for one in lying], dtype=torch.int64)
    native.library().mg_copy_columns(
        *(pointers.data_ptr(), strides.data_ptr(), runs.data_ptr(), len(runs), num_copied),
        *(len(out), out.data_ptr(), out.stride(0)),
    )


def copy_columns_twin(sources: Sequence[Tensor], runs: Tensor, num_copied: int, out: Tensor) -> None:
    for number, (source, column, output, width) in enumerate(runs.tolist()):
        taken, place = sources[source][:, column : column + width], out[:, output : output + width]
        if number < num_copied:
            place.copy_(taken)
        else:
            place.add_(taken)
