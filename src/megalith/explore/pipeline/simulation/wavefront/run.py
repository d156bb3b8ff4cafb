"""Follows a step row by row: the quick way for pipelines of many devices."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.simulation.device_times import DeviceTimes
from megalith.explore.pipeline.simulation.op_table import OperationTable
from megalith.explore.pipeline.simulation.program import Message
from megalith.explore.pipeline.simulation.wavefront.links import link_order
from megalith.explore.pipeline.simulation.wavefront.row_times import RowTimes
from megalith.explore.pipeline.simulation.wavefront.rows import Wavefronts, wavefronts_of
from megalith.explore.pipeline.simulation.wavefront.step_collectives import (
    FirstFetch,
    StepCollectives,
    only_once_a_step,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


def run_wavefronts(schedule: Schedule, costs: StepCosts, grid: float) -> DeviceTimes | None:
    """The step, or None where rows cannot follow it: collectives with every operation or on links that
    messages use too, queues that do not settle, an order that never ends."""
    if not only_once_a_step(costs):
        return None
    wavefronts = wavefronts_of(schedule)
    return None if wavefronts is None else _WavefrontRun(schedule, costs, grid, wavefronts).run()


class _WavefrontRun:
    """One step: its operation types, the times of its rows, its collectives."""

    def __init__(self, schedule: Schedule, costs: StepCosts, grid: float, wavefronts: Wavefronts) -> None:
        self.costs, self.wavefronts = costs, wavefronts
        table = self.table = OperationTable(schedule, costs, grid)
        second: list[Message | None] = [None] * len(table.seconds)
        for stage, back in wavefronts.pairs:
            table.pair_type(stage, back)
            second.append(table.messages[schedule.stages + back])
        table.new_type(0.0, None, ("", 0))  # a blank
        second.append(None)
        self.messages = [table.messages, second] if wavefronts.pairs else [table.messages]
        self.times = RowTimes(wavefronts, table.seconds, self.messages)
        self.collectives = StepCollectives(costs, table, self.times)

    def run(self) -> DeviceTimes | None:
        fetches = self.collectives.fetch_first()
        if fetches is None:
            return None
        least_ends: dict[int, NDArray[np.float64]] = {}
        for fetch in fetches:
            row = least_ends.setdefault(fetch.row, np.zeros(self.wavefronts.devices))
            row[fetch.device] = fetch.least_end
        order = link_order(self.wavefronts, self.messages, self.table.shared_links)
        return self._device_times(fetches) if self.times.settle(order, least_ends) else None

    def _device_times(self, fetches: list[FirstFetch]) -> DeviceTimes:
        times, wavefronts, devices = self.times, self.wavefronts, self.wavefronts.devices
        at = wavefronts.first_rows, np.arange(devices)
        waits = times.waits()
        starts = times.starts[at].tolist()
        fetched, first_fetched = [0.0] * devices, [0.0] * devices
        for fetch in fetches:
            row, device = fetch.row, fetch.device
            began = float(times.starts[row, device])
            fetched[device] += float(times.ends[row, device]) - began - float(times.seconds[row, device])
            if row == wavefronts.first_rows[device] and fetch.first > began:
                first_fetched[device] = fetch.first - began
                starts[device] = fetch.first
        reduce_ends = self.collectives.reduce_last()
        optimizer = self.costs.optimizer_seconds or (0.0,) * devices
        return DeviceTimes(
            compute=times.seconds.sum(axis=0).tolist(),
            starts=starts,
            compute_ends=times.ends[-1].tolist(),
            reduce_ends=reduce_ends,
            transfers=waits.sum(axis=0).tolist(),
            first_waits=waits[at].tolist(),
            fetches=fetched,
            first_fetches=first_fetched,
            reduces=[0.0] * devices,
            optimizer=[self.table.round_seconds(seconds) for seconds in optimizer],
            link_busy=self._link_busy(),
        )

    def _link_busy(self) -> dict[Hashable, float]:
        """Seconds that each link is taken by messages and collectives; once all are sent."""
        counts, names = self.wavefronts.counts, list(self.table.links)
        busy: dict[Hashable, float] = dict.fromkeys(names, 0.0)
        for messages in self.messages:
            for op_type, message in enumerate(messages):
                if message is not None and counts[op_type]:
                    busy[names[message[0]]] += int(counts[op_type]) * message[1]
        for number, seconds in enumerate(self.collectives.link_busy):
            busy[names[number]] += seconds
        return busy
