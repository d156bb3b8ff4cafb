"""What a better card, or more of them, would bring: partition and predict again with one thing doubled.

This is the first platform's guidance for hardware to come, computed for a given model. Every change is judged
at its best number of cards a replica, for rate and for latency apart, so that room for fewer or more cards
counts. Power is left as it is, but for more cards: what a faster part would draw is not known, so a gain of
rate per watt is an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from megalith.cost.serving.card_host import CardHost
from megalith.export.partition.partitioner import CardPartitioner
from megalith.export.partition.prediction import Setting
from megalith.hardware.cluster import Link

Change = Callable[[CardHost], CardHost]


def _memory(machine: CardHost, bytes_factor: float = 1, rate_factor: float = 1) -> CardHost:
    first, *slower = machine.card.memory
    better = replace(
        first,
        bytes=int(first.bytes * bytes_factor),
        bytes_per_second=first.bytes_per_second * rate_factor,
    )
    return replace(machine, card=replace(machine.card, memory=(better, *slower)))


def _faster(link: Link) -> Link:
    return replace(link, bytes_per_second=2 * link.bytes_per_second)


def _operations(machine: CardHost) -> CardHost:
    flops = {name: 2 * rate for name, rate in machine.card.flops.items()}
    return replace(machine, card=replace(machine.card, flops=flops))


def _host(machine: CardHost) -> CardHost:
    host = machine.host
    first, *slower = host.memory
    faster = replace(first, bytes_per_second=2 * first.bytes_per_second)
    core = 2 * host.core_bytes_per_second
    return replace(
        machine,
        host=replace(host, memory=(faster, *slower), cores=2 * host.cores, core_bytes_per_second=core),
    )


CHANGES: dict[str, Change] = {
    "card memory": lambda machine: _memory(machine, bytes_factor=2),
    "memory bandwidth": lambda machine: _memory(machine, rate_factor=2),
    "link": lambda machine: replace(machine, link=_faster(machine.link), uplink=_faster(machine.uplink)),
    "TOPS": _operations,
    "cards": lambda machine: replace(machine, cards=2 * machine.cards),
    "host": _host,
}
"""Each doubles one thing; `link` is PCIe as a whole, that of a card and that of the host to the switch;
`host` its cores and its memory bandwidth."""


@dataclass(frozen=True, slots=True)
class BestOf:
    """What a machine can do with a model at the best number of cards a replica for each."""

    requests_per_second: float
    bound_by: str
    latency_seconds: float
    requests_per_second_per_watt: float


@dataclass(frozen=True, slots=True)
class Gain:
    """One change against the machine as it is; 1.0 is no gain, 2.0 twice as good."""

    change: str
    rate: float
    latency: float
    """Seconds before by seconds after."""
    rate_per_watt: float
    bound_by: str
    """What bounds the rate after the change."""


@dataclass(frozen=True, slots=True)
class Guidance:
    """A model on a machine as it is, and what each change would bring, the best for the rate first."""

    model: str
    hardware: str
    fits: bool
    """False where the tables do not fit as it is; then gains are empty and `made_to_fit` says what would."""
    now: BestOf | None
    gains: tuple[Gain, ...]
    made_to_fit: tuple[str, ...] = ()


def best_of(setting: Setting) -> BestOf | None:
    """The best rate and the best latency over all numbers of cards a replica; None where none fits."""
    maker = CardPartitioner(setting)
    placements = [placement for cards in maker.counts() if (placement := maker.best(cards)) is not None]
    if not placements:
        return None
    times = [maker.times(placement) for placement in placements]
    rates = [each.rate(placement.replicas) for each, placement in zip(times, placements, strict=True)]
    rate, bound = max(rates, key=lambda one: one[0])
    latency = min(sum(each.latency().values()) for each in times)
    watts = setting.machine.watts
    return BestOf(rate, bound, latency, rate / watts if watts else 0.0)


def guidance(setting: Setting, changes: Sequence[str] = tuple(CHANGES)) -> Guidance:
    """What each change would bring to a model on a machine."""
    name, hardware = setting.model.name, setting.machine.name
    now = best_of(setting)
    after = {
        change: best_of(replace(setting, machine=CHANGES[change](setting.machine))) for change in changes
    }
    if now is None:
        fitting = tuple(change for change, best in after.items() if best is not None)
        return Guidance(name, hardware, False, None, (), fitting)
    gains = [_gain(change, now, best) for change, best in after.items() if best is not None]
    order = sorted(gains, key=lambda gain: (-gain.rate, -gain.latency))
    return Guidance(name, hardware, True, now, tuple(order))


def _gain(change: str, now: BestOf, after: BestOf) -> Gain:
    per_watt = now.requests_per_second_per_watt
    return Gain(
        change,
        after.requests_per_second / now.requests_per_second,
        now.latency_seconds / after.latency_seconds,
        after.requests_per_second_per_watt / per_watt if per_watt else 1.0,
        after.bound_by,
    )
