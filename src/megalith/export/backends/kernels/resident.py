"""Rows of tables in memory of our own, on huge pages, once for all instances of a model that look them up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary, WeakValueDictionary

from torch import Tensor

from megalith.export.backends.base import ModelSource
from megalith.ops.frozen.memory import resident


class ResidentTable:
    """A table's tensors; what they take is freed with the last part that holds this."""

    def __init__(self, tensors: Mapping[str, Tensor], between: Callable[[], None] = lambda: None) -> None:
        self.tensors = {
            name: resident(tensor, between) if name in ("rows", "starts") and tensor.numel() else tensor
            for name, tensor in tensors.items()
        }


_held: WeakKeyDictionary[ModelSource, WeakValueDictionary[str, ResidentTable]] = WeakKeyDictionary()
_lock = threading.Lock()


def resident_table(model: ModelSource, name: str) -> ResidentTable:
    """The table in memory: the copy that another instance of the same model has, or a new one."""
    with _lock:
        tables = _held.setdefault(model, WeakValueDictionary())
        found = tables.get(name)
        if found is None:
            found = tables[name] = ResidentTable(model.table(name))
        return found
