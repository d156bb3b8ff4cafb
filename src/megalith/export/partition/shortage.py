"""The sentence for a model that does not fit, and the smallest changes that would make it fit."""

from __future__ import annotations

from dataclasses import replace

from megalith.core.units import format_bytes
from megalith.cost.serving.seconds import encoded_row_bytes
from megalith.export.partition.partitioner import CardPartitioner
from megalith.export.partition.served.model import ServedModel

_MORE_CARDS = 64
"""How many times the cards of a host are tried before no number of them is named."""


def shortage(maker: CardPartitioner, cards: int) -> str:
    """The refusal: what does not fit, and the smallest changes that would make it fit."""
    model, machine = maker.setting.model, maker.setting.machine
    room, card = maker.table_room, machine.card
    if room <= 0:
        return (
            f"The dense part of {model.name} takes {format_bytes(maker.dense_bytes)} of a card and "
            f"{card.name} has {format_bytes(maker.memory_bytes)}; take smaller layers or another card."
        )
    largest = max(model.tables, key=lambda table: table.bytes)
    said = (
        f"The tables of {model.name} ({format_bytes(model.table_bytes)} in {model.precision}, the "
        f"largest '{largest.name}' of {format_bytes(largest.bytes)}) do not fit on {cards} {card.name} with "
        f"{format_bytes(room)} for tables each"
    )
    would = []
    enough = maker.fewest(_MORE_CARDS * machine.cards)
    if enough is not None:
        would.append(f"{enough} such cards")
    memory = _enough_memory(maker, cards)
    if memory is not None:
        would.append(f"cards of {format_bytes(memory)}")
    narrow = with_precision(model, "int4")
    if narrow.table_bytes < model.table_bytes:
        smaller = CardPartitioner(replace(maker.setting, model=narrow), maker.small_bytes)
        if smaller.fits(cards):
            would.append(f"--tables int4 ({format_bytes(narrow.table_bytes)})")
    return f"{said}; {' or '.join(would) or 'a smaller model'} would do."


def _enough_memory(maker: CardPartitioner, cards: int) -> int | None:
    """The smallest power of two times the card's memory that suffices."""
    machine = maker.setting.machine
    first, *slower = machine.card.memory
    for factor in (2, 4, 8, 16, 32, 64):
        larger = replace(machine.card, memory=(replace(first, bytes=factor * first.bytes), *slower))
        setting = replace(maker.setting, machine=replace(machine, card=larger))
        if CardPartitioner(setting, maker.small_bytes).fits(cards):
            return factor * first.bytes
    return None


def with_precision(model: ServedModel, precision: str) -> ServedModel:
    """The same tables in another precision; those of unequal rows shrink by as much as whole rows would."""
    tables = []
    for table in model.tables:
        row = encoded_row_bytes(precision, table.dim)
        factor = row / encoded_row_bytes(model.precision, table.dim) if model.precision != "mixed" else 1.0
        tables.append(replace(table, row_bytes=table.row_bytes * factor, bytes=int(table.bytes * factor)))
    return replace(model, tables=tuple(tables), precision=precision)
