"""What must hold of any schedule with any costs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from drawn_steps import schedules, steps
from hypothesis import given
from hypothesis import strategies as st

from megalith.core.errors import PlanError
from megalith.explore.pipeline.costs import Collective, StepCosts, Transfer
from megalith.explore.pipeline.operations import Op, Schedule, check_schedule, parts
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.explore.pipeline.simulation.compiler import compile_program
from megalith.explore.pipeline.simulation.events import run_events
from megalith.explore.pipeline.simulation.in_order import run_in_order
from megalith.explore.pipeline.simulation.op_table import grid_of
from megalith.explore.pipeline.simulation.steady_state.skip import run_skipping
from megalith.explore.pipeline.timeline import CAUSES, TimelineSpan

Step = tuple[Schedule, StepCosts]


@given(schedules())
def test_every_operation_runs_once_and_in_a_possible_order(schedule: Schedule) -> None:
    check_schedule(schedule)


@given(steps())
def test_no_device_does_two_things_at_once_and_each_takes_its_time(step: Step) -> None:
    schedule, costs = step
    spans = defaultdict(list)
    for span in simulate(schedule, costs, record=True).spans:
        if isinstance(span.resource, int):
            spans[span.resource].append(span)
    for device, mine in spans.items():
        assert [span.start for span in mine] == sorted(span.start for span in mine)
        for one, other in pairwise(mine):
            assert one.end <= other.start
        computed = sum(span.end - span.start for span in mine if span.kind != "optimizer")
        expected = sum(
            {"F": costs.forward, "B": costs.backward_input, "W": costs.backward_weight}[kind][
                schedule.chunk_stages[device][chunk]
            ]
            for op in schedule.order[device]
            for kind, chunk, _ in parts(op)
        )
        assert computed == pytest.approx(expected)


@given(steps())
def test_messages_arrive_before_what_needs_them_and_queue_on_their_link(step: Step) -> None:
    schedule, costs = step
    timeline = simulate(schedule, costs, record=True)
    begins: dict[tuple[str, int, int], float] = {}
    ends: dict[tuple[str, int, int], float] = {}
    for span, op in _with_operations(schedule, timeline.spans):
        for kind, chunk, micro_batch in parts(op):
            key = kind, schedule.chunk_stages[op.device][chunk], micro_batch
            begins[key] = min(begins.get(key, span.start), span.start)
            ends[key] = max(ends.get(key, span.end), span.end)
    per_stream = schedule.stages // schedule.streams
    for (kind, stage, micro_batch), begin in begins.items():
        position = stage % per_stream
        if kind == "F" and position:
            before, transfers, boundary = ("F", stage - 1, micro_batch), costs.forward_transfers, stage - 1
        elif kind == "B" and position < per_stream - 1:
            before, transfers, boundary = ("B", stage + 1, micro_batch), costs.backward_transfers, stage
        else:
            continue
        transfer = transfers[boundary] if transfers else None
        least = 0.0 if transfer is None else transfer.seconds + transfer.latency_seconds
        assert begin >= ends[before] + least - 1e-9
    links = defaultdict(list)
    for span in timeline.spans:
        if not isinstance(span.resource, int):
            links[span.resource].append(span)
    for link, queued in links.items():
        for one, other in pairwise(queued):
            assert one.end <= other.start
        assert sum(span.end - span.start for span in queued) == pytest.approx(
            timeline.link_busy_seconds[link]
        )


def _with_operations(schedule: Schedule, spans: tuple[TimelineSpan, ...]) -> list[tuple[TimelineSpan, Op]]:
    """Device spans with the operation each (or the part of it) belongs to."""
    known = {(op.device, op.kind, op.chunk, op.micro_batch): op for ops in schedule.order for op in ops}
    return [
        (span, known[span.resource, span.kind, span.chunk, span.micro_batch])
        for span in spans
        if isinstance(span.resource, int) and span.kind != "optimizer"
    ]


@given(steps(shared=False))
def test_both_engines_agree_when_no_link_is_shared(step: Step) -> None:
    schedule, costs = step
    program = compile_program(schedule, costs, grid_of(schedule, costs))
    assert not program.shared
    one, other = run_in_order(schedule, program), run_events(schedule, program)
    assert one == other


@given(steps())
def test_seconds_of_every_device_add_up_to_the_step(step: Step) -> None:
    timeline = simulate(*step)
    assert set(timeline.exposed_seconds) == set(CAUSES)
    for device, compute in enumerate(timeline.compute_seconds):
        exposed = [timeline.exposed_seconds[cause][device] for cause in CAUSES]
        assert compute + sum(exposed) == pytest.approx(timeline.step_seconds)
        assert all(seconds >= -1e-9 for seconds in exposed)
    assert timeline.step_seconds <= timeline.makespan_seconds


LONG = ("1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe", "long-link")


@given(steps(most=120, names=LONG, shared=False))
def test_skipping_repetitions_changes_nothing(step: Step) -> None:
    assert simulate(*step) == simulate(*step, skip=False)


@given(steps(most=120, names=LONG, shared=True))
def test_skipping_repetitions_changes_nothing_when_links_are_shared(step: Step) -> None:
    assert simulate(*step) == simulate(*step, skip=False)


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("shared", [False, True])
def test_repetitions_of_a_long_step_are_indeed_skipped(name: str, shared: bool) -> None:
    schedule = build_schedule(
        name, 4, 400, 2 if name == "interleaved" else None, 3 if name == "long-link" else 0
    )
    costs = StepCosts.uniform(schedule.stages, 1.0, 0.9, 0.7, transfer_seconds=0.1, latency_seconds=0.3)
    if shared:
        wide = Transfer("wide", 0.05, 0.3)
        boundaries = schedule.stages - 1
        costs = replace(
            costs, forward_transfers=(wide,) * boundaries, backward_transfers=(wide,) * boundaries
        )
        each = {
            (device, chunk): Collective(("nic", device), 0.1, each="op", buckets=2)
            for device in range(4)
            for chunk in range(schedule.chunks)
        }
        costs = replace(costs, gradient=each, parameters=each)
    skipped = run_skipping(schedule, costs, grid_of(schedule, costs))
    assert skipped is not None
    assert len(skipped.run.starts[0]) < 0.5 * len(schedule.order[0]) * (2 if shared else 1)


@given(steps())
def test_costs_in_another_unit_change_nothing_but_the_unit(step: Step) -> None:
    schedule, costs = step

    def transfers(old: tuple[Transfer | None, ...]) -> tuple[Transfer | None, ...]:
        return tuple(
            t and replace(t, seconds=t.seconds / 8, latency_seconds=t.latency_seconds / 8) for t in old
        )

    eighth = StepCosts(
        forward=tuple(x / 8 for x in costs.forward),
        backward_input=tuple(x / 8 for x in costs.backward_input),
        backward_weight=tuple(x / 8 for x in costs.backward_weight),
        forward_transfers=transfers(costs.forward_transfers),
        backward_transfers=transfers(costs.backward_transfers),
    )
    plain = replace(costs, gradient={}, parameters={}, optimizer_seconds=())
    assert simulate(schedule, eighth).step_seconds * 8 == simulate(schedule, plain).step_seconds


@given(steps(), st.integers(0, 10))
def test_a_slower_operation_never_shortens_a_step_without_shared_links(step: Step, which: int) -> None:
    schedule, costs = step
    plain = replace(costs, forward_transfers=(), backward_transfers=(), gradient={}, parameters={})
    stage = which % schedule.stages
    forward = list(plain.forward)
    forward[stage] += 1.0
    slower = replace(plain, forward=tuple(forward))
    # But for rounding: other sums are added up in another order.
    least = simulate(schedule, plain).makespan_seconds * (1 - 1e-12)
    assert simulate(schedule, slower).makespan_seconds >= least


def test_latency_pipelines_and_occupancy_does_not() -> None:
    schedule = build_schedule("gpipe", 2, 4)
    base = StepCosts((1.0, 1.0), (0.0, 0.0), (0.0, 0.0))
    late = replace(base, forward_transfers=(Transfer("link", 0.0, 10.0),))
    slow = replace(base, forward_transfers=(Transfer("link", 10.0, 0.0),))
    assert simulate(schedule, late).step_seconds == 4 + 10 + 1
    assert simulate(schedule, slow).step_seconds == 1 + 4 * 10 + 1


def test_two_directions_on_one_link_queue_behind_each_other() -> None:
    schedule = build_schedule("1f1b", 2, 8, extra_in_flight=3)
    apart = StepCosts.uniform(2, 1.0, 1.0, 1.0, transfer_seconds=2.5)
    both = replace(
        apart, forward_transfers=(Transfer("link", 2.5),), backward_transfers=(Transfer("link", 2.5),)
    )
    assert simulate(schedule, both).step_seconds > simulate(schedule, apart).step_seconds
    assert simulate(schedule, both).link_busy_seconds == {"link": 16 * 2.5}


def test_gradients_hide_behind_the_work_of_other_chunks() -> None:
    schedule = build_schedule("interleaved", 2, 4, 2)
    costs = StepCosts.uniform(4, 1.0, 1.0, 1.0)
    plain = simulate(schedule, costs).step_seconds
    gradient = {(device, chunk): Collective(("nic", device), 1.0) for device in (0, 1) for chunk in (0, 1)}
    hidden = simulate(schedule, replace(costs, gradient=gradient))
    exposed = simulate(schedule, replace(costs, gradient=gradient, overlap=False))
    assert hidden.step_seconds == plain + 1.0  # only the last chunk's
    assert exposed.step_seconds == plain + 2.0
    assert hidden.exposed_seconds["gradient"][0] == 1.0


def test_buckets_let_gradients_leave_while_the_last_backward_still_runs() -> None:
    schedule = build_schedule("1f1b", 1, 2)
    costs = StepCosts((4.0,), (4.0,), (4.0,), gradient={(0, 0): Collective("nic", 6.0)})
    whole = simulate(schedule, costs).step_seconds
    parted = replace(costs, gradient={(0, 0): Collective("nic", 6.0, buckets=4)})
    assert whole == 24 + 6
    # The first quarter is ready 6 s before the end and the last one when it ends.
    assert simulate(schedule, parted).step_seconds == 24 + 1.5


def test_parameters_are_fetched_ahead_unless_nothing_overlaps() -> None:
    schedule = build_schedule("1f1b", 1, 3)
    fetched = {(0, 0): Collective("nic", 1.0, each="op")}
    costs = StepCosts((2.0,), (1.0,), (1.0,), parameters=fetched)
    assert simulate(schedule, costs).step_seconds == 12 + 1
    assert simulate(schedule, replace(costs, overlap=False)).step_seconds == 12 + 6
    once = replace(costs, parameters={(0, 0): Collective("nic", 1.0)}, overlap=False)
    assert simulate(schedule, once).step_seconds == 12 + 1


def test_breadth_first_fetches_each_chunk_once_a_turn() -> None:
    fetched = {(0, chunk): Collective("nic", 0.5, each="turn") for chunk in (0, 1)}
    costs = StepCosts((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), parameters=fetched)
    depth = simulate(build_schedule("interleaved", 1, 8, 2), costs).link_busy_seconds["nic"]
    breadth = simulate(build_schedule("breadth-first", 1, 8, 2), costs).link_busy_seconds["nic"]
    assert breadth == 3 * 0.5  # forward: two chunks; backward begins with the one still there
    assert depth > 4 * breadth


def test_the_optimizer_follows_the_gradients_of_its_device() -> None:
    schedule = build_schedule("1f1b", 2, 2)
    gradient = {(1, 0): Collective("nic", 50.0)}
    costs = replace(StepCosts.uniform(2, 1.0, 1.0, 1.0), gradient=gradient, optimizer_seconds=(3.0, 7.0))
    timeline = simulate(schedule, costs, record=True)
    assert timeline.step_seconds == 8 + 50 + 7 - 1 + 0  # device 1 ends its last backward at 7 s
    assert [span.end for span in timeline.spans if span.kind == "optimizer"] == [12.0, 64.0]


def test_an_order_that_can_never_finish_is_refused_with_who_waits_for_what() -> None:
    order = [
        [Op("F", 0, 0, 0), Op("BW", 0, 0, 0), Op("F", 0, 0, 1), Op("BW", 0, 0, 1)],
        [Op("F", 1, 0, 0), Op("F", 1, 0, 1), Op("BW", 1, 0, 0), Op("BW", 1, 0, 1)],
    ]
    schedule = Schedule.from_order("mine", order, (0, 1), 2)
    for shared in (False, True):
        costs = StepCosts.uniform(2, 1.0, 1.0, 1.0)
        if shared:
            costs = replace(
                costs, forward_transfers=(Transfer("x", 1),), backward_transfers=(Transfer("x", 1),)
            )
        with pytest.raises(PlanError, match=r"mine can never finish: device 0 waits at its operation 1 \(BW"):
            simulate(schedule, costs)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ([Op("F", 0, 0, 0), Op("F", 0, 0, 0), Op("BW", 0, 0, 0)], "twice"),
        ([Op("BW", 0, 0, 0), Op("F", 0, 0, 0)], "before its F"),
        ([Op("F", 0, 0, 0), Op("B", 0, 0, 0)], "2 of the 3 pieces of work"),
    ],
)
def test_an_order_that_is_wrong_is_refused(order: list[Op], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        Schedule.from_order("mine", [order], (0,), 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("1f1v", 4, 8), "did you mean '1f1b'"),
        (("interleaved", 4, 10, 2), "use 8 or 12 micro-batches"),
        (("interleaved", 4, 3, 2), "use 4 micro-batches"),
        (("dualpipe", 3, 8), "use 4 or 2"),
        (("dualpipe", 4, 7), "use 8"),
        (("zb-v", 4, 8, 3), "use 2"),
        (("zb-v", 4, 8, 1), "use 2"),
        (("1f1b", 4, 8, 2), "use 1 chunk"),
        (("1f1b", 0, 8), "at least 1"),
    ],
)
def test_a_schedule_that_does_not_exist_offers_the_nearest(
    arguments: tuple[str, int, int], words: str
) -> None:
    with pytest.raises(PlanError, match=words):
        build_schedule(*arguments)


def test_costs_that_do_not_fit_the_schedule_are_refused() -> None:
    schedule = build_schedule("1f1b", 2, 4)
    with pytest.raises(PlanError, match=r"3 virtual stages and schedule 1f1b has 2"):
        simulate(schedule, StepCosts.uniform(3, 1.0, 1.0, 1.0))
    with pytest.raises(PlanError, match=r"backward_weight holds a negative time"):
        simulate(schedule, StepCosts.uniform(2, 1.0, 1.0, -1.0))
    with pytest.raises(PlanError, match=r"backward_input has 1 entries for 2"):
        StepCosts((1.0, 1.0), (1.0,), (1.0, 1.0))
    with pytest.raises(PlanError, match=r"optimizer_seconds has 1 entries for 2 devices"):
        simulate(schedule, replace(StepCosts.uniform(2, 1.0, 1.0, 1.0), optimizer_seconds=(1.0,)))
    with pytest.raises(PlanError, match=r"not a finite number"):
        simulate(schedule, StepCosts.uniform(2, float("inf"), 1.0, 1.0))
