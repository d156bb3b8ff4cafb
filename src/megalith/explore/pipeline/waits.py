"""Why a device idles: what of its bubble is the schedule's own, and what a slow link or collective causes.

A stage that waits for a message waits for the message itself, and for everything before it: earlier messages
on the same link, stages that waited in their turn. The simulation calls the first a transfer and the rest a
bubble. Here the same order of operations is simulated with free transfers, then with free collectives too:
what the bubble loses is theirs.
"""

from __future__ import annotations

from dataclasses import replace

from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.explore.pipeline.timeline import Timeline

NOTABLE = 0.02
"""Share of a step below which nobody asks for the root of a wait."""
BUSY = 0.2
"""Share of a step from which on a link between stages may be what they wait for."""


def waits_by_root(schedule: Schedule, costs: StepCosts, timeline: Timeline, device: int) -> dict[str, float]:
    """Cause of `timeline.CAUSES` -> seconds of a device's bubble that are its doing."""
    step, bubble = timeline.step_seconds, timeline.exposed_seconds["bubble"][device]
    if bubble < NOTABLE * step:
        return {}
    roots: dict[str, float] = {}
    if _transfers_matter(costs, timeline):
        costs = costs.with_free_transfers()
        left = simulate(schedule, costs).exposed_seconds["bubble"][device]
        roots["transfer"] = min(max(0.0, bubble - left), bubble)
        bubble -= roots["transfer"]
    exchanged = [*costs.parameters.values(), *costs.gradient.values()]
    longest = max((collective.seconds for collective in exchanged), default=0.0)
    if longest >= NOTABLE * step and bubble >= NOTABLE * step:
        free = replace(costs, parameters={}, gradient={})
        left = simulate(schedule, free).exposed_seconds["bubble"][device]
        roots["parameters"] = min(max(0.0, bubble - left), bubble)
    return roots


def _transfers_matter(costs: StepCosts, timeline: Timeline) -> bool:
    """Whether messages between stages are long enough to show, or a link is busy with them for long."""
    messages = [one for one in (*costs.forward_transfers, *costs.backward_transfers) if one is not None]
    once = sum(one.seconds + one.latency_seconds for one in messages)
    busiest = max((timeline.link_busy_seconds.get(one.link, 0.0) for one in messages), default=0.0)
    return once >= NOTABLE * timeline.step_seconds or busiest >= BUSY * timeline.step_seconds
