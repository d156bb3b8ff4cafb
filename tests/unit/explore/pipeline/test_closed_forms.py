"""Every schedule's published formula, exactly, where communication is free and stages are equal."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.operations import check_schedule
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.explore.pipeline.timeline import Timeline

TIMES = st.integers(min_value=1, max_value=50).map(float)


def run(
    name: str,
    p: int,
    m: int,
    times: tuple[float, float, float],
    chunks: int | None = None,
    together: float | None = None,
) -> Timeline:
    """One step; `times` are of a device's share of the model, spread evenly over its chunks."""
    schedule = build_schedule(name, p, m, chunks)
    check_schedule(schedule)
    share = schedule.chunks // schedule.streams
    costs = StepCosts.uniform(schedule.stages, *(seconds / share for seconds in times))
    if together is not None:
        every = range(schedule.stages)
        costs = replace(costs, forward_backward={(one, other): together for one in every for other in every})
    return simulate(schedule, costs)


@given(st.integers(1, 12), st.integers(1, 40), TIMES, TIMES, TIMES)
def test_gpipe_and_1f1b_wait_for_all_other_devices_once(p: int, m: int, f: float, b: float, w: float) -> None:
    for name in ("gpipe", "1f1b"):
        step = run(name, p, m, (f, b, w))
        assert step.step_seconds == m * (f + b + w) + (p - 1) * (f + b + w)
        assert step.bubble_rate == (p - 1) / (m + p - 1)


@given(st.integers(1, 12), st.integers(1, 40))
def test_gpipe_holds_every_micro_batch_and_1f1b_one_for_each_device(p: int, m: int) -> None:
    assert run("gpipe", p, m, (1, 1, 1)).peak_activations == (float(m),) * p
    held = run("1f1b", p, m, (1, 1, 1)).peak_activations
    assert held == tuple(float(min(m, p - device)) for device in range(p))


@given(st.integers(1, 8), st.integers(1, 5), st.integers(1, 4), TIMES, TIMES, TIMES)
def test_interleaving_divides_the_bubble_by_the_chunks(
    p: int, groups: int, v: int, f: float, b: float, w: float
) -> None:
    m = p * groups
    step = run("interleaved", p, m, (v * f, v * b, v * w), v)
    ideal = m * v * (f + b + w)
    assert step.step_seconds - ideal == (p - 1) * (f + b + w)  # (p - 1) / (v m) of the ideal
    if groups > 1:
        # p (1 + (p - 1) / (p v)) micro-batches, here in micro-batches of one chunk.
        assert step.peak_activations[0] == min(m * v, p * v + p - 1)


@given(st.integers(1, 8), st.integers(0, 12), st.integers(1, 4), TIMES, TIMES, TIMES)
def test_breadth_first_has_the_bubble_of_interleaving_and_the_memory_of_gpipe(
    p: int, more: int, v: int, f: float, b: float, w: float
) -> None:
    m = p + more
    step = run("breadth-first", p, m, (v * f, v * b, v * w), v)
    assert step.step_seconds - m * v * (f + b + w) == (p - 1) * (f + b + w)
    assert step.peak_activations == (float(m * v),) * p


@given(st.integers(1, 10), st.integers(0, 30), TIMES, TIMES, TIMES)
def test_zb_h1_fills_the_bubble_with_weight_gradients_in_the_memory_of_1f1b(
    p: int, more: int, f: float, b: float, w: float
) -> None:
    m = p + more
    w = min(w, f)  # a longer weight gradient would hold up the forwards that others wait for
    step = run("zb-h1", p, m, (f, b, w))
    assert step.step_seconds - m * (f + b + w) == (p - 1) * (f + b - w)
    assert step.peak_activations == (float(p),) * p


@given(st.integers(1, 10), st.integers(0, 30), TIMES, TIMES, TIMES)
def test_zb_h2_leaves_f_plus_b_less_2w_with_2p_less_1_micro_batches(
    p: int, more: int, f: float, b: float, w: float
) -> None:
    m = 2 * p - 1 + more
    w = min(w, f, (f + b) // 2)
    step = run("zb-h2", p, m, (f, b, w))
    assert step.step_seconds - m * (f + b + w) == (p - 1) * (f + b - 2 * w)
    assert step.peak_activations == (float(2 * p - 1),) * p


@given(st.integers(1, 10), st.integers(0, 30), TIMES)
def test_zb_v_has_no_bubble_when_all_three_are_equal_and_the_memory_of_1f1b(
    p: int, more: int, time: float
) -> None:
    m = 2 * p - 1 + more
    step = run("zb-v", p, m, (2 * time, 2 * time, 2 * time))
    assert step.step_seconds == 6 * m * time
    assert step.bubble_rate == 0
    assert set(step.device_bubble_rate) == {0.0}
    assert max(step.peak_activations) == 2 * p  # p micro-batches of two chunks


@given(st.integers(1, 5), st.integers(0, 10), TIMES, TIMES, TIMES)
def test_dualpipe_leaves_its_published_bubble(half: int, more: int, f: float, w: float, saved: float) -> None:
    p, m = 2 * half, 4 * half + 2 * more
    b, w = f, min(w, f)  # the formula takes the input gradient for as long as the forward
    together = max(f + b + w - saved, f, b + w)
    step = run("dualpipe", p, m, (f, b, w), together=together)
    formula = (p // 2 - 1) * (together + (b + w) - 3 * w)
    assert max(step.exposed_seconds["bubble"]) == formula
    assert max(step.peak_activations) == p + 1


@given(st.integers(2, 8), st.integers(0, 10))
def test_weights_are_held_twice_in_dualpipe_only(p: int, more: int) -> None:
    names = (
        "gpipe",
        "1f1b",
        "interleaved",
        "breadth-first",
        "zb-h1",
        "zb-h2",
        "zb-v",
        "dualpipe",
        "long-link",
    )
    for name in names:
        schedule = build_schedule(name, 2 * p, 4 * p * (1 + more))
        assert schedule.streams == (2 if name == "dualpipe" else 1)


@given(st.integers(1, 10), st.integers(1, 4))
def test_equal_times_give_zb_h1_a_third_of_the_bubble_of_1f1b(p: int, times: int) -> None:
    m = 3 * p * times
    one = run("1f1b", p, m, (1, 1, 1)).step_seconds - 3 * m
    assert run("zb-h1", p, m, (1, 1, 1)).step_seconds - 3 * m == one / 3
