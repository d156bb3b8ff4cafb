"""A whole request in plain torch: the truth of `ScoreProgram.run`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.ops.dense.operations import DenseDescription
from megalith.ops.dense.program_twin import run_program_twin
from megalith.ops.frozen.lookup_twin import frozen_lookup_twin
from megalith.ops.frozen.table import FrozenTable


def score_twin(
    tables: Sequence[FrozenTable],
    feature_names: Sequence[str],
    description: DenseDescription,
    kinds: Sequence[str],
    request: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """Outputs [batch, columns] of dense [batch, numbers], values [ids] and lengths [features, batch].

    `kinds` says of each input of the program whether it is the numbers or the pooled vectors.
    """
    dense, values, lengths = request
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().long().cumsum(0)])
    given = {"numbers": dense, "pooled": frozen_lookup_twin(tables, feature_names, values, offsets)}
    inputs = {name: given[kind] for name, kind in zip(description.inputs, kinds, strict=True)}
    return run_program_twin(description, inputs)
