"""Copies of a collection, in memory and by pickle: made with the same arguments, then given the state."""

from __future__ import annotations

from copy import copy, deepcopy
from typing import TYPE_CHECKING, Any

from megalith.core.errors import ConfigError
from megalith.embeddings.stores.adaptive.budget import AdaptiveBudget
from megalith.embeddings.stores.choose import is_behind_cache
from megalith.embeddings.stores.dynamic.settings import inner_spec

if TYPE_CHECKING:
    from megalith.embeddings.collection import EmbeddingCollection

_SETTINGS = ("training", "lr_factor", "event_time", "accumulate", "loss_scale", "num_skipped_steps")


def copy_of(collection: EmbeddingCollection, memo: dict[int, Any]) -> EmbeddingCollection:
    """An equal collection with rows of its own, for `copy.deepcopy`."""
    _refuse(collection)
    made = rebuilt(
        type(collection), collection.arguments, collection.get_extra_state(), _settings(collection)
    )
    memo[id(collection)] = made
    memo[id(collection.anchor)] = made.anchor
    for name, value in vars(collection).items():
        if name.endswith(("_hooks", "_hooks_with_kwargs")):
            setattr(made, name, copy(value))
        elif name not in vars(made):
            setattr(made, name, deepcopy(value, memo))
    made.note_copied()
    return made


def reduced(collection: EmbeddingCollection) -> tuple[Any, ...]:
    """What pickle writes of a collection, as `__reduce__` gives it."""
    _refuse(collection)
    parts = type(collection), collection.arguments, collection.get_extra_state(), _settings(collection)
    return rebuilt, parts


def rebuilt(
    kind: type[EmbeddingCollection],
    arguments: dict[str, Any],
    state: dict[str, Any],
    settings: dict[str, Any],
) -> EmbeddingCollection:
    """A collection from what `reduced` gave."""
    from megalith.embeddings.collection import EmbeddingCollection

    made = kind.__new__(kind)
    # A subclass may have arguments of its own; its other attributes are copied.
    EmbeddingCollection.__init__(made, **arguments)
    made.set_extra_state(state)
    settings = dict(settings)
    made.anchor.requires_grad_(settings.pop("trains"))
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def _settings(collection: EmbeddingCollection) -> dict[str, Any]:
    settings = {name: getattr(collection, name) for name in _SETTINGS}
    return settings | {"trains": not collection.is_frozen}


def _refuse(collection: EmbeddingCollection) -> None:
    for table in collection.tables:
        if is_behind_cache(inner_spec(table)):
            raise ConfigError(
                f"Table '{table.name}' keeps its rows in a folder that one collection owns; make another "
                "with a memory.path of its own, and give it this one's state_dict()."
            )
    if isinstance(collection.arguments.get("adaptive"), AdaptiveBudget):
        raise ConfigError(
            "The adaptive tables of this collection share their budget with others; copy the whole of them "
            "by a checkpoint."
        )
    if collection.has_gradients:
        raise ConfigError(
            "Gradients of this collection wait for a step; call its step() or zero_grad() before you copy it."
        )
