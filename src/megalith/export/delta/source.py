"""`DeltaModel`: a delta over a version in memory, as backends read a model.

Rows of the base stay where they are; those that changed lie beside them, with an index that says which. A
delta over a delta has the changes of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from megalith.core.errors import ServeError
from megalith.export.backends.base import ModelSource
from megalith.export.backends.kernels.resident import ResidentTable
from megalith.export.delta.folder import FrozenDelta, content_checksum
from megalith.export.manifest import ModelManifest
from megalith.ops.frozen.changed_rows import change_index, changed_numbers, merge_changes
from megalith.ops.frozen.memory import resident


class DeltaModel:
    """The version that a delta makes of its base; it holds the rows of the base, not the base itself."""

    def __init__(
        self, base: ModelSource, delta: FrozenDelta, between: Callable[[], None] = lambda: None
    ) -> None:
        """`between` is called between the pieces of what is read."""
        if content_checksum(base.manifest) != delta.delta.base:
            raise ServeError(f"{delta.folder} is a delta over another version; serve that first.")
        self.manifest: ModelManifest = delta.manifest
        weights, checks = delta.weights(), delta.checks()
        self._weights = dict(base.weights()) if weights is None else weights
        self._checks = dict(base.checks()) if checks is None else checks
        self._tables = {
            record.name: _table(base, delta, record.name, between) for record in delta.manifest.tables
        }
        self.changed_bytes = sum(
            table[key].numel() * table[key].element_size()
            for table in self._tables.values()
            for key in ("changed", "changed_rows")
            if key in table
        )
        """Of changed rows and their index."""

    def table(self, name: str) -> Mapping[str, Tensor]:
        """Tensors of the base, with `changed` and `changed_rows` where rows changed."""
        return self._tables[name]

    def weights(self) -> Mapping[str, Tensor]:
        """Tensors of the program."""
        return self._weights

    def checks(self) -> Mapping[str, Tensor]:
        """Samples and their outputs."""
        return self._checks


def _table(
    base: ModelSource, delta: FrozenDelta, name: str, between: Callable[[], None]
) -> Mapping[str, Tensor]:
    change = delta.change(name)
    if change is None:
        return base.table(name)
    tensors = delta.tensors(name)
    if change.kind == "whole":
        return ResidentTable(tensors, between).tensors
    held = base.table(name)
    numbers, rows = tensors["changed"], tensors["rows"]
    if "changed" in held:
        numbers, rows = merge_changes(
            (changed_numbers(held["changed"]), held["changed_rows"]), (numbers, rows)
        )
        between()
    num_rows = len(held["rows"])
    ordered = len(numbers) < 2 or bool((numbers[1:] > numbers[:-1]).all())
    if not ordered or (len(numbers) and not 0 <= int(numbers[0]) <= int(numbers[-1]) < num_rows):
        raise ServeError(f"{delta.folder} changes rows that table '{name}' does not have; make it again.")
    if rows.shape != (len(numbers), *held["rows"].shape[1:]):
        raise ServeError(f"{delta.folder} has rows of another size for table '{name}'; make it again.")
    index = change_index(numbers, num_rows)
    between()
    return {**held, "changed": index, "changed_rows": resident(rows, between)}
