"""Candidates taking turns on the same batches, each step timed in parts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from time import process_time
from typing import TypeVar

from megalith.bench.runner import Timing

Item = TypeVar("Item")


def take_turns(
    steps: Mapping[str, Callable[[Item], Mapping[str, float]]], batches: Sequence[Item], repeats: int
) -> dict[str, dict[str, Timing]]:
    """Every candidate on every batch, `repeats` times after one round that does not count.

    A step returns the seconds of its parts, `total` among them. Each batch is taken in an order of its own,
    drawn from a fixed seed: the first candidate brings the batch into the caches, which should fall on all.
    """
    seconds: dict[str, dict[str, list[float]]] = {name: {} for name in steps}
    cpu: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    order = random.Random(0)
    for number in range(1 + repeats):
        for batch in batches:
            order.shuffle(names)
            for name in names:
                cpu_start = process_time()
                taken = steps[name](batch)
                if number:
                    cpu[name].append(process_time() - cpu_start)
                    for part, value in taken.items():
                        seconds[name].setdefault(part, []).append(value)
    return {
        name: {
            part: Timing(tuple(values), tuple(cpu[name]) if part == "total" else ())
            for part, values in parts.items()
        }
        for name, parts in seconds.items()
    }
