"""What both engines share: the record of a run, sending over a link, and the error for an order that cannot
end."""

from __future__ import annotations

from dataclasses import dataclass, field

from megalith.core.errors import PlanError
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.simulation.program import Message, Program


@dataclass(slots=True)
class RunRecord:
    """When every operation of every device started, and what it waited for."""

    starts: list[list[float]]
    transfer_waits: list[list[float]]
    """By device and operation: seconds waited so far for messages on their way."""
    fetch_waits: list[float]
    """By device: seconds waited for parameters."""
    first_fetch_waits: list[float]
    """The part of it before the first operation."""
    reduce_waits: list[float]
    """By device: seconds waited for gradients between operations."""
    compute_ends: list[float]
    reduce_ends: list[float]
    """By device: when the last gradients were there."""
    first_fetch_end: float
    """When the last parameters asked for at the beginning were there."""
    link_busy: list[float]
    arrival: list[float]
    """By message number: when it was there."""
    sent: list[tuple[int, str, int, int, float, float]] = field(default_factory=list)
    """Link, kind, device, operation, start and end of each message; only of `run_events`."""


def new_record(devices: int, program: Program) -> RunRecord:
    """An empty record; no message has arrived but number 0."""
    return RunRecord(
        starts=[[] for _ in range(devices)],
        transfer_waits=[[] for _ in range(devices)],
        fetch_waits=[0.0] * devices,
        first_fetch_waits=[0.0] * devices,
        reduce_waits=[0.0] * devices,
        compute_ends=[0.0] * devices,
        reduce_ends=[0.0] * devices,
        first_fetch_end=0.0,
        link_busy=[0.0] * len(program.links),
        arrival=[0.0] + [-1.0] * (program.message_count - 1),
    )


def send_message(message: Message, time: float, link_free: list[float], link_busy: list[float]) -> float:
    """Queues a message that is ready at `time`; returns when the far side has it."""
    link, taken, latency = message
    end = max(link_free[link], time) + taken
    link_free[link] = end
    link_busy[link] += taken
    return end + latency


def fetch_first(
    program: Program,
    run: RunRecord,
    link_free: list[float],
    sent: list[tuple[int, str, int, int, float, float]] | None = None,
) -> list[list[float]]:
    """Asks for the parameters that are fetched when the step begins; returns when each is there."""
    ends: list[list[float]] = []
    for device, fetches in enumerate(program.first_fetches):
        ends.append([send_message(message, 0.0, link_free, run.link_busy) for message in fetches])
        run.first_fetch_end = max([run.first_fetch_end, *ends[-1]])
        if sent is not None:
            for message, end in zip(fetches, ends[-1], strict=True):
                free = end - message[2]
                sent.append((message[0], "parameters", device, 0, free - message[1], free))
    return ends


def check_finished(schedule: Schedule, program: Program, positions: list[int]) -> None:
    """Raises PlanError if a device stopped before its last operation."""
    for device, position in enumerate(positions):
        if position < len(program.op_types[device]):
            kind, stage = program.labels[program.op_types[device][position]]
            need = program.needs[device][position]
            if need == 0 or (kind == "FB" and position in program.extras[device]):
                need = need or program.extras[device][position].second_needs
            micro_batch = (need - 1) % program.micro_batches
            raise PlanError(
                f"Schedule {schedule.name} can never finish: device {device} waits at its operation "
                f"{position} ({kind} of stage {stage}) for micro-batch {micro_batch} while the device that "
                "should send it waits too; put the operations of all devices in an order in which none waits "
                "for a later one."
            )
