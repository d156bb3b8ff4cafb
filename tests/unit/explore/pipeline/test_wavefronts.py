"""Following a step row by row gives what the event simulation gives, to the last bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from drawn_steps import steps
from hypothesis import given

from megalith.explore.pipeline.costs import Collective, StepCosts, Transfer
from megalith.explore.pipeline.operations import Op, Schedule
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.explore.pipeline.simulation.activations import peak_activations
from megalith.explore.pipeline.simulation.device_times import build_timeline
from megalith.explore.pipeline.simulation.op_table import grid_of
from megalith.explore.pipeline.simulation.wavefront.run import run_wavefronts
from megalith.explore.pipeline.timeline import Timeline

Step = tuple[Schedule, StepCosts]


def by_rows(schedule: Schedule, costs: StepCosts) -> Timeline | None:
    times = run_wavefronts(schedule, costs, grid_of(schedule, costs))
    if times is None:
        return None
    return build_timeline(schedule, times, peak_activations(schedule, costs))


def once_a_step(step: Step) -> Step:
    """The same step with what replicas exchange on links of its own, once."""
    schedule, costs = step

    def apart(old: dict[tuple[int, int], Collective]) -> dict[tuple[int, int], Collective]:
        return {key: replace(one, link=("lane", key[0]), each="step") for key, one in old.items()}

    gradient, parameters = apart(dict(costs.gradient)), apart(dict(costs.parameters))
    return schedule, replace(costs, gradient=gradient, parameters=parameters, overlap=True)


@given(steps(most=30, shared=False).map(once_a_step))
def test_rows_and_events_agree(step: Step) -> None:
    found = by_rows(*step)
    if found is None:  # parameters and gradients of one operation
        assert step[1].parameters
        assert step[1].gradient
    else:
        assert found == simulate(*step, skip=False)


@given(steps(most=30, shared=True).map(once_a_step))
def test_rows_and_events_agree_on_shared_links_if_queues_settle(step: Step) -> None:
    found = by_rows(*step)
    assert found is None or found == simulate(*step, skip=False)


@given(steps())
def test_what_rows_cannot_follow_is_left_to_events(step: Step) -> None:
    found = by_rows(*step)
    assert found is None or found == simulate(*step, skip=False)


@pytest.mark.parametrize(
    ("name", "chunks"), [("interleaved", 2), ("1f1b", 1), ("zb-h2", 1), ("zb-v", 2), ("dualpipe", 1)]
)
def test_the_longest_pipelines_are_followed_exactly(name: str, chunks: int) -> None:
    schedule = build_schedule(name, 64, 512, chunks)
    stages = schedule.stages
    lane = {
        (device, chunk): Collective(("lane", device), 0.3, 1e-4, buckets=8)
        for device in range(64)
        for chunk in range(schedule.chunks)
    }
    costs = StepCosts(
        # The first and the last stage have more to do, and a region ends in the middle.
        forward=(0.0085, *[0.0079] * (stages - 2), 0.0101),
        backward_input=(0.0083, *[0.0081] * (stages - 2), 0.0112),
        backward_weight=(0.0077, *[0.0079] * (stages - 2), 0.0098),
        forward_transfers=tuple(_transfer(schedule, stage, stage + 1) for stage in range(stages - 1)),
        backward_transfers=tuple(_transfer(schedule, stage + 1, stage) for stage in range(stages - 1)),
        gradient=lane,
        parameters=lane,
        optimizer_seconds=(0.01,) * 64,
    )
    assert by_rows(schedule, costs) is not None
    assert simulate(schedule, costs) == simulate(schedule, costs, skip=False)


def _transfer(schedule: Schedule, sender: int, receiver: int) -> Transfer | None:
    one, other = schedule.placement[sender], schedule.placement[receiver]
    if one == other:
        return None
    if (one < 32) != (other < 32):
        return Transfer(("region", one // 32), 0.0011, 0.01)  # shared where the way goes round
    return Transfer(("node", one), 0.0004, 0.00002)


def test_links_that_are_always_full_are_left_to_events() -> None:
    schedule = build_schedule("1f1b", 8, 64)
    wide = (Transfer("wide", 1.0, 0.1),) * 7
    costs = replace(StepCosts.uniform(8, 1.0, 1.0, 1.0), forward_transfers=wide, backward_transfers=wide)
    assert by_rows(schedule, costs) is None
    assert simulate(schedule, costs) == simulate(schedule, costs, skip=False)


def test_an_order_that_never_ends_has_no_rows() -> None:
    order = [
        [Op("F", 0, 0, 0), Op("BW", 0, 0, 0), Op("F", 0, 0, 1), Op("BW", 0, 0, 1)],
        [Op("F", 1, 0, 0), Op("F", 1, 0, 1), Op("BW", 1, 0, 0), Op("BW", 1, 0, 1)],
    ]
    assert by_rows(Schedule.from_order("mine", order, (0, 1), 2), StepCosts.uniform(2, 1.0, 1.0, 1.0)) is None
