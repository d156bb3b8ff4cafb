"""A state dictionary as the leaves of a checkpoint: tensors, tables, and plain values, by path.

{"step": 7, "learner": {"dense": {"weight": Tensor}, "tables": {"t0": TableState}}}
step, learner/dense/weight, learner/tables/t0
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from megalith.embeddings.stores.row_files import Holds
from megalith.embeddings.table_state import TableState


class StateMismatch(Exception):  # noqa: N818  (never seen by a user)
    """The checkpoint is whole but not of the state that is to be filled; says where they differ."""


class OptionalValues(dict[str, Any]):
    """Values that a checkpoint may lack, all of them together; they stay as they are then."""


class Leaves(NamedTuple):
    """What a state dictionary holds, by path."""

    values: dict[str, Any]
    tensors: dict[str, Tensor]
    tables: dict[str, TableState]


def leaves_of(state: dict[str, Any]) -> Leaves:
    """The leaves of a nested dictionary. Values are numbers, texts, booleans and None."""
    leaves = Leaves({}, {}, {})
    _collect("", state, leaves)
    return leaves


def _collect(prefix: str, node: dict[str, Any], leaves: Leaves) -> None:
    for key, value in node.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            _collect(f"{path}/", value, leaves)
        elif isinstance(value, TableState):
            leaves.tables[path] = value
        elif isinstance(value, Tensor):
            leaves.tensors[path] = value
        elif value is None or isinstance(value, (bool, int, float, str)):
            leaves.values[path] = value
        else:
            raise TypeError(f"'{path}' is a {type(value).__name__}, which a checkpoint cannot hold")


def put_values(state: dict[str, Any], values: dict[str, Any], prefix: str = "") -> None:
    """Lays stored values over those of a state; a missing one, or one of another type, is refused."""
    for key, value in state.items():
        path = f"{prefix}{key}"
        if isinstance(value, OptionalValues) and not any(f"{path}/{name}" in values for name in value):
            continue
        if isinstance(value, dict):
            put_values(value, values, f"{path}/")
        elif not isinstance(value, (Tensor, TableState)):
            if path not in values:
                raise StateMismatch(f"it has no value '{path}'")
            stored = values[path]
            if not _fits(value, stored):
                raise StateMismatch(f"'{path}' is {stored!r}")
            state[key] = stored


def _fits(ours: Any, stored: Any) -> bool:
    """Whether a stored value is of the type of ours; what is None now may have been a number."""
    if ours is None:
        return stored is None or (isinstance(stored, (int, float)) and not isinstance(stored, bool))
    if isinstance(ours, bool) or isinstance(stored, bool):
        return isinstance(ours, bool) and isinstance(stored, bool)
    return isinstance(stored, (int, float) if isinstance(ours, float) else type(ours))


def snapshot(state: Any, holds: Holds, copy: bool) -> Any:
    """The state as it is now; of sharded tables only what this rank writes. Files are put on disk and held.
    With `copy` it stays as it is while training goes on."""
    if isinstance(state, dict):
        return {key: snapshot(value, holds, copy) for key, value in state.items()}
    if isinstance(state, TableState):
        return state.snapshot(holds, copy)
    return state.detach().clone() if copy and isinstance(state, torch.Tensor) else state
