"""How a version lies on cards: whole on each, or its tables cut over several, by the rule of the exporter.

A model that fits a card is a replica on every one. One that does not is cut over the fewest cards that hold
its tables; the dense part is on all of them, and small tables stay in the host's memory, where whichever card
runs the dense part reads them.
"""

from __future__ import annotations

from pathlib import Path

from megalith.core.errors import PlanError
from megalith.core.units import format_bytes
from megalith.export.manifest import ModelManifest
from megalith.export.partition.partitioner import SMALL_BYTES
from megalith.export.partition.request_bytes import MovingLess, table_bytes
from megalith.export.partition.rules import Item, big_then_costly, moved_cost
from megalith.export.partition.served.from_manifest import served_manifest
from megalith.export.partition.served.model import ServedModel
from megalith.serve.runtime.cards.served_part import VersionParts
from megalith.serve.settings import EngineSettings

_ITEMS = 270
"""Samples of the request that costs are counted for: the mean of MLPerf's queries."""


def place_version(manifest: ModelManifest, weights: Path, settings: EngineSettings) -> VersionParts:
    """The parts of a version; PlanError where cards cannot hold its tables. `weights` is its dense file."""
    whole = VersionParts(threads=settings.card_threads, backend=manifest.backend, pooled=settings.pooled)
    model = served_manifest(manifest, weights)
    memory = settings.card_memory
    needed = model.table_bytes + model.dense.weight_bytes
    if settings.partitions is None and (memory is None or needed <= memory):
        return whole
    if settings.partitions == 1 or not manifest.tables:
        return whole
    on_cards, host = _small_apart(model)
    room = needed if memory is None else memory - model.dense.weight_bytes
    items = [_item(model, position) for position in on_cards]
    most = max(1, settings.cards)
    for count in [settings.partitions] if settings.partitions else range(1, most + 1):
        chosen = big_then_costly(items, count, room, moved_cost) if count <= most else None
        if chosen is not None:
            partitions: list[list[str]] = [[] for _ in range(count)]
            for position, card in zip(on_cards, chosen, strict=True):
                partitions[card].append(model.tables[position].name)
            return VersionParts(
                partitions=tuple(tuple(tables) for tables in partitions if tables),
                host=tuple(model.tables[position].name for position in host),
                pooled=whole.pooled,
                threads=whole.threads,
                backend=whole.backend,
            )
    raise PlanError(
        f"Model '{manifest.name}' takes {format_bytes(model.table_bytes)} of tables and "
        f"{format_bytes(model.dense.weight_bytes)} of dense part, more than {most} cards of "
        f"{format_bytes(memory or 0)} hold; use more cards, larger ones, or tables in fewer bits."
    )


def _small_apart(model: ServedModel) -> tuple[list[int], list[int]]:
    """Tables that go to cards, and those that stay on the host; never all of them."""
    host = []
    for position, table in enumerate(model.tables):
        moved = table_bytes(table, _ITEMS, MovingLess())
        if table.bytes <= SMALL_BYTES and moved.vectors <= moved.ids:
            host.append(position)
    if len(host) == len(model.tables):
        host = []
    return [position for position in range(len(model.tables)) if position not in host], host


def _item(model: ServedModel, position: int) -> Item:
    table = model.tables[position]
    moved = table_bytes(table, _ITEMS, MovingLess())
    return Item(table.bytes, table.lookups(_ITEMS) * table.row_bytes, moved.ids + moved.vectors)
