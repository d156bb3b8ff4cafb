"""Seconds of a request over a host and its cards, and how many requests a second that makes.

A request goes: the host takes it apart; every card gets its ids, looks rows up and pools them; the pooled
vectors meet on one card, whose copy of the dense part scores; scores go back. Cards take turns with the dense
part, so of `n` cards each runs it for one request in `n`. Dense inputs arrive behind the ids while rows are
looked up.

Latency is that of a request alone. The rate is where the first part of a card, its link, the uplink or the
host is busy all the time: lookups wait for memory, products compute, so the sparse part of the next request
fits beside the dense part of this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from megalith.cost.serving.assumptions import ServingAssumptions
from megalith.cost.serving.card_host import CardHost
from megalith.cost.serving.seconds import (
    HostSeconds,
    ProductSeconds,
    host_seconds,
    lookup_seconds,
    product_seconds,
    row_line_bytes,
    transfer_seconds,
)
from megalith.export.partition.request_bytes import (
    MovingLess,
    dense_input_bytes,
    score_bytes,
    table_bytes,
)
from megalith.export.partition.served.model import ServedModel, ServedTable

HOST = -1
"""The place of a table that stays on the host."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What does not change while tables move: model, machine, request and assumptions."""

    model: ServedModel
    machine: CardHost
    items: int = 270
    moving: MovingLess = field(default_factory=MovingLess)
    assumed: ServingAssumptions = field(default_factory=ServingAssumptions)

    def line_bytes(self, table: ServedTable) -> float:
        """Bytes of lines that a request's lookups in a table touch: the cost of the rule."""
        lookups = table.lookups(self.items, self.moving.user_once)
        return lookups * row_line_bytes(table.row_bytes, self.assumed.line_bytes)

    def table_seconds(self, table: ServedTable, cards: int) -> float:
        """What a table adds to the seconds of its card."""
        moved = table_bytes(table, self.items, self.moving)
        link, assumed = self.machine.link, self.assumed
        begins = 0 if self.moving.one_transfer else 1
        seconds = lookup_seconds(self.machine.card, assumed, self.line_bytes(table), moved.vectors)
        seconds += transfer_seconds(link, assumed, moved.ids, begins)
        return seconds + (transfer_seconds(link, assumed, moved.vectors, begins) if cards > 1 else 0.0)


@dataclass(slots=True)
class CardWork:
    """What one card does for a request, besides the dense part."""

    tables: int = 0
    lookups: float = 0.0
    lines: float = 0.0
    ids: float = 0.0
    vectors: float = 0.0

    def add(self, setting: Setting, table: ServedTable) -> None:
        """Adds a table."""
        moved = table_bytes(table, setting.items, setting.moving)
        self.tables += 1
        self.lookups += table.lookups(setting.items, setting.moving.user_once)
        self.lines += setting.line_bytes(table)
        self.ids += moved.ids
        self.vectors += moved.vectors

    def transfers(self, moving: MovingLess) -> int:
        """Each way; a card without tables has none."""
        return min(self.tables, 1) if moving.one_transfer else self.tables


