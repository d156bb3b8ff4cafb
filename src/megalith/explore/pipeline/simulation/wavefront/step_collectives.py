"""What replicas exchange once a step: parameters before the rows, gradients after them.

Such collectives have links of their own, so that they are counted apart from the messages of the pipeline.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from megalith.explore.pipeline.costs import Collective, StepCosts
from megalith.explore.pipeline.simulation.op_table import OperationTable
from megalith.explore.pipeline.simulation.program import Message
from megalith.explore.pipeline.simulation.record import send_message
from megalith.explore.pipeline.simulation.wavefront.row_times import RowTimes


def only_once_a_step(costs: StepCosts) -> bool:
    """Whether no collective runs more often or on a link that others use too."""
    collectives = (*costs.gradient.values(), *costs.parameters.values())
    if any(collective.each != "step" for collective in collectives):
        return False
    if costs.parameters and not costs.overlap:
        return False
    transfers = {t.link for t in (*costs.forward_transfers, *costs.backward_transfers) if t is not None}
    owners: dict[Hashable, int] = {}
    return all(
        collective.link not in transfers and owners.setdefault(collective.link, device) == device
        for part in (costs.gradient, costs.parameters)
        for (device, _), collective in part.items()
    )


@dataclass(frozen=True, slots=True)
class FirstFetch:
    """Parameters asked for when the step begins, in as many pieces as the first operation of their chunk."""

    row: int
    device: int
    first: float
    """When the first piece is there."""
    least_end: float
    """The operation cannot end before this."""


class StepCollectives:
    """The collectives of one step, and how long they take their links."""

    def __init__(self, costs: StepCosts, table: OperationTable, times: RowTimes) -> None:
        self._costs, self._table, self._times = costs, table, times
        self._wavefronts = times.wavefronts
        self._link_free: list[float] = []
        self.link_busy: list[float] = []
        """By link number."""

    def fetch_first(self) -> list[FirstFetch] | None:
        """Parameters fetched when the step begins; None if gradients of the same operation follow."""
        wavefronts, gradient = self._wavefronts, self._costs.gradient
        last_weights, first_uses = wavefronts.last_weights, wavefronts.first_uses
        reduced = {(last_weights[key], key[0]) for key in gradient if key in last_weights}
        wanted = [
            (device, first_uses[device, chunk], collective)
            for (device, chunk), collective in self._costs.parameters.items()
            if (device, chunk) in first_uses
        ]
        fetches = []
        for device, row, collective in sorted(wanted, key=lambda entry: entry[:2]):
            if (row, device) in reduced:
                return None
            pieces = collective.buckets
            message = self._bucket(device, collective, pieces)
            part, last = self._parts(row, device, pieces)
            ends = [send_message(message, 0.0, self._link_free, self.link_busy) for _ in range(pieces)]
            rest = [(pieces - 1 - piece) * part + last for piece in range(pieces)]
            least = max(end + left for end, left in zip(ends, rest, strict=True))
            fetches.append(FirstFetch(row, device, ends[0], least))
        return fetches

    def reduce_last(self) -> list[float]:
        """By device: when the last gradients are there."""
        times, overlap = self._times, self._costs.overlap
        last_weights = self._wavefronts.last_weights
        ends = [0.0] * self._wavefronts.devices
        wanted = [
            (device, last_weights[device, chunk], collective)
            for (device, chunk), collective in self._costs.gradient.items()
            if (device, chunk) in last_weights
        ]
        for device, row, collective in sorted(wanted, key=lambda entry: entry[:2]):
            pieces = collective.buckets if overlap else 1
            message = self._bucket(device, collective, pieces)
            part, _ = self._parts(row, device, pieces)
            for piece in range(pieces):
                ready = float(times.ends[row, device])
                if not overlap:
                    ready = float(times.ends[-1, device])
                elif piece < pieces - 1:
                    ready = float(times.starts[row, device]) + (piece + 1) * part
                end = send_message(message, ready, self._link_free, self.link_busy)
                ends[device] = max(ends[device], end)
        return ends

    def _bucket(self, device: int, collective: Collective, pieces: int) -> Message:
        message = self._table.bucket_of(device, collective, pieces)
        while len(self._link_free) <= message[0]:
            self._link_free.append(0.0)
            self.link_busy.append(0.0)
        return message

    def _parts(self, row: int, device: int, pieces: int) -> tuple[float, float]:
        """An operation in equal parts: the seconds of each, and of the last."""
        seconds = float(self._times.seconds[row, device])
        part = self._table.round_seconds(seconds / pieces)
        return part, seconds - (pieces - 1) * part
