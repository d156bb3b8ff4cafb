"""A frozen table: rows, how they are encoded, and who looks them up."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.ops.frozen.changed_rows import changed_numbers
from megalith.ops.frozen.formats import RowFormat
from megalith.ops.frozen.prefix import PrefixFormat

_POOLINGS = ("sum", "mean", "max")


@dataclass(frozen=True, slots=True)
class FrozenTable:
    """Rows in memory, read where they are; tensors must be contiguous and not be replaced or resized."""

    rows: Tensor
    """uint8 [rows, row_bytes]; of rows of unequal length, uint8 [bytes]"""
    form: RowFormat
    dim: int
    features: tuple[int, ...]
    """Positions of the features that are looked up here."""
    pooling: str = "sum"
    padding: int | None = None
    """An id that reads as zeros and does not count in a mean."""
    chunk: int | None = None
    """Rows keep a prefix of their columns, a multiple of this."""
    starts: Tensor | None = None
    """uint32 [rows + 1]: where each row begins, in units of `PrefixFormat.unit`, where there is a chunk."""
    ids: Tensor | None = None
    """int64, rising: the ids that have a row, in the order of rows; None: an id is its row."""
    unknown: int | None = None
    """Of listed ids, the row of all others; None reads as zeros, which count as a row."""
    name: str = "table"
    changed: Tensor | None = None
    """int64 [words, 2]: which rows have their content in `changed_rows`, as `changed_rows.py` has it; only of
    rows of equal length."""
    changed_rows: Tensor | None = None
    """uint8 [changed, row_bytes]"""

    def __post_init__(self) -> None:
        if self.pooling not in _POOLINGS:
            raise ConfigError(f"Table '{self.name}' pools by {self.pooling!r}; use {', '.join(_POOLINGS)}.")
        if self.dim < 1 or not self.features:
            raise ConfigError(f"Table '{self.name}' needs a column and a feature at least.")
        if (self.chunk is None) != (self.starts is None):
            raise ConfigError(f"Table '{self.name}' has only one of chunk and starts; pass both or none.")
        self._check_rows()
        if self.changed is not None or self.changed_rows is not None:
            self._check_changed()
        if self.ids is not None:
            rising = bool((self.ids[1:] > self.ids[:-1]).all())
            if self.ids.dtype != torch.int64 or self.ids.shape != (self.num_rows,) or not rising:
                raise ConfigError(f"The ids of table '{self.name}' are not int64, rising, one for each row.")
        if self.unknown is not None and (self.ids is None or not 0 <= self.unknown < self.num_rows):
            raise ConfigError(f"Table '{self.name}' has no row {self.unknown} for ids that it does not list.")

    def _check_changed(self) -> None:
        index, rows = self.changed, self.changed_rows
        if index is None or rows is None or self.starts is not None:
            raise ConfigError(f"Table '{self.name}' cannot have rows that changed without an index of them.")
        words = max(1, -(-self.num_rows // 64))
        if index.dtype != torch.int64 or index.shape != (words, 2) or not index.is_contiguous():
            raise ConfigError(f"The index of changed rows of table '{self.name}' is not int64 [{words}, 2].")
        wanted = (len(changed_numbers(index)), self.form.row_bytes(self.dim))
        if rows.dtype != torch.uint8 or rows.shape != wanted or not rows.is_contiguous():
            raise ConfigError(f"The changed rows of table '{self.name}' are not uint8 {list(wanted)}.")

    def _check_rows(self) -> None:
        rows, starts = self.rows, self.starts
        if rows.dtype != torch.uint8 or not rows.is_contiguous():
            raise ConfigError(f"The rows of table '{self.name}' are not contiguous uint8.")
        if starts is None:
            wanted = self.form.row_bytes(self.dim)
            if rows.dim() != 2 or rows.shape[1] != wanted:
                raise ConfigError(f"The rows of table '{self.name}' are not uint8 [rows, {wanted}].")
            return
        layout = self.prefix
        if starts.dtype != torch.uint32 or starts.dim() != 1 or not len(starts) or rows.dim() != 1:
            raise ConfigError(f"Table '{self.name}' has starts that are not uint32 [rows + 1].")
        sizes = torch.diff(starts.long())
        allowed = torch.tensor([layout.units(count) for count in range(layout.num_chunks + 1)])
        fits = int(starts[0]) == 0 and int(starts[-1]) * layout.unit == len(rows)
        if not fits or not bool(torch.isin(sizes, allowed).all()):
            raise ConfigError(f"Table '{self.name}' has starts that its rows do not fit.")

    @property
    def num_rows(self) -> int:
        """Rows that are stored, those without a byte among them."""
        return len(self.rows) if self.starts is None else len(self.starts) - 1

    @property
    def prefix(self) -> PrefixFormat:
        """How rows of unequal length lie in memory."""
        return PrefixFormat(self.form, self.dim, self.chunk or self.dim)

    def bytes(self) -> int:
        """Of all tensors."""
        every = (self.rows, self.starts, self.ids, self.changed, self.changed_rows)
        held = [tensor for tensor in every if tensor is not None]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)
