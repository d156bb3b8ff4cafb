"""The order of a wide pipeline as wavefronts: rows of operations that do not wait for one another.

A row has one operation of each device; a device with nothing to do has a blank there, which takes no time.
Operation by operation a pipeline of 64 devices and 512 micro-batches takes a third of a second to follow.
Which operation waits for which depends on the schedule alone, so rows can be found once; following a step is
then a few sums and maxima of whole rows (`row_times`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from megalith.explore.pipeline.operations import Op, Schedule
from megalith.explore.pipeline.simulation.program import KINDS, message_ends

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


@dataclass(slots=True)
class Wavefronts:
    """Rows of a schedule. Row 0 is empty: it stands for what was there before the step."""

    rows: int
    devices: int
    op_types: Integers
    """[row, device]: type of the operation as `OperationTable` numbers them; the last type is a blank."""
    needs: Integers
    """[row, device]: cell (row x devices + device) of the operation whose message it waits for,
    0: none."""
    second_needs: Integers | None
    """The same of the backward half of an FB; None without any."""
    pairs: list[tuple[int, int]]
    """Of types from 4 x stages on: the stage going forward and the one going backward."""
    counts: Integers
    """Operations by type."""
    first_rows: Integers
    """By device: where its first operation is."""
    first_uses: dict[tuple[int, int], int]
    """(device, chunk) -> row of its first operation."""
    last_weights: dict[tuple[int, int], int]
    """(device, chunk) -> row in which its weight gradients are complete."""
    link_orders: dict[tuple[int, ...], Any] = field(default_factory=dict)
    """What `links` found out about the links of costs that it has seen."""


def wavefronts_of(schedule: Schedule) -> Wavefronts | None:
    """The rows of a schedule; None if its order can never end."""
    if "wavefronts" not in schedule.derived:
        schedule.derived["wavefronts"] = _find_wavefronts(schedule)
    wavefronts: Wavefronts | None = schedule.derived["wavefronts"]
    return wavefronts


def _find_wavefronts(schedule: Schedule) -> Wavefronts | None:
    flat = _FlatOperations(schedule)
    devices = schedule.devices
    row_of = flat.rows()
    if row_of is None:
        return None
    rows = int(row_of.max()) + 1
    op_types = np.full((rows, devices), flat.blank, dtype=np.int64)
    needs = np.zeros((rows, devices), dtype=np.int64)
    cell = row_of * devices + flat.device
    op_types.reshape(-1)[cell] = flat.op_types
    # A message is known by the cell of its sender; the second half of an FB sends from a second block.
    sender = np.zeros(flat.messages, dtype=np.int64)
    sender[flat.second_sends] = cell + rows * devices
    sender[flat.sends] = cell
    sender[0] = 0
    needs.reshape(-1)[cell] = sender[flat.needs]
    second = None
    if flat.pairs:
        second = np.zeros((rows, devices), dtype=np.int64)
        second.reshape(-1)[cell] = sender[flat.second_needs]
    first_uses: dict[tuple[int, int], int] = {}
    last_weights: dict[tuple[int, int], int] = {}
    for device, stages in enumerate(schedule.chunk_stages):
        own = slice(flat.begins[device], flat.begins[device + 1])
        own_rows, forward, weight = row_of[own], flat.stage[own], flat.weight_stage[own]
        for chunk, stage in enumerate(stages):
            used, done = np.flatnonzero(forward == stage), np.flatnonzero(weight == stage)
            if used.size:
                first_uses[device, chunk] = int(own_rows[used[0]])
            if done.size:
                last_weights[device, chunk] = int(own_rows[done[-1]])
    return Wavefronts(
        rows=rows,
        devices=devices,
        op_types=op_types,
        needs=needs,
        second_needs=second,
        pairs=flat.pairs,
        counts=np.bincount(flat.op_types, minlength=flat.blank + 1),
        first_rows=np.array([row_of[begin] for begin in flat.begins[:-1]]),
        first_uses=first_uses,
        last_weights=last_weights,
    )


class _FlatOperations:
    """All operations of all devices, one device after the other, as arrays."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.pairs: list[tuple[int, int]] = []
        self.messages = 1 + 2 * schedule.stages * schedule.micro_batches
        columns: list[list[Integers]] = [[] for _ in range(7)]
        self.begins = [0]
        known: dict[tuple[object, ...], tuple[int, ...]] = {}
        chunk_stages = schedule.chunk_stages
        for device, segments in enumerate(schedule.segments):
            length = 0
            stages = chunk_stages[device]
            for segment in segments:
                if not segment.ops or not segment.repeats:
                    continue
                base = np.array([self._entry(op, stages, known) for op in segment.ops], dtype=np.int64)
                turns = segment.shift * np.arange(segment.repeats, dtype=np.int64)[:, None]
                for column in range(4):
                    first = base[:, column]
                    grown = np.where(first > 0, first + turns, 0)
                    columns[column].append(grown.reshape(-1))
                for column in range(4, 7):
                    columns[column].append(np.tile(base[:, column], segment.repeats))
                length += len(segment.ops) * segment.repeats
            self.begins.append(self.begins[-1] + length)
        (
            self.needs,
            self.sends,
            self.second_needs,
            self.second_sends,
            self.op_types,
            self.stage,
            self.weight_stage,
        ) = (np.concatenate(column) for column in columns)
        self.device = np.repeat(np.arange(schedule.devices), np.diff(self.begins))
        self.blank = 4 * schedule.stages + len(self.pairs)

    def _entry(
        self, op: Op, stages: tuple[int, ...], known: dict[tuple[object, ...], tuple[int, ...]]
    ) -> tuple[int, ...]:
        """What it needs and sends (twice; 0: nothing), type, stage, stage whose weights it completes."""
        key = op.kind, stages[op.chunk], stages[op.backward_chunk] if op.kind == "FB" else -1
        if key not in known:
            known[key] = self._first_entry(op, stages)
        entry = known[key]
        number, back = op.micro_batch, op.backward_micro_batch
        return (
            entry[0] + number if entry[0] else 0,
            entry[1] + number if entry[1] else 0,
            entry[2] + back if entry[2] else 0,
            entry[3] + back if entry[3] else 0,
            *entry[4:],
        )

    def _first_entry(self, op: Op, stages: tuple[int, ...]) -> tuple[int, ...]:
        """The entry of micro-batch 0."""
        stage, count = stages[op.chunk], self.schedule.stages
        if op.kind == "FB":
            back = stages[op.backward_chunk]
            self.pairs.append((stage, back))
            op_type = 4 * count + len(self.pairs) - 1
            return (
                *message_ends(self.schedule, "F", stage),
                *message_ends(self.schedule, "BW", back),
                op_type,
                stage,
                back,
            )
        op_type = KINDS.index(op.kind) * count + stage
        return (
            *message_ends(self.schedule, op.kind, stage),
            0,
            0,
            op_type,
            stage,
            stage if op.kind in ("W", "BW") else -1,
        )

    def rows(self) -> Integers | None:
        """The row of every operation, from 1 on: a device goes on as soon as what it needs was sent."""
        row_of = np.zeros(len(self.op_types), dtype=np.int64)
        sent = np.zeros(self.messages, dtype=bool)
        sent[0] = True
        here, ends = np.array(self.begins[:-1]), np.array(self.begins[1:])
        row = 0
        going = np.flatnonzero(here < ends)
        here, ends = here[going], ends[going]
        while here.size:
            row += 1
            able = sent[self.needs[here]]
            if self.pairs:
                able &= sent[self.second_needs[here]]
            now = here[able]
            if not now.size:
                return None
            row_of[now] = row
            sent[self.sends[now]] = True
            sent[self.second_sends[now]] = True
            here = here + able
            if now.size and (here >= ends).any():
                left = here < ends
                here, ends = here[left], ends[left]
        return row_of