class RequestTimes:
    """A request on `cards` cards, with table i on `card_of[i]`."""

    def __init__(self, setting: Setting, card_of: Sequence[int], cards: int) -> None:
        self.setting, self.cards = setting, cards
        self.work = [CardWork() for _ in range(cards)]
        self.on_host = CardWork()
        for table, card in zip(setting.model.tables, card_of, strict=True):
            (self.on_host if card == HOST else self.work[card]).add(setting, table)
        self.dense_bytes = dense_input_bytes(setting.model, setting.items, setting.moving)
        self.dense_bytes += self.on_host.vectors
        self.scores_out = self._over_link(score_bytes(setting.model, setting.items, setting.moving), 1)
        self.dense = self._dense()
        self.host = self._host()

    def _over_link(self, moved_bytes: float, transfers: float) -> float:
        return transfer_seconds(self.setting.machine.link, self.setting.assumed, moved_bytes, transfers)

    def _dense(self) -> ProductSeconds:
        setting, dense = self.setting, self.setting.model.dense
        operations = {name: count * setting.items for name, count in dense.operations.items()}
        return product_seconds(setting.machine.card, setting.assumed, operations, dense.weight_bytes)

    def _host(self) -> HostSeconds:
        setting = self.setting
        copied = sum(work.ids for work in self.work) + self.dense_bytes
        transfers = sum(work.transfers(setting.moving) for work in self.work) + self._dense_transfers()
        return host_seconds(
            setting.machine.host, setting.assumed, copied, self.on_host.lines, max(transfers, 1)
        )

    def _dense_transfers(self) -> int:
        """Beside those of ids: none where dense inputs come in the transfer that brings ids."""
        return 0 if self.setting.moving.one_transfer else 1 + self.on_host.tables

    def ids_in(self, card: int) -> float:
        """Until a card has its ids: its own link, or the uplink, which brings those of all cards."""
        work, assumed = self.work[card], self.setting.assumed
        if not work.tables:
            return 0.0
        alone = self._over_link(work.ids, work.transfers(self.setting.moving))
        total = sum(each.ids for each in self.work)
        return max(alone, transfer_seconds(self.setting.machine.uplink, assumed, total))

    def lookups(self, card: int) -> float:
        """Lookups and pooling, with the start of the partition."""
        work, assumed = self.work[card], self.setting.assumed
        start = assumed.launch_seconds if work.tables else 0.0
        return start + lookup_seconds(self.setting.machine.card, assumed, work.lines, work.vectors)

    def vectors_out(self, card: int) -> float:
        """Pooled vectors to the card that runs the dense part, if that is another."""
        work = self.work[card]
        if self.cards == 1 or not work.tables:
            return 0.0
        once = self._over_link(work.vectors, work.transfers(self.setting.moving))
        return once if self.setting.moving.card_to_card else 2 * once

    def sparse(self, card: int) -> float:
        """Ids in, lookups, vectors out."""
        return self.ids_in(card) + self.lookups(card) + self.vectors_out(card)

    def gather(self, card: int) -> float:
        """The vectors of all other cards into this one, where they arrive one after the other."""
        others = [work for other, work in enumerate(self.work) if other != card and work.tables]
        if not others:
            return 0.0
        transfers = sum(work.transfers(self.setting.moving) for work in others)
        return self._over_link(sum(work.vectors for work in others), transfers)

    def dense_in(self, card: int) -> float:
        """Dense inputs and the vectors of tables on the host."""
        begins = self._dense_transfers() or (0 if self.work[card].tables else 1)
        return self._over_link(self.dense_bytes, begins)

    def latency(self) -> dict[str, float]:
        """Seconds of a request alone, by what it waits for, with the dense part on the worst card."""
        ready = [self.ids_in(card) + self.lookups(card) for card in range(self.cards)]
        last = max(range(self.cards), key=lambda card: ready[card])
        up = 0.0
        if not self.setting.moving.card_to_card and self.cards > 1:
            up = max(self.vectors_out(card) / 2 for card in range(self.cards))
        gathered = [ready[last] + up + self.gather(card) for card in range(self.cards)]
        arrived = [self.ids_in(card) + self.dense_in(card) for card in range(self.cards)]
        begins = max(max(both) for both in zip(gathered, arrived, strict=True))
        waited = {"ids to cards": self.ids_in(last), "lookups": self.lookups(last)}
        vectors = max(gathered) - ready[last]
        return {
            "host": self.host.core,
            **waited,
            "vectors between cards": vectors,
            "dense inputs": begins - max(gathered),
            "dense part": self.setting.assumed.launch_seconds + self.dense.longer,
            "scores": self.scores_out,
        }

    def busy(self, card: int) -> dict[str, float]:
        """Seconds of a request by part of a card, the dense part shared out over all."""
        work, moving, share = self.work[card], self.setting.moving, 1 / self.cards
        ids = self._over_link(work.ids, work.transfers(moving))
        return {
            "memory": self.lookups(card) + share * self.dense.memory,
            "compute": share * (self.setting.assumed.launch_seconds + self.dense.compute),
            "link_in": ids + share * (self.dense_in(card) + self.gather(card)),
            "link_out": (1 - share) * self.vectors_out(card) / (1 if moving.card_to_card else 2)
            + share * self.scores_out,
        }

    def shared_busy(self) -> dict[str, float]:
        """Seconds of a request of what all cards share."""
        machine, assumed = self.setting.machine, self.setting.assumed
        down = sum(work.ids for work in self.work) + self.dense_bytes
        if not self.setting.moving.card_to_card:
            down += (1 - 1 / self.cards) * sum(work.vectors for work in self.work)
        return {
            "host cores": self.host.core / max(machine.host.cores, 1),
            "host memory": self.host.memory,
            "uplink": transfer_seconds(machine.uplink, assumed, down, 0),
        }

    def _exclusive(self, card: int) -> dict[str, float]:
        """Parts of a card that work side by side; without overlap lookups and products take turns."""
        busy = self.busy(card)
        if not self.setting.moving.overlap:
            busy["memory"] += busy.pop("compute")
        return busy

    def rate(self, replicas: int) -> tuple[float, str]:
        """Requests a second of so many replicas, and what bounds them."""
        limits = {name: 1 / seconds for name, seconds in self.shared_busy().items() if seconds > 0}
        parts = [part for card in range(self.cards) for part in self._exclusive(card).items()]
        slowest, seconds = max(parts, key=lambda part: part[1])
        limits[f"card {slowest.replace('_', ' ')}"] = replicas / seconds
        bound = min(limits, key=lambda each: limits[each])
        return limits[bound], bound
