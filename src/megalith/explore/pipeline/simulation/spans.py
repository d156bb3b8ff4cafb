"""The spans of a recorded run: operations on devices, messages on links."""

from __future__ import annotations

from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.simulation.program import Program
from megalith.explore.pipeline.simulation.record import RunRecord
from megalith.explore.pipeline.timeline import TimelineSpan


def record_spans(schedule: Schedule, program: Program, run: RunRecord) -> tuple[TimelineSpan, ...]:
    """Everything that happened in a run that was recorded."""
    spans: list[TimelineSpan] = []
    order = schedule.order
    owners: list[list[int]] = []
    for device, ops in enumerate(order):
        owner = program.owners[device] or list(range(len(ops)))
        owners.append(owner)
        starts, op_types = run.starts[device], program.op_types[device]
        for index, (start, op_type) in enumerate(zip(starts, op_types, strict=True)):
            op = ops[owner[index]]
            end = start + program.seconds[op_type]
            spans.append(TimelineSpan(device, op.kind, op.chunk, op.micro_batch, start, end))
        reduced = max(run.compute_ends[device], run.reduce_ends[device])
        if program.optimizer[device]:
            end = reduced + program.optimizer[device]
            spans.append(TimelineSpan(device, "optimizer", -1, -1, reduced, end))
    for link, kind, device, index, start, end in run.sent:
        op = order[device][owners[device][min(index, len(owners[device]) - 1)]]
        backward = kind == "backward" and op.kind == "FB"
        chunk = op.backward_chunk if backward else op.chunk
        micro_batch = op.backward_micro_batch if backward else op.micro_batch
        spans.append(TimelineSpan(program.links[link], kind, chunk, micro_batch, start, end))
    return tuple(spans)
