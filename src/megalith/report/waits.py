"""Where the time of every rank went, and for whom it stood still: from the traces of all ranks.

In an exchange each rank waits until the last one has come. Waits of one exchange have one name and number on
all ranks, so that the rank whose wait began last is the one that the others waited for; what is left of a
wait after that is the exchange itself.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from megalith.comm.all_to_all import WAIT_FOR
from megalith.core.trace import iterate_spans, read_totals, trace_parts
from megalith.train.run.folder import RunFolder

KEPT_EXCHANGES = 50_000
"""Of a long run, so many exchanges are compared, the newest."""
Exchange = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Seconds of one rank by kind of thread and by span, without those of spans within it."""

    rank: int
    steps: int
    own: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds for which each rank stood in exchanges."""

    ranks: list[int]
    for_whom: list[list[float]]
    """Of each rank, in the order of `ranks`, until each other one had come."""
    exchanging: list[float]
    """Of each rank, after all had come."""
    exchanges: int
    """How many were compared."""


def read_rank_times(run: RunFolder) -> list[RankTimes]:
    """Of every rank that left a trace."""
    totals = [(rank, read_totals(run.trace_of(rank))) for rank in run.traced_ranks()]
    return [RankTimes(rank, found.steps, found.own) for rank, found in totals]


def read_waits(run: RunFolder) -> Waits | None:
    """None with one rank, or where traces have no exchange in common. Of a resumed run the last session."""
    ranks = run.traced_ranks()
    if len(ranks) < 2:
        return None
    found = [_waits_of(run, rank) for rank in ranks]
    common = set(found[0]).intersection(*found[1:])
    if not common:
        return None
    for_whom = [[0.0] * len(ranks) for _ in ranks]
    exchanging = [0.0] * len(ranks)
    for exchange in common:
        begins = [own[exchange][0] for own in found]
        last = max(range(len(ranks)), key=begins.__getitem__)
        for number, own in enumerate(found):
            begin, seconds = own[exchange]
            waited = min(begins[last] - begin, seconds)
            for_whom[number][last] += waited
            exchanging[number] += seconds - waited
    return Waits(ranks, for_whom, exchanging, len(common))


def _waits_of(run: RunFolder, rank: int) -> dict[Exchange, tuple[float, float]]:
    """Begin and seconds of the newest exchanges of the last session."""
    waits: dict[Exchange, tuple[float, float]] = {}
    process: int | None = None
    newest: dict[str, int] = defaultdict(int)
    for span in iterate_spans(trace_parts(run.trace_of(rank))):
        name, number = span["name"], (span.get("attributes") or {}).get("number")
        if not name.startswith(WAIT_FOR) or not isinstance(number, int):
            continue
        if span.get("process") != process or number < newest[name]:
            # Another session counts from one again.
            waits.clear()
            newest.clear()
            process = span.get("process")
        newest[name] = number
        waits[name, number] = span["start"], span["duration"]
        if len(waits) > KEPT_EXCHANGES:
            del waits[next(iter(waits))]
    return waits
