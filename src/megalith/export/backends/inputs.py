"""What a request holds, what a part reads of it, and the checks that come before any work.

Ids lie feature by feature and within one sample by sample, as `lengths` [features, batch] cuts them. Where
features of the user are the same for all samples they may be sent once: `user_lengths` [user features, 1].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from megalith.core.errors import ConfigError, ServeError, nearest
from megalith.export.manifest import ModelManifest
from megalith.export.program import DENSE, EMBEDDED

_IDS = (torch.int32, torch.int64)


class ScoreRequest(NamedTuple):
    """Samples to score, as `docs/guides/backends.md` lists them. A part reads what it needs."""

    dense: Tensor | None = None
    """Float32 [batch, num_dense]."""
    values: Tensor | None = None
    """Int32 or int64 [ids]."""
    lengths: Tensor | None = None
    """Int32 [features, batch]; without those of the user where these are sent once."""
    user_values: Tensor | None = None
    """Int32 or int64, the ids of the user's features, once."""
    user_lengths: Tensor | None = None
    """Int32 [user features, 1]."""
    embedded: Tensor | None = None
    """Float32 or float16 [batch, columns]: pooled vectors, for a dense part alone."""


class Bags(NamedTuple):
    """Ids of some features: bag feature * batch + sample covers values[offsets[bag] : offsets[bag + 1]]."""

    values: Tensor
    offsets: Tensor
    batch: int


class RequestIds(NamedTuple):
    """What is looked up for a request, or the vectors of a lookup elsewhere."""

    bags: Bags | None
    user: Bags | None = None
    """Those of the user, of a batch of one, where they were sent apart; of several users, if `user_samples`
    says so."""
    pooled: Tensor | None = None
    """Float32 [batch, columns], of a dense part."""
    user_samples: tuple[int, ...] | None = None
    """How many samples each user has, in their order; None is one user for all."""


class LookupColumns(NamedTuple):
    """Where the pooled vectors of a feature in a table stand."""

    table: str
    feature: str
    user_side: bool
    first: int
    last: int


def lookup_columns(manifest: ModelManifest, tables: tuple[str, ...] | None = None) -> list[LookupColumns]:
    """Columns of the pooled vectors: table by table, the features of a table side by side."""
    user = {feature.name: feature.user_side for feature in manifest.features}
    found, end = [], 0
    for table in manifest.tables:
        if tables is not None and table.name not in tables:
            continue
        for feature in table.features:
            found.append(LookupColumns(table.name, feature, user[feature], end, end + table.dim))
            end += table.dim
    return found


class PartInputs:
    """The inputs of a part, and the checks of a request for it."""

    def __init__(self, manifest: ModelManifest, part: str, tables: tuple[str, ...] | None) -> None:
        _check_tables(manifest, part, tables)
        self.columns = lookup_columns(manifest, tables)
        read = {column.feature for column in self.columns}
        features = [each for each in manifest.features if each.name in read]
        self.features = tuple(each.name for each in features)
        """That a request carries ids of, in its order: those of the manifest that the tables read."""
        self.user_features = tuple(each.name for each in features if each.user_side)
        self.item_features = tuple(each.name for each in features if not each.user_side)
        self.num_dense = 0 if part == "lookups" else manifest.num_dense
        self.reads_ids = part != "dense"
        self.tasks = () if part == "lookups" else tuple(task.name for task in manifest.program.outputs)
        inputs = manifest.program.inputs
        self.num_columns = inputs.get(EMBEDDED, 0) if part == "dense" else 0
        self.reads_dense = part != "lookups" and inputs.get(DENSE, 0) > 0

    def empty_outputs(self, pooled: str) -> dict[str, Tensor]:
        """Outputs of a request without samples."""
        if self.tasks:
            return {name: torch.empty(0) for name in self.tasks}
        width = self.columns[-1].last if self.columns else 0
        return {EMBEDDED: torch.empty(0, width, dtype=getattr(torch, pooled))}

    def checked(self, request: ScoreRequest) -> tuple[int, Tensor | None, RequestIds | None]:
        """Batch size, numbers and ids of a request, or the sentence that says what is wrong with it."""
        dense = checked_numbers("dense", request.dense, self.num_dense) if self.reads_dense else None
        if not self.reads_ids:
            pooled = None
            if self.num_columns:
                pooled = checked_numbers(EMBEDDED, request.embedded, self.num_columns)
            given = dense if dense is not None else pooled
            if given is None:
                raise ServeError("A request has no inputs; send 'dense' or 'embedded'.")
            _same_batch(len(given), EMBEDDED, pooled)
            return len(given), dense, RequestIds(None, pooled=pooled)
        apart = request.user_lengths is not None and bool(self.user_features)
        features = self.item_features if apart else self.features
        bags = _bags("", request.values, request.lengths, features)
        user = (
            _bags("user_", request.user_values, request.user_lengths, self.user_features) if apart else None
        )
        if user is not None and user.batch != 1:
            raise ServeError(
                f"'user_lengths' is for {user.batch} samples; send [{len(self.user_features)}, 1]."
            )
        batch = len(dense) if dense is not None else bags.batch
        if bags.batch != batch:
            raise ServeError(f"'lengths' is for {bags.batch} samples, 'dense' for {batch}; send as many.")
        return batch, dense, RequestIds(bags, user)


