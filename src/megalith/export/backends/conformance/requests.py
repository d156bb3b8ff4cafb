"""Requests that fit a model, drawn from a seed: what the checks ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from megalith.export.backends.base import LoadSettings, ModelSource, Part
from megalith.export.backends.inputs import PartInputs, ScoreRequest
from megalith.export.backends.kernels.twins import TorchBackend
from megalith.export.program import EMBEDDED

Bags = Literal["usual", "empty", "repeated"]
_LONGEST = 6


class RequestMaker:
    """Makes requests for one part of a model."""

    def __init__(self, model: ModelSource, part: Part, tables: tuple[str, ...] | None = None) -> None:
        self.model, self.part = model, part
        self.inputs = PartInputs(model.manifest, part, tables)
        self._features = {each.name: each for each in model.manifest.features}
        self._tables = {name: table for table in model.manifest.tables for name in table.features}
        self._lookups = (
            TorchBackend().load(model, "lookups", LoadSettings())
            if part == "dense" and self._columns
            else None
        )

    @property
    def _columns(self) -> int:
        return self.model.manifest.program.inputs.get(EMBEDDED, 0)

    def request(self, batch: int, seed: int = 0, bags: Bags = "usual") -> ScoreRequest:
        """Samples whose ids their tables have; those of the user's features are the same in all samples."""
        draw = torch.Generator().manual_seed(seed)
        dense = torch.randn(batch, self.model.manifest.num_dense, generator=draw)
        names = self.inputs.features
        if self._lookups is not None:
            names = self._lookups.inputs.features
        values, lengths = self._ids(names, batch, draw, bags)
        request = ScoreRequest(dense=dense, values=values, lengths=lengths)
        if self.part != "dense":
            return request
        if self._lookups is None:
            return ScoreRequest(dense=dense)
        embedded = self._lookups.run(request)[EMBEDDED]
        return ScoreRequest(dense=dense, embedded=embedded)

    def _ids(
        self, names: Sequence[str], batch: int, draw: torch.Generator, bags: Bags
    ) -> tuple[Tensor, Tensor]:
        values, lengths = [], []
        for name in names:
            feature = self._features[name]
            samples = 1 if feature.user_side and batch else batch
            most = min(feature.max_length or _LONGEST, _LONGEST)
            own = torch.randint(
                1 if most == 1 else 0, most + 1, (samples,), generator=draw, dtype=torch.int32
            )
            if bags == "empty":
                own = torch.zeros_like(own)
            ids = self.known_ids(name)
            picked = ids[torch.randint(0, max(len(ids), 1), (int(own.sum()),), generator=draw)]
            if bags == "repeated" and len(picked):
                picked = picked[:1].expand(len(picked))
            if feature.user_side and batch:
                own, picked = own.expand(batch), picked.repeat(batch)
            lengths.append(own)
            values.append(picked)
        if not names:
            return torch.empty(0, dtype=torch.int64), torch.empty(0, batch, dtype=torch.int32)
        return torch.cat(values), torch.stack(lengths).contiguous()

    def known_ids(self, feature: str) -> Tensor:
        """Some ids that the table of a feature has, int64: the first, the last, and between."""
        table = self._tables[feature]
        if table.ids == "listed":
            return self.model.table(table.name)["ids"]
        return torch.linspace(0, max(table.rows - 1, 0), min(max(table.rows, 1), 1 << 16)).long()

    def bounded_feature(self) -> tuple[str, int] | None:
        """A feature whose ids are rows, and the rows of its table; None where ids of all are any."""
        for name in self.inputs.features:
            if self._tables[name].ids == "rows":
                return name, self._tables[name].rows
        return None

    def with_id(self, request: ScoreRequest, feature: str, value: int) -> ScoreRequest:
        """The request with one id of a feature replaced, or added to its first sample."""
        assert request.values is not None
        assert request.lengths is not None
        position = self.inputs.features.index(feature)
        before = int(request.lengths[:position].sum())
        lengths = request.lengths.clone()
        lengths[position, 0] += 1
        added = torch.tensor([value], dtype=torch.int64)
        values = torch.cat([request.values[:before], added, request.values[before:]])
        return request._replace(values=values, lengths=lengths)

    def with_user_apart(self, request: ScoreRequest) -> ScoreRequest:
        """The request with ids of the user's features sent once."""
        assert request.values is not None
        assert request.lengths is not None
        batch = request.lengths.shape[1]
        pieces = request.values.split(request.lengths.sum(1).tolist())
        named = list(zip(self.inputs.features, pieces, request.lengths, strict=True))
        item = [(piece, own) for name, piece, own in named if name not in self.inputs.user_features]
        user = [
            (piece[: len(piece) // batch], own[:1])
            for name, piece, own in named
            if name in self.inputs.user_features
        ]
        none, no_lengths = request.values[:0], request.lengths[:0]
        return request._replace(
            values=torch.cat([none, *(piece for piece, _ in item)]),
            lengths=torch.stack([own for _, own in item]) if item else no_lengths,
            user_values=torch.cat([none, *(piece for piece, _ in user)]),
            user_lengths=torch.stack([own for _, own in user]),
        )


def rows_of_request(request: ScoreRequest, rows: Sequence[int]) -> ScoreRequest:
    """Some samples of a request, in that order."""
    chosen = torch.tensor(rows, dtype=torch.long)
    dense = None if request.dense is None else request.dense[chosen]
    if request.lengths is None or request.values is None:
        embedded = None if request.embedded is None else request.embedded[chosen]
        return ScoreRequest(dense=dense, embedded=embedded)
    features, batch = request.lengths.shape
    bags = request.values.split(request.lengths.reshape(-1).tolist())
    kept = [bags[feature * batch + row] for feature in range(features) for row in rows]
    values = torch.cat(kept) if kept else request.values[:0]
    return ScoreRequest(dense=dense, values=values, lengths=request.lengths[:, chosen].contiguous())
