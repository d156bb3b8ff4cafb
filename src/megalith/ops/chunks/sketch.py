"""`CandidateSketch`: rows without a record that may begin, with their utilities, in bounded memory.

    sketch = CandidateSketch([CandidateTable(rows=1_000_000, bytes=1 << 20)])
    sketch.add(found.absent, norms, weight)      # after each step: what `resolve` listed as absent
    ids, utilities = sketch.entries(0)

The rows of a table are cut into 64 units of ceil(rows / 64), and each unit into the row ranges of its buckets
of eight entries, or of fewer where the table has fewer bytes. A full bucket gives up its smallest entry (of
equal ones that of the highest row) for a larger one. Nothing depends on the number of ranks, each of which
has whole units. Entries are {u32 row, f32 utility}, those of a bucket in the order of rows; a utility of 0 is
no entry, so no entry at all is zeros.

Beneath a map of ids units are the partitions of ids, a hash of the id says which bucket of its unit, and raw
ids decide where rows would. Rows of ids may change there, so what travels is {i64 id, f32 utility}.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.core.store_spec import ADAPTIVE_UNITS, unit_rows
from megalith.ops import native
from megalith.ops.tensors import check_tensor

UNITS = ADAPTIVE_UNITS
"""Of a table, each of as many rows but for the last ones."""
MOST_ENTRIES = 8
"""Of a bucket: a cache line."""
ENTRY = np.dtype([("row", np.uint32), ("utility", np.float32)])
RAW_ENTRY = np.dtype([("id", "<i8"), ("utility", "<f4")])
"""As it travels, where rows are of raw ids."""


@dataclass(frozen=True)
class CandidateTable:
    """What a sketch keeps of a table."""

    rows: int
    """Of the whole table."""
    bytes: int
    """Of all 64 units together; at least an entry for each, at most one for each row."""
    units: tuple[int, int] = (0, UNITS)
    """[first, last) of those that are here."""
    first_row: int = 0
    """The row of the whole table that id 0 here is."""
    mapped_rows: int | None = None
    """How many rows are here, where raw ids have them; None where rows are ids."""

    def __post_init__(self) -> None:
        first, last = self.units
        if not 0 <= first <= last <= UNITS:
            raise ConfigError(f"Units {first} to {last} of a table are not of its {UNITS}.")
        if not 0 < self.rows < 2**32:
            raise ConfigError(f"A sketch of a table of {self.rows} rows is not possible; use 1 to 2^32 - 1.")

    @property
    def unit_rows(self) -> int:
        """Rows of a unit."""
        return unit_rows(self.rows)

    @property
    def bucket_rows(self) -> int:
        """Rows that share a bucket."""
        wanted = max(1, self.bytes // (UNITS * self.bucket_entries * ENTRY.itemsize))
        return max(self.bucket_entries, -(-self.unit_rows // wanted))

    @property
    def bucket_entries(self) -> int:
        """Of each bucket: fewer where not even one of each unit could have them all."""
        return max(1, min(MOST_ENTRIES, self.unit_rows, self.bytes // (UNITS * ENTRY.itemsize)))

    @property
    def unit_bytes(self) -> int:
        """Of the buckets of a unit."""
        return self.buckets * self.bucket_entries * ENTRY.itemsize

    @property
    def raw_unit_bytes(self) -> int:
        """The same as it travels, where rows are of raw ids."""
        return self.buckets * self.bucket_entries * RAW_ENTRY.itemsize

    @property
    def num_rows(self) -> int:
        """Of the units that are here."""
        if self.mapped_rows is not None:
            return self.mapped_rows
        first, last = (min(unit * self.unit_rows, self.rows) for unit in self.units)
        return last - first

    @property
    def buckets(self) -> int:
        """Of each unit."""
        return -(-self.unit_rows // self.bucket_rows)

    @property
    def num_units(self) -> int:
        """Of those that are here."""
        return self.units[1] - self.units[0]

    def bucket_range(self, unit: int, bucket: int) -> tuple[int, int]:
        """[first, last) of the rows that share a bucket."""
        first = unit * self.unit_rows + bucket * self.bucket_rows
        return first, min(first + self.bucket_rows, (unit + 1) * self.unit_rows, self.rows)


class CandidateSketch:
    """Candidates of the tables of a pool, by its ids (`CandidateTable.first_row`); for one thread."""

    def __init__(
        self, tables: Sequence[CandidateTable], raw_ids: Sequence[Tensor | None] | None = None
    ) -> None:
        """`raw_ids` are those of each row, int64, of tables whose rows are mapped; they may change."""
        self._core = native.library()
        self.tables = tuple(tables)
        self._raw_ids = [None] * len(tables) if raw_ids is None else list(raw_ids)
        for table, ids in zip(self.tables, self._raw_ids, strict=True):
            if (table.mapped_rows is None) != (ids is None) or (
                ids is not None and (ids.dtype != torch.int64 or len(ids) < (table.mapped_rows or 0))
            ):
                raise ValueError("tables whose rows are mapped, and no others, have a raw id for each")
        self._state = [
            torch.zeros((table.num_units, table.unit_bytes), dtype=torch.uint8) for table in tables
        ]
        described = [
            [
                *(table.rows if table.mapped_rows is None else table.mapped_rows, table.unit_rows),
                *(table.buckets, table.bucket_rows, *table.units),
                *(table.first_row, table.bucket_entries),
            ]
            for table in tables
        ]
        self._fields = torch.tensor(
            [
                [*row, state.data_ptr(), 0 if ids is None else ids.data_ptr()]
                for row, state, ids in zip(described, self._state, self._raw_ids, strict=True)
            ],
            dtype=torch.int64,
        ).view(len(tables), 10)

    @property
    def native_tables(self) -> Tensor:
        """int64 [tables, 10] as csrc/chunks/sketch.h has them; valid as long as the sketch."""
        return self._fields

    def add(self, absent: Tensor, norms: Tensor, weight: float) -> None:
        """Adds norm * weight to rows (table, id), int64 [rows, 2], that have no record.

        Those that are here are added to first, then the others compete: the order of rows does not matter. A
        row that is given twice is added to in the order given. Numbers that are not finite count as 0.
        """
        check_tensor("absent", absent, [torch.int64], 2)
        check_tensor("norms", norms, [torch.float32], 1)
        if absent.shape[1] != 2 or len(absent) != len(norms):
            raise ValueError("absent is int64 [rows, 2] and norms float32 [rows]")
        absent, norms = absent.contiguous(), norms.contiguous()
        self._core.mg_sketch_add(
            *(self._fields.data_ptr(), len(self.tables), absent.data_ptr(), norms.data_ptr()),
            *(weight, len(absent)),
        )

    def remove(self, table: int, ids: Tensor) -> None:
        """Forgets rows, int64 [rows], that have a record by now."""
        check_tensor("ids", ids, [torch.int64], 1)
        ids = ids.contiguous()
        self._core.mg_sketch_remove(self._fields[table].data_ptr(), ids.data_ptr(), len(ids))

    def scale(self, factor: float, table: int | None = None) -> None:
        """Multiplies utilities of one table, or of all; those that become 0 are gone."""
        for fields in self._fields if table is None else [self._fields[table]]:
            self._core.mg_sketch_scale(fields.data_ptr(), factor)

    def entries(self, table: int) -> tuple[Tensor, Tensor]:
        """Ids int64, rising, and utilities float32 of a table's candidates; rows in any order where they are
        mapped."""
        found = self._entries(table)
        found = found[found["utility"] > 0]
        ids = torch.from_numpy(found["row"].astype(np.int64)) - self.tables[table].first_row
        return ids, torch.from_numpy(found["utility"].copy())

    def state(self, table: int) -> Tensor:
        """A copy of all that a table has, uint8 [units here, bytes of a unit]."""
        return self._state[table].clone()

    def units(self, table: int) -> Tensor:
        """The memory of a table's units, uint8 [units here, bytes of a unit]: who writes must know them."""
        return self._state[table]

    def load_state(self, table: int, state: Tensor, first_unit: int | None = None) -> None:
        """Takes over units from `first_unit` on (else the first here), as `state` gave them."""
        own, described = self._state[table], self.tables[table]
        first = 0 if first_unit is None else first_unit - described.units[0]
        check_tensor("state", state, [torch.uint8], 2)
        if state.shape[1] != own.shape[1] or not 0 <= first <= first + len(state) <= len(own):
            raise ConfigError(
                f"{len(state)} units of {state.shape[1]} bytes from unit {first + described.units[0]} on do "
                f"not fit into units {described.units[0]} to {described.units[1]} of {own.shape[1]} bytes; "
                "load a sketch of the same table and bytes."
            )
        check_units(described, described.units[0] + first, state)
        own[first : first + len(state)] = state

    def raw_state(self, table: int) -> Tensor:
        """The same by raw id, where rows are mapped: uint8 [units here, bytes of a unit as it travels]."""
        raw_ids, found = self._raw_ids[table], self._entries(table)
        assert raw_ids is not None
        entries = np.zeros(len(found), dtype=RAW_ENTRY)
        kept = found["utility"] > 0
        entries["id"][kept] = raw_ids.numpy()[found["row"][kept]]
        entries["utility"] = found["utility"]
        units = self.tables[table].num_units
        return torch.from_numpy(entries.view(np.uint8).reshape(units, self.tables[table].raw_unit_bytes))

    def replace(self, table: int, rows: Tensor, utilities: Tensor) -> None:
        """Forgets the candidates of a table, and takes these."""
        self._state[table].zero_()
        numbers = torch.full_like(rows, table)
        self.add(torch.stack([numbers, rows], dim=1), utilities, 1.0)

    def bytes(self) -> int:
        """What the sketch takes in memory."""
        return sum(state.numel() for state in self._state) + self._fields.numel() * 8

    def _entries(self, table: int) -> npt.NDArray[np.void]:
        return self._state[table].numpy().reshape(-1).view(ENTRY)


