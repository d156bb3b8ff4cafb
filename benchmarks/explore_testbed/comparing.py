"""One setting: set the link, measure link and parts in isolation, predict from those, run steps, compare.

Calibration and steps take turns, so that a slow minute of the machine falls on both alike; no step enters
a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from statistics import mean, median
from typing import Any

from buildings import Buildings, two_buildings
from predictions import (
    PARTS,
    Measured,
    Parts,
    chunk_seconds,
    gradient_bytes,
    hardware,
    needs_split,
    predict_step,
    schedule_of,
)
from quiet import ProcessorUse
from ranks import Ranks, started_ranks
from settings import SHAPE, Setting, part_of

from megalith.cli.output import progress_console
from megalith.hardware.cluster import Link

ROUNDS = 3
WARMUP_STEPS = 2
PART_REPEATS = 4
LARGE_MESSAGE_BYTES = 1 << 20
INSIDE_RANKS = (0, 1)
QUIET_CORES = 0.1
"""Others that use less than this do not matter."""
TRIES = 3


def measure_parts(ranks: Ranks) -> tuple[Parts, ...]:
    """Seconds of the operations of each part of the model, by rank."""
    return tuple(ranks.ask({"do": "parts", "shape": SHAPE, "parts": PARTS, "repeats": PART_REPEATS}))


def measure_link(ranks: Ranks, name: str, first: int, second: int) -> Link:
    """Latency and bandwidth between two ranks."""
    command = {"do": "link", "first": first, "second": second, "bytes": LARGE_MESSAGE_BYTES, "repeats": 6}
    found = ranks.ask(command)[first]
    return Link(name, found["bytes_per_second"], found["latency_seconds"])


def rank_commands(setting: Setting, measured: Measured) -> list[dict[str, Any]]:
    """What each rank is told: its chunks, its order of operations, who holds the same chunks."""
    schedule = schedule_of(setting)
    commands: dict[int, dict[str, Any]] = {}
    for device in range(setting.pp):
        replicas = [setting.rank_of(device, replica) for replica in range(setting.dp)]
        for replica, rank in enumerate(replicas):
            building, place = divmod(rank, setting.ranks_per_building)
            inside = [one for one in replicas if one // setting.ranks_per_building == building]
            across = [one for one in replicas if one % setting.ranks_per_building == place]
            commands[rank] = {
                "placement": [setting.rank_of(one, replica) for one in schedule.placement],
                "order": [(op.kind, op.chunk, op.micro_batch) for op in schedule.order[device]],
                "chunks": [
                    _chunk_command(setting, measured, stage) for stage in schedule.chunk_stages[device]
                ],
                "replicas": replicas,
                "inside": inside,
                "across": across,
                "split": needs_split(schedule),
            }
    return [commands[rank] for rank in range(setting.ranks)]


def _chunk_command(setting: Setting, measured: Measured, stage: int) -> dict[str, Any]:
    part = part_of(stage, setting.pp * setting.chunks)
    if not setting.waiting:
        return {"part": part}
    seconds = chunk_seconds(setting, measured, stage)
    return {"part": part, "seconds": seconds, "gradient_bytes": gradient_bytes(setting, stage)}


def prepare(setting: Setting, measured: Measured, ranks: Ranks) -> None:
    """Everything a setting needs on every rank, and steps that do not count."""
    command = {
        "do": "prepare",
        "shape": SHAPE,
        "ranks": rank_commands(setting, measured),
        "exchange": setting.exchange,
        "overlap": setting.overlap,
        "warmup": WARMUP_STEPS,
        "margin_seconds": 0.01 + 3 * setting.delay_seconds,
    }
    ranks.ask(command)


def run_steps(ranks: Ranks, steps: int) -> list[tuple[float, float]]:
    """Of each step: seconds from the common start until the last rank was done, and those for which the
    busiest rank computed."""
    answers = ranks.ask({"do": "steps", "steps": steps})
    return [
        (max(end for _, end, _ in moments) - moments[0][0], max(computed for _, _, computed in moments))
        for moments in zip(*answers, strict=True)
    ]


def compare(
    setting: Setting, buildings: Buildings, ranks: Ranks, steps: int, waits: Sequence[Parts]
) -> dict[str, Any]:
    """One row. Repeated, calibration and all, while others use the processor: what counts is the quietest."""
    processes = [process.pid for process in (*ranks.processes, buildings.relay) if process]
    rows = []
    for _ in range(TRIES):
        before = ProcessorUse.now(processes)
        row = _compare(setting, buildings, ranks, steps, waits)
        row["others_cores"] = ProcessorUse.now(processes).others_since(before)
        rows.append(row)
        _say_row(row)
        if row["others_cores"] <= QUIET_CORES:
            break
    return min(rows, key=lambda row: row["others_cores"])


def _compare(
    setting: Setting, buildings: Buildings, ranks: Ranks, steps: int, waits: Sequence[Parts]
) -> dict[str, Any]:
    buildings.set_link(delay_seconds=setting.delay_seconds, bits_per_second=setting.bits_per_second)
    across = measure_link(ranks, "across", 0, setting.ranks_per_building)
    inside = measure_link(ranks, "inside", *INSIDE_RANKS) if setting.ranks_per_building > 1 else across
    # Ranks that wait do so as long as parts took when there was a core for each.
    waiting = tuple(waits) * setting.ranks
    prepare(setting, Measured(waiting, inside, across), ranks)
    found, steps_taken = [waiting] if setting.waiting else [], []
    for _ in range(ROUNDS):
        if not setting.waiting:
            found.append(measure_parts(ranks))
        steps_taken += run_steps(ranks, steps)
    measured = Measured(_mean_parts(found), inside, across)
    predicted = predict_step(setting, measured)
    taken = [seconds for seconds, _ in steps_taken]
    middle = median(taken)
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "setting": setting.to_dict(),
        "calibration": measured.to_dict(),
        "hardware": hardware(measured),
        "predicted_seconds": predicted.step_seconds,
        "measured_seconds": middle,
        "predicted_compute_seconds": predicted.compute_seconds,
        "measured_compute_seconds": median(computed for _, computed in steps_taken),
        "spread": (max(taken) - min(taken)) / middle,
        "steps_seconds": taken,
        "error": predicted.step_seconds / middle - 1,
    }


def _mean_parts(rounds: Sequence[Sequence[Parts]]) -> tuple[Parts, ...]:
    """Rank by rank, the mean over rounds of every figure."""
    return tuple(
        {part: {kind: mean(one[part][kind] for one in rank) for kind in rank[0][part]} for part in rank[0]}
        for rank in zip(*rounds, strict=True)
    )


def _say_row(row: dict[str, Any]) -> None:
    progress_console.print(
        f"{row['setting']['name']}: predicted {row['predicted_seconds']:.3f} s, measured "
        f"{row['measured_seconds']:.3f} s, error {row['error']:+.1%} (computing "
        f"{row['predicted_compute_seconds']:.3f} and {row['measured_compute_seconds']:.3f} s), "
        f"others used {row['others_cores']:.2f} cores",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )


def run(settings: Sequence[Setting], steps: int) -> tuple[dict[str, Any], str]:
    """A row for each setting by its name, and how the long link was made."""
    rows: dict[str, Any] = {}
    kind = ""
    waits: tuple[Parts, ...] = ()
    if any(setting.waiting for setting in settings):
        with two_buildings(1) as buildings, started_ranks(buildings) as ranks:
            waits = measure_parts(ranks)[:1]
    for ranks_per_building, group in groupby(settings, key=lambda setting: setting.ranks_per_building):
        with two_buildings(ranks_per_building) as buildings, started_ranks(buildings) as ranks:
            kind = buildings.kind
            for setting in group:
                rows[setting.name] = compare(setting, buildings, ranks, steps, waits)
    return rows, kind
