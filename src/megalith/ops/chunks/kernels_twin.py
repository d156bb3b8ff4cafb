"""Lookups and updates of chunked rows in plain torch: over rows with all their columns, zeros where dead.

They take the ids of a batch, not slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.ops.chunks.blocks import ChunkShape
from megalith.ops.chunks.chunked_rows_twin import ChunkedRowsTwin, TwinRow
from megalith.ops.chunks.steps import ChunkStep
from megalith.ops.embedding.descriptors import LookupBatch, OutputGradients
from megalith.ops.embedding.twin import embedding_forward_twin
from megalith.ops.optimizer.backward_twin import touched_rows
from megalith.ops.optimizer.row_gradients import RowGradients
from megalith.ops.optimizer.steps import OptimizerStep, PhysicalRows, update_rows_
from megalith.ops.optimizer.stochastic_rounding import RowRounding, round_at_random


def expanded_tables(twin: ChunkedRowsTwin) -> list[Tensor]:
    """[rows, dim] of each table, for the twins of lookups over whole rows."""
    tables = [torch.zeros(table.rows, twin.shape.dim, dtype=twin.shape.dtype) for table in twin.tables]
    for (table, row), held in twin.rows.items():
        tables[table][row] = held.weight
    return tables


def chunked_forward_twin(
    twin: ChunkedRowsTwin, descriptors: Tensor, batch: LookupBatch, output_dim: int, dtype: torch.dtype
) -> Tensor:
    """Pooled vectors [batch, output_dim]: what `NativeTables.forward` gives for slots."""
    return embedding_forward_twin(expanded_tables(twin), descriptors, *batch, output_dim, dtype)


def chunked_backward_twin_(
    twin: ChunkedRowsTwin,
    steps: Tensor,
    descriptors: Tensor,
    batch: LookupBatch,
    gradients: OutputGradients,
    rounding: Tensor,
    chunk_steps: Sequence[ChunkStep],
    absent: Tensor,
) -> Tensor:
    """One optimizer step on the live columns of every touched row; the norms of `absent` (table, id) rows.

    Rows that do not compete are not scored: those that `unscored` names.
    """
    numbers = {(table, row): number for number, (table, row) in enumerate(absent.tolist())}
    norms = torch.zeros(len(absent))
    touched = touched_rows(expanded_tables(twin), descriptors, batch, gradients)
    for table, found in touched.items():
        step, settings = OptimizerStep(*steps[table].tolist()), chunk_steps[table]
        accesses = _accesses(table, descriptors, batch, gradients)
        for row, gradient in zip(found.rows.tolist(), found.gradients, strict=True):
            times = float(accesses[row]) if settings.counts_accesses else 1.0
            held = twin.rows.get((table, row))
            if held is None:
                norms[numbers[table, row]] = chunk_norms(twin.shape, gradient).sum() * times
                continue
            if settings.utility_weight and row < twin.ranked_rows[table]:
                if settings.sums is not None:
                    _add_sums_(twin, held, gradient, settings, times)
                _add_utilities_(twin, held, gradient, settings.utility_weight * times)
            own = step
            if settings.rates is not None:
                own = step._replace(lr=float(torch.tensor(step.lr) * settings.rates[held.mask.bit_count()]))
            id_ = twin.id_of(table, row)
            _update_row_(twin, held, id_, gradient, own, RowRounding(*rounding[table].tolist()))
    return norms


def _accesses(
    table: int, descriptors: Tensor, batch: LookupBatch, gradients: OutputGradients
) -> dict[int, int]:
    """How often each id is looked up in the table, where the output had a gradient."""
    ones = OutputGradients(
        None if gradients.pooled is None else torch.ones_like(gradients.pooled),
        [None if given is None else torch.ones_like(given) for given in gradients.sequences],
    )
    # Sums of ones over lookups that pool by sum and none are counts.
    summed = descriptors.clone()
    summed[:, 3] = torch.where(summed[:, 3] == 3, 3, 0)
    weights = [torch.zeros(int(rows), int(dim)) for rows, dim in _table_shapes(descriptors)]
    plain = LookupBatch(batch.values, batch.offsets, None, batch.num_features)
    found = touched_rows(weights, summed, plain, ones).get(table)
    assert found is not None
    return dict(zip(found.rows.tolist(), found.gradients[:, 0].int().tolist(), strict=True))


def _table_shapes(descriptors: Tensor) -> list[tuple[int, int]]:
    shapes = {int(row[0]): (int(row[1]), int(row[2])) for row in descriptors}
    return [shapes.get(table, (1, 1)) for table in range(max(shapes) + 1)]


def chunk_norms(shape: ChunkShape, gradient: Tensor) -> Tensor:
    """Of each chunk of a row's gradient."""
    return gradient.view(shape.chunks, -1).square().sum(dim=1).sqrt()


def _add_sums_(
    twin: ChunkedRowsTwin, held: TwinRow, gradient: Tensor, settings: ChunkStep, times: float
) -> None:
    assert settings.sums is not None
    norm = chunk_norms(twin.shape, gradient).sum() * times
    utility = held.utilities.float().sum() + held.growth.float()
    for at, number in enumerate((norm * settings.norm_scale, norm * utility * settings.product_scale)):
        settings.sums[at] += int(min(float(number), 2.0**40) + 0.5)


def _add_utilities_(twin: ChunkedRowsTwin, held: TwinRow, gradient: Tensor, weight: float) -> None:
    """Rounded to the nearest; the kernel rounds at random, by at most one place."""
    norms = chunk_norms(twin.shape, gradient)
    live = (torch.tensor(held.mask) >> torch.arange(twin.shape.chunks)) & 1 == 1
    added = held.utilities.float() + norms * weight
    held.utilities = torch.where(live, added, 0.0).bfloat16()
    if not live.all():
        held.growth = (held.growth.float() + norms[~live].sum() * weight).bfloat16()


def _update_row_(
    twin: ChunkedRowsTwin,
    held: TwinRow,
    id_: int,
    gradient: Tensor,
    step: OptimizerStep,
    rounding: RowRounding,
) -> None:
    """The step of whole rows on a row of the live columns, in float32, then rounded by logical columns."""
    live = twin.shape.live_columns(torch.tensor([held.mask]))[0]

    def own(state: Tensor, kind: str) -> Tensor:
        return state[live].unsqueeze(0) if kind == "full" else state.clone()

    first, second = own(held.first, twin.shape.first_state), own(held.second, twin.shape.second_state)
    compact = PhysicalRows(held.weight[live].float().unsqueeze(0), first, second)
    touched = RowGradients(torch.tensor([0]), gradient[live].unsqueeze(0))
    update_rows_(compact, touched, step._replace(stochastic_rounding=0.0), rounding)
    whole = torch.zeros(1, twin.shape.dim)
    whole[0, live] = compact.weight[0]
    if step.stochastic_rounding and held.weight.dtype != torch.float32:
        rounded = round_at_random(whole, held.weight.dtype, torch.tensor([id_]), rounding)[0]
    else:
        rounded = whole[0].to(held.weight.dtype)
    held.weight[live] = rounded[live]
    for state, updated, kind in (
        (held.first, first, twin.shape.first_state),
        (held.second, second, twin.shape.second_state),
    ):
        if kind == "full":
            state[live] = updated[0]
        elif kind == "row":
            state.copy_(updated)