def _check_tables(manifest: ModelManifest, part: str, tables: tuple[str, ...] | None) -> None:
    names = [table.name for table in manifest.tables]
    for name in tables or ():
        if name not in names:
            raise ConfigError(f"Model '{manifest.name}' has no table '{name}'; {nearest(name, names)}")
    if tables is not None and part != "lookups":
        raise ConfigError(f"Tables are chosen for a lookups part, not for {part}; leave them out.")
    for table in manifest.tables:
        if table.pooling == "none" and part != "dense" and (tables is None or table.name in tables):
            raise ConfigError(f"Table '{table.name}' keeps sequences, which no backend looks up yet.")


def checked_numbers(name: str, tensor: Tensor | None, columns: int) -> Tensor:
    """Finite numbers [batch, columns], float32 in one piece, or the sentence that says what is wrong."""
    if tensor is None:
        raise ServeError(f"A request has no '{name}'; send float32 [batch, {columns}].")
    if tensor.dim() != 2 or tensor.shape[1] != columns:
        raise ServeError(f"'{name}' is {list(tensor.shape)}; send [batch, {columns}].")
    if tensor.dtype != torch.float32:
        if name != EMBEDDED or tensor.dtype != torch.float16:
            raise ServeError(f"'{name}' is {str(tensor.dtype)[6:]}; send float32.")
        tensor = tensor.float()
    # One pass where all is well: a sum is finite unless an element is not, or they are very large.
    if not math.isfinite(tensor.sum().item()) and not bool(tensor.isfinite().all()):
        sample, column = (~tensor.isfinite()).nonzero()[0].tolist()
        raise ServeError(
            f"'{name}' has {tensor[sample, column].item()} in column {column} of sample {sample}; send "
            "finite numbers."
        )
    return tensor.contiguous()


def _bags(prefix: str, values: Tensor | None, lengths: Tensor | None, features: tuple[str, ...]) -> Bags:
    if values is None or lengths is None:
        raise ServeError(f"A request has no '{prefix}values' and '{prefix}lengths'; send ids and how many.")
    if values.dtype not in _IDS or values.dim() != 1:
        raise ServeError(
            f"'{prefix}values' is {str(values.dtype)[6:]} {list(values.shape)}; send int32 or int64 [ids]."
        )
    if lengths.dtype != torch.int32 or lengths.dim() != 2 or len(lengths) != len(features):
        raise ServeError(
            f"'{prefix}lengths' is {str(lengths.dtype)[6:]} {list(lengths.shape)}; send int32 "
            f"[{len(features)}, batch]."
        )
    # Numpy, which costs less than torch on so little.
    flat = lengths.numpy().reshape(-1)
    offsets = np.zeros(len(flat) + 1, dtype=np.int64)
    np.cumsum(flat, out=offsets[1:])
    if len(flat) and flat.min() < 0:
        feature, sample = (lengths < 0).nonzero()[0].tolist()
        raise ServeError(
            f"'{prefix}lengths' of feature '{features[feature]}' is negative in sample {sample}; send 0 or "
            "more."
        )
    if offsets[-1] != values.shape[0]:
        raise ServeError(
            f"'{prefix}lengths' adds up to {offsets[-1]} ids and '{prefix}values' has {len(values)}; send as "
            "many."
        )
    return Bags(values.contiguous(), torch.from_numpy(offsets), lengths.shape[1])


def _same_batch(batch: int, name: str, tensor: Tensor | None) -> None:
    if tensor is not None and len(tensor) != batch:
        raise ServeError(f"'{name}' has {len(tensor)} samples and 'dense' {batch}; send as many.")