def raw_entries(state: Tensor) -> tuple[Tensor, Tensor]:
    """Raw ids int64 and utilities float32, of what `CandidateSketch.raw_state` gave."""
    entries = state.contiguous().numpy().reshape(-1).view(RAW_ENTRY)
    entries = entries[entries["utility"] > 0]
    return torch.from_numpy(entries["id"].copy()), torch.from_numpy(entries["utility"].copy())


def check_units(table: CandidateTable, first_unit: int, state: Tensor) -> None:
    """Refuses units whose entries are not of their bucket's rows, or not in order."""
    entries = state.contiguous().numpy().reshape(-1).view(ENTRY).reshape(-1, table.bucket_entries)
    numbers = np.arange(len(entries))
    units = first_unit + numbers // table.buckets
    first = units * table.unit_rows + numbers % table.buckets * table.bucket_rows
    last = np.minimum(np.minimum(first + table.bucket_rows, (units + 1) * table.unit_rows), table.rows)
    rows, utilities = entries["row"].astype(np.int64), entries["utility"]
    is_entry = utilities > 0
    fits = ~is_entry | (rows >= first[:, None]) & (rows < last[:, None]) & np.isfinite(utilities)
    empty = is_entry | (entries.view(np.uint64).reshape(-1, table.bucket_entries) == 0)
    follows = ~is_entry[:, 1:] | is_entry[:, :-1] & (rows[:, 1:] > rows[:, :-1])
    if not (fits.all() and empty.all() and follows.all()):
        raise ConfigError("The state of a sketch has an entry out of place; load one of the same table.")
