"""Turns a schedule and its costs into a program."""

from __future__ import annotations

from dataclasses import dataclass, field

from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.operations import Schedule, Segment
from megalith.explore.pipeline.simulation.collective_buckets import add_collectives
from megalith.explore.pipeline.simulation.op_table import OperationTable
from megalith.explore.pipeline.simulation.program import KINDS, OperationExtras, Program, message_ends


def compile_program(schedule: Schedule, costs: StepCosts, grid: float) -> Program:
    """The flat form of a schedule; `grid` from `grid_of`."""
    table = OperationTable(schedule, costs, grid)
    devices = schedule.devices
    operations = _operations(table)
    optimizer = costs.optimizer_seconds or (0.0,) * devices
    program = Program(
        needs=operations.needs,
        sends=operations.sends,
        op_types=operations.op_types,
        extras=operations.extras,
        first_extra_type=4 * table.stages,
        seconds=table.seconds,
        messages=table.messages,
        labels=table.labels,
        links=[],
        shared=False,
        message_count=1 + 2 * table.stages * schedule.micro_batches,
        micro_batches=schedule.micro_batches,
        stages=table.stages,
        first_fetches=[[] for _ in range(devices)],
        last_reduces=[[] for _ in range(devices)],
        optimizer=[table.round_seconds(seconds) for seconds in optimizer],
        owners=[[] for _ in range(devices)],
    )
    if costs.gradient or costs.parameters:
        for device in range(devices):
            add_collectives(table, program, device)
    program.links = list(table.links)
    program.shared = bool(table.shared_links)
    return program


@dataclass(slots=True)
class _Operations:
    """By device: what its operations need, send and are."""

    needs: list[list[int]] = field(default_factory=list)
    sends: list[list[int]] = field(default_factory=list)
    op_types: list[list[int]] = field(default_factory=list)
    extras: list[dict[int, OperationExtras]] = field(default_factory=list)


def _operations(table: OperationTable) -> _Operations:
    """The schedule alone decides them, unless two directions run side by side."""
    schedule = table.schedule
    derived = schedule.derived
    if "operations" in derived:
        needs, sends, op_types = derived["operations"]
        return _Operations(list(needs), list(sends), list(op_types), [{} for _ in op_types])
    operations = _Operations()
    for device in range(schedule.devices):
        for column in (operations.needs, operations.sends, operations.op_types):
            column.append([])
        operations.extras.append({})
        for segment in schedule.segments[device]:
            if segment.repeats:
                _add_segment(table, operations, device, segment)
    if not any(operations.extras):
        derived["operations"] = operations.needs, operations.sends, operations.op_types
        # Collectives replace lists of this program; those kept stay as they are.
        return _Operations(
            list(operations.needs), list(operations.sends), list(operations.op_types), operations.extras
        )
    return operations


def _add_segment(table: OperationTable, operations: _Operations, device: int, segment: Segment) -> None:
    """Writes out the repetitions of a segment."""
    length, repeats, shift = len(segment.ops), segment.repeats, segment.shift
    base = len(operations.op_types[device])
    needs = [0] * (length * repeats)
    sends = [0] * (length * repeats)
    row: list[int] = []
    for position, op in enumerate(segment.ops):
        stage = table.chunk_stages[device][op.chunk]
        kind = "F" if op.kind == "FB" else op.kind
        for target, first in zip((needs, sends), message_ends(table.schedule, kind, stage), strict=True):
            if first:
                first += op.micro_batch
                target[position::length] = (
                    range(first, first + shift * repeats, shift) if shift else [first] * repeats
                )
        if op.kind != "FB":
            row.append(KINDS.index(op.kind) * table.stages + stage)
            continue
        back = table.chunk_stages[device][op.backward_chunk]
        row.append(table.pair_type(stage, back))
        message = table.messages[table.stages + back]
        needed, sent = message_ends(table.schedule, "BW", back)
        for turn in range(repeats):
            number = op.backward_micro_batch + shift * turn
            operations.extras[device][base + turn * length + position] = OperationExtras(
                second_needs=needed + number if needed else 0,
                second_sends=sent + number if sent else 0,
                second_message=message,
            )
    operations.needs[device] += needs
    operations.sends[device] += sends
    operations.op_types[device] += row * repeats
