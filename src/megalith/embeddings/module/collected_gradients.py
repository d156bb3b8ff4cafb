"""`CollectedGradients`: gradients of several backward passes that wait for one step.

Each lookup is kept with the gradients of its outputs. For the step they become one batch: what a single
lookup of all samples together would have been, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megalith.core.errors import DataError
from megalith.embeddings.check import Indices
from megalith.embeddings.descriptors import CollectionLookups
from megalith.embeddings.stores.resolved import ResolvedIds
from megalith.ops.embedding.descriptors import OutputGradients


@dataclass
class LookupGradients:
    """One lookup, and the gradients of its outputs."""

    resolved: ResolvedIds
    gradients: OutputGradients


class CollectedGradients:
    """What the backward passes since the last step have given."""

    def __init__(self, lookups: CollectionLookups) -> None:
        self._num_features = len(lookups.features)
        self._output_dim = lookups.output_dim
        positions = {feature: position for position, feature in enumerate(lookups.features)}
        self._sequences = [(positions[feature], table.dim) for _, table, feature in lookups.sequences]
        self._waiting: list[LookupGradients] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, resolved: ResolvedIds, gradients: OutputGradients) -> None:
        """Keeps a lookup, whose gradients nobody else may change."""
        self._waiting.append(LookupGradients(resolved, gradients))

    def clear(self) -> None:
        """Forgets all of them."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.resolved.release()

    def whole(self, resolve: Callable[[Indices], ResolvedIds]) -> LookupGradients | None:
        """All of them as one lookup; None where there are none."""
        if len(self._waiting) > 1 or any(each.resolved.is_released for each in self._waiting):
            parts = self._waiting
            merged = self._merged([each.resolved.given for each in parts])
            gradients = self._joined(parts)
            # Before all of them are brought into memory again: a cache may have no room for both.
            for each in parts:
                each.resolved.release()
            self._waiting = [LookupGradients(resolve(merged), gradients)]
        return self._waiting[0] if self._waiting else None

    def _merged(self, batches: Sequence[Indices]) -> Indices:
        """The samples of all batches, feature by feature."""
        count = self._num_features
        weighted = [weights is not None for _, _, weights in batches]
        if any(weighted) and not all(weighted):
            raise DataError(
                "Some of the lookups that are taken in one step have sample_weights and others have none; "
                "give them to all, or to none."
            )
        sizes = [(len(offsets) - 1) // count for _, offsets, _ in batches]
        lengths = [
            offsets.diff().view(count, size) for (_, offsets, _), size in zip(batches, sizes, strict=True)
        ]
        edges = [self._edges(indices) for indices in batches]

        def by_feature(parts: Sequence[Tensor]) -> Tensor:
            cut = [
                part[own[feature] : own[feature + 1]]
                for feature in range(count)
                for part, own in zip(parts, edges, strict=True)
            ]
            return torch.cat(cut)

        values = by_feature([values for values, _, _ in batches])
        ends = torch.cat(lengths, dim=1).flatten().cumsum(0)
        offsets = torch.cat([ends.new_zeros(1), ends])
        kept = [weights.detach() for _, _, weights in batches if weights is not None]
        return values, offsets, by_feature(kept) if kept else None

    def _edges(self, indices: Indices) -> list[int]:
        """Where the values of each feature begin, and where the last ones end."""
        _, offsets, _ = indices
        size = (len(offsets) - 1) // self._num_features
        return offsets[::size].tolist() if size else [0] * (self._num_features + 1)

    def _joined(self, parts: Sequence[LookupGradients]) -> OutputGradients:
        """Gradients of the outputs of all samples; zeros for outputs that a loss did not depend on, unless
        none did."""
        pooled = _cat(
            [each.gradients.pooled for each in parts],
            [(_num_samples(each, self._num_features), self._output_dim) for each in parts],
        )
        edges = [self._edges(each.resolved.given) for each in parts]
        sequences = []
        for number, (feature, dim) in enumerate(self._sequences):
            shapes = [(own[feature + 1] - own[feature], dim) for own in edges]
            sequences.append(_cat([each.gradients.sequences[number] for each in parts], shapes))
        return OutputGradients(pooled, sequences)


def _num_samples(each: LookupGradients, num_features: int) -> int:
    _, offsets, _ = each.resolved.given
    return (len(offsets) - 1) // num_features


def _cat(parts: Sequence[Tensor | None], shapes: Sequence[tuple[int, int]]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    if not known:
        return None
    filled = [
        known[0].new_zeros(shape) if part is None else part for part, shape in zip(parts, shapes, strict=True)
    ]
    return torch.cat(filled)


def scale_(gradients: OutputGradients, factor: float) -> None:
    """Multiplies gradients in place."""
    for part in (gradients.pooled, *gradients.sequences):
        if part is not None:
            part.mul_(factor)
