"""A model cut over a host's cards, with what it will cost: the record that a server reads."""

from __future__ import annotations

from dataclasses import asdict

from megalith.core.errors import ConfigError, PlanError
from megalith.core.units import format_bytes
from megalith.export.partition.partitioner import SMALL_BYTES, CardPartitioner, CardPlacement, slowest_card
from megalith.export.partition.prediction import HOST, RequestTimes, Setting
from megalith.export.partition.records import (
    CardRecord,
    Partition,
    PlacementComparison,
    ServingPrediction,
)
from megalith.export.partition.rules import RULES, lowest_cost
from megalith.export.partition.shortage import shortage


def partition(
    setting: Setting,
    *,
    cards: int | None = None,
    small_bytes: int = SMALL_BYTES,
) -> Partition:
    """The partition of a model over a host's cards, with what it is predicted to cost."""
    have = setting.machine.cards
    if cards is not None and not 1 <= cards <= have:
        raise ConfigError(f"--cards {cards}: {setting.machine.name} has {have} cards; name 1 to {have}.")
    maker = CardPartitioner(setting, small_bytes)
    placement = maker.choose(cards)
    if placement is None:
        raise PlanError(shortage(maker, cards or have))
    times = maker.times(placement)
    tables = setting.model.tables
    on_host = [table for table, card in zip(tables, placement.card_of, strict=True) if card == HOST]
    host_bytes = sum(table.bytes for table in on_host)
    if host_bytes > setting.machine.host.bytes // 2:
        raise PlanError(
            f"Tables of at most {format_bytes(small_bytes)} stay on the host and take "
            f"{format_bytes(host_bytes)}, more than half of its memory; put them on cards with "
            "--host-tables 0."
        )
    return Partition(
        model=setting.model.name,
        hardware=setting.machine.name,
        precision=setting.model.precision,
        rule=placement.rule,
        cards=tuple(_card_record(maker, times, placement, card) for card in range(placement.cards)),
        replicas=placement.replicas,
        idle_cards=setting.machine.cards - placement.cards * placement.replicas,
        host_tables=tuple(table.name for table in on_host),
        host_table_bytes=host_bytes,
        user_features=setting.model.user_features,
        prediction=_prediction(times, placement.replicas),
        comparison=_compare(maker, placement.cards),
        assumptions={name: float(value) for name, value in asdict(setting.assumed).items()},
    )


def _card_record(
    maker: CardPartitioner, times: RequestTimes, placement: CardPlacement, card: int
) -> CardRecord:
    held = [
        table
        for table, place in zip(maker.setting.model.tables, placement.card_of, strict=True)
        if place == card
    ]
    busy = times.busy(card)
    return CardRecord(
        tables=tuple(table.name for table in held),
        table_bytes=sum(table.bytes for table in held),
        dense_bytes=maker.dense_bytes,
        memory_bytes=maker.memory_bytes,
        lookups=times.work[card].lookups,
        sparse_seconds=times.sparse(card),
        busy_seconds=busy,
        requests_per_second=1 / max(busy.values()),
    )


def _prediction(times: RequestTimes, replicas: int) -> ServingPrediction:
    setting = times.setting
    rate, bound = times.rate(replicas)
    parts = times.latency()
    watts = setting.machine.watts
    return ServingPrediction(
        items=setting.items,
        latency_seconds=sum(parts.values()),
        latency_parts=parts,
        slowest_card_seconds=slowest_card(times),
        requests_per_second=rate,
        items_per_second=rate * setting.items,
        bound_by=bound,
        watts=watts,
        requests_per_second_per_watt=rate / watts if watts else 0.0,
    )


def _compare(maker: CardPartitioner, cards: int) -> PlacementComparison:
    """Every rule on as many cards, and what none can beat."""
    found = {}
    for name in RULES:
        card_of = maker.place(name, cards)
        if card_of is not None:
            found[name] = slowest_card(RequestTimes(maker.setting, card_of, cards))
    return PlacementComparison(slowest_card_seconds=found, lower_bound_seconds=lower_bound(maker, cards))


def lower_bound(maker: CardPartitioner, cards: int) -> float:
    """Seconds that come with any table on a card, and the least that the dearest card then has."""
    setting = maker.setting
    if not maker.placed:
        return 0.0
    costs = [setting.table_seconds(setting.model.tables[i], cards) for i in maker.placed]
    begin = setting.machine.link.latency_seconds + setting.assumed.transfer_seconds
    transfers = (1 if cards == 1 else 2) if setting.moving.one_transfer else 0
    return setting.assumed.launch_seconds + transfers * begin + lowest_cost(costs, cards)
