"""What a version changes: rows of tables by id, ids that lost theirs, whole tables, the dense part.

    content = DeltaContent(tables={"C1": RowChanges(ids, rows)}, dense={"top.0.weight": ...})
    write_content(path, content)
    read_content(path)
    newest([older, newer])            # both as one: of a row that both have, the newer one

Rows are encoded as the table of the snapshot is. Tables with rows of unequal length, and those whose form
had to change, come whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from megalith.core.errors import ServeError
from megalith.export.manifest import FrozenTableRecord
from megalith.export.stream.records import TableCounts
from megalith.export.tables import unused_id
from megalith.export.tensor_file import read_tensors, write_tensors
from megalith.ops.frozen.changed_rows import merge_changes

_TABLE, _DENSE = "table", "dense"
_NONE = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class RowChanges:
    """Rows of a table that have other content, or are new, and those that are gone."""

    ids: Tensor
    """int64, rising; of tables without listed ids they are row numbers."""
    rows: Tensor
    """uint8 [ids, row bytes]."""
    deleted: Tensor = _NONE
    """int64, rising; none of them in `ids`."""
    unknown: Tensor | None = None
    """uint8 [1, row bytes]: the row of ids without one, where a table has it and it changed."""

    def then(self, newer: RowChanges) -> RowChanges:
        """Both, one after the other."""
        ids, rows = merge_changes((self.ids, self.rows), (newer.ids, newer.rows))
        kept = ~torch.isin(ids, newer.deleted)
        gone = torch.cat([self.deleted, newer.deleted]).unique()
        gone = gone[~torch.isin(gone, newer.ids)]
        unknown = self.unknown if newer.unknown is None else newer.unknown
        return RowChanges(ids[kept], rows[kept], gone, unknown)


@dataclass(frozen=True, eq=False)
class WholeTable:
    """A table in place of the one before."""

    record: FrozenTableRecord
    tensors: Mapping[str, Tensor]
    """`rows`, and where the table has them `starts` and `ids`."""


TableChange = RowChanges | WholeTable


@dataclass(frozen=True, eq=False)
class DeltaContent:
    """All that a version changes."""

    tables: Mapping[str, TableChange]
    dense: Mapping[str, Tensor] = field(default_factory=dict)
    """All weights of the program as they are stored; empty where none changed."""

    def counts(self) -> tuple[TableCounts, ...]:
        """As a record has it."""
        return tuple(
            TableCounts(name=name, kind="whole", rows=change.record.rows)
            if isinstance(change, WholeTable)
            else TableCounts(
                name=name,
                kind="rows",
                rows=len(change.ids) + (change.unknown is not None),
                deleted=len(change.deleted),
            )
            for name, change in self.tables.items()
        )


def newest(contents: Sequence[DeltaContent]) -> DeltaContent:
    """Several versions, older ones first, as one: of each row, each whole table and the dense part the
    newest."""
    tables: dict[str, TableChange] = {}
    dense: Mapping[str, Tensor] = {}
    for content in contents:
        for name, change in content.tables.items():
            before = tables.get(name)
            if before is None or isinstance(change, WholeTable):
                tables[name] = change
            elif isinstance(before, WholeTable):
                tables[name] = changed_table(before.record, before.tensors, change, "the stream")
            else:
                tables[name] = before.then(change)
        dense = content.dense or dense
    return DeltaContent(tables, dense)


def write_content(path: Path, content: DeltaContent) -> None:
    """The file of a delta."""
    tensors: dict[str, Tensor] = {}
    for name, change in content.tables.items():
        if isinstance(change, WholeTable):
            text = change.record.model_dump_json().encode()
            tensors[f"{_TABLE}/{name}/record"] = torch.tensor(list(text), dtype=torch.uint8)
            tensors |= {f"{_TABLE}/{name}/whole/{key}": tensor for key, tensor in change.tensors.items()}
            continue
        tensors[f"{_TABLE}/{name}/ids"] = change.ids
        tensors[f"{_TABLE}/{name}/changed"] = change.rows
        if len(change.deleted):
            tensors[f"{_TABLE}/{name}/deleted"] = change.deleted
        if change.unknown is not None:
            tensors[f"{_TABLE}/{name}/unknown"] = change.unknown
    tensors |= {f"{_DENSE}/{name}": weight for name, weight in content.dense.items()}
    write_tensors(path, tensors)


def read_content(path: Path) -> DeltaContent:
    """The content of a file whose checksum was compared; its tensors are mapped."""
    by_table: dict[str, dict[str, Tensor]] = {}
    dense: dict[str, Tensor] = {}
    for name, tensor in read_tensors(path).items():
        kind, _, rest = name.partition("/")
        if kind == _DENSE:
            dense[rest] = tensor
            continue
        table, part = _split(rest)
        by_table.setdefault(table, {})[part] = tensor
    tables: dict[str, TableChange] = {}
    for name, parts in by_table.items():
        if "record" in parts:
            record = FrozenTableRecord.model_validate_json(bytes(parts.pop("record").tolist()))
            whole = {key.removeprefix("whole/"): tensor for key, tensor in parts.items()}
            tables[name] = WholeTable(record, whole)
        else:
            deleted = parts.get("deleted", _NONE)
            tables[name] = RowChanges(parts["ids"], parts["changed"], deleted, parts.get("unknown"))
    return DeltaContent(tables, dense)


def _split(name: str) -> tuple[str, str]:
    """Table and part of a tensor; names of tables may have slashes, parts are few."""
    for part in ("record", "whole/rows", "whole/starts", "whole/ids", "ids", "changed", "deleted", "unknown"):
        if name.endswith(f"/{part}"):
            return name.removesuffix(f"/{part}"), part
    raise ServeError(f"A delta has a tensor '{name}' that this package does not know; use a newer release.")


def changed_table(
    record: FrozenTableRecord, tensors: Mapping[str, Tensor], change: RowChanges, where: str
) -> WholeTable:
    """A table with its changes; `where` names what they came from."""
    numbers, rows = row_numbers(record, tensors, change, where)
    if numbers is not None:
        held = tensors["rows"].clone()
        held[numbers] = rows
        return WholeTable(record, {**tensors, "rows": held})
    ids, held = tensors["ids"], tensors["rows"]
    keep = torch.ones(len(ids), dtype=torch.bool)
    unknown = change.unknown
    if record.unknown is not None:
        # It stands under an id that nothing has, which may be another one from now on.
        unknown = held[record.unknown : record.unknown + 1] if unknown is None else unknown
        keep[record.unknown] = False
    keep &= ~torch.isin(ids, change.deleted)
    new_ids, new_rows = merge_changes((ids[keep], held[keep]), (change.ids, change.rows))
    place: int | None = None
    if unknown is not None:
        unused = unused_id(new_ids, record.padding_index)
        new_ids, new_rows = merge_changes((new_ids, new_rows), (torch.tensor([unused]), unknown))
        place = int(torch.searchsorted(new_ids, unused))
    size = new_rows.numel() + 8 * len(new_ids)
    fields = {"rows": len(new_ids), "unknown": place, "bytes": size}
    return WholeTable(record.model_copy(update=fields), {"rows": new_rows, "ids": new_ids})


def row_numbers(
    record: FrozenTableRecord, tensors: Mapping[str, Tensor], change: RowChanges, where: str
) -> tuple[Tensor | None, Tensor]:
    """The numbers of changed rows, rising, and their content; None where rows come or go."""
    if record.chunk is not None or change.rows.shape[1:] != tensors["rows"].shape[1:]:
        raise ServeError(
            f"{where} has rows of another form for table '{record.name}'; start again from a snapshot."
        )
    if record.ids == "rows":
        inside = not len(change.ids) or 0 <= int(change.ids[0]) <= int(change.ids[-1]) < record.rows
        if not inside or len(change.deleted) or change.unknown is not None:
            raise ServeError(
                f"{where} changes rows that table '{record.name}' does not have; start again from a snapshot."
            )
        return change.ids, change.rows
    ids = tensors["ids"]
    if record.unknown is not None:
        # The id under which the row of unknown ids stands is nobody's.
        ids = torch.cat([ids[: record.unknown], ids[record.unknown + 1 :]])
    places = torch.searchsorted(ids, change.ids)
    known = places < len(ids)
    known[known.clone()] = ids[places[known]] == change.ids[known]
    if not bool(known.all()) or bool(torch.isin(change.deleted, ids).any()):
        return None, change.rows
    if record.unknown is None:
        return (places, change.rows) if change.unknown is None else (None, change.rows)
    places = places + (places >= record.unknown)
    if change.unknown is None:
        return places, change.rows
    return merge_changes((places, change.rows), (torch.tensor([record.unknown]), change.unknown))
