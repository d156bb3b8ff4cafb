"""Axes over levels: what groups touch, and what a pipeline's messages cross."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.core.errors import ConfigError, PlanError
from megalith.cost.collectives import LevelSpan, group_size
from megalith.explore.job import Parallel
from megalith.explore.placement import axis_pieces, boundary, expert_groups, group, split_group, stage_device
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Cluster, Level


def cluster(*counts: int) -> Cluster:
    link = catalog().link("ib-ndr400x8")
    return Cluster(
        "c", catalog().device("h200"), tuple(Level(f"l{i}", n, link) for i, n in enumerate(counts))
    )


def plan(**axes: object) -> Parallel:
    return Parallel.model_validate({"global_batch": 1024, **axes})


def test_the_innermost_axis_stays_in_the_node() -> None:
    parallel, machine = plan(tp=8, dp=4, pp=2), cluster(8, 8)
    assert group(parallel, machine, ("tp",)) == (LevelSpan(8, 1),)
    assert group(parallel, machine, ("dp",)) == (LevelSpan(1, 1), LevelSpan(4, 8))


def test_tensor_parallelism_over_two_nodes_shares_nothing() -> None:
    assert group(plan(tp=16, dp=4), cluster(8, 8), ("tp",)) == (LevelSpan(8, 1), LevelSpan(2, 1))


def test_replicas_in_and_out_of_nodes() -> None:
    assert group(plan(tp=2, dp=32), cluster(8, 8), ("dp",)) == (LevelSpan(4, 1), LevelSpan(8, 2))


def test_a_cut_axis_keeps_runs_together() -> None:
    parallel = plan(tp=8, pp=8, dp=4, placement=("tp", "pp:4", "dp", "pp:2"))
    machine = cluster(8, 16, 2)
    assert [stage_device(parallel, stage) for stage in range(8)] == [0, 8, 16, 24, 128, 136, 144, 152]
    crossed = [boundary(parallel, machine, stage, stage + 1).level for stage in range(7)]
    assert crossed == [1, 1, 1, 2, 1, 1, 1]
    # Over the slow boundary all replicas and tensor-parallel ranks of the building send at once.
    assert boundary(parallel, machine, 3, 4).sharing == 8 * 4


def test_a_group_splits_into_inside_and_across() -> None:
    inside, across = split_group((LevelSpan(4, 2), LevelSpan(8, 2), LevelSpan(2, 2)), 2)
    assert inside == (LevelSpan(4, 2), LevelSpan(8, 2))
    assert across == (LevelSpan(1, 1), LevelSpan(1, 1), LevelSpan(2, 64))


def test_experts_take_the_innermost_replicas() -> None:
    routed = expert_groups(plan(tp=1, ep=8, dp=64), cluster(8, 8))
    assert routed.experts == (LevelSpan(8, 1),)
    assert group_size(routed.replicas) == 8


def test_experts_fold_over_the_tensor_parallel_group() -> None:
    # NVIDIA's Qwen3-235B on 256 H100: 16 replicas of two ranks hold 32 groups of experts.
    routed = expert_groups(plan(tp=2, pp=8, dp=16, ep=32), cluster(8, 32))
    assert group_size(routed.tensor) == 1
    assert routed.experts == (LevelSpan(8, 1), LevelSpan(4, 1))
    assert group_size(routed.replicas) == 1


def test_experts_are_cut_like_the_rest_where_that_fits() -> None:
    routed = expert_groups(plan(tp=4, dp=8, ep=8), cluster(8, 8))
    assert routed.tensor == (LevelSpan(4, 1),)
    assert group_size(routed.experts) == 8
    alone = expert_groups(plan(tp=4, dp=8, ep=8, etp=1), cluster(8, 8))
    assert group_size(alone.tensor) == 1
    assert alone.experts == (LevelSpan(8, 1),)
    assert group_size(alone.replicas) == 4


def test_experts_that_do_not_fold_are_refused_with_what_would() -> None:
    with pytest.raises(
        PlanError, match=r"etp x ep = 4 x 3 does not divide tp x cp x dp = 32; take parallel.ep=1"
    ):
        expert_groups(plan(tp=4, dp=8, ep=3), cluster(8, 8))


@pytest.mark.parametrize(
    ("placement", "sentence"),
    [
        (("tp", "pp:3", "dp"), "'pp:3' does not divide"),
        (("tp", "pp:2", "dp"), "add 'pp:4' where the rest goes"),
        (("tp", "xp"), "unknown axis 'xp'"),
        (("tp", "tp"), "names 'tp' 2 times; name it once, or cut it with counts, such as tp:2"),
        (("tp", "pp:x"), "must be an axis and a count"),
    ],
)
def test_a_placement_that_does_not_add_up_is_refused(placement: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        axis_pieces(plan(tp=8, pp=8, dp=4, placement=placement))


powers = st.sampled_from([1, 2, 4, 8])


@settings(deadline=None)
@given(
    powers, powers, powers, st.permutations(["tp", "dp", "pp"]), st.sampled_from([(8, 8, 8), (4, 4, 2, 16)])
)
def test_groups_touch_what_counting_devices_says(
    tp: int, dp: int, pp: int, order: list[str], counts: tuple[int, ...]
) -> None:
    parallel, machine = plan(tp=tp, dp=dp, pp=pp, placement=tuple(order)), cluster(*counts)
    sizes = {"tp": tp, "dp": dp, "pp": pp}
    strides = {axis: prod(sizes[inner] for inner in order[: order.index(axis)]) for axis in order}
    for axis in order:
        spans = group(parallel, machine, (axis,))
        assert group_size(spans) == sizes[axis]
        members = [position * strides[axis] for position in range(sizes[axis])]
        for index, span in enumerate(spans):
            outer, inner = machine.devices_within(index), machine.devices_within(index - 1)
            touched = {member // inner for member in members if member // outer == 0}
            assert span.ranks == len(touched)
    # Every device number appears once.
    coordinates = product(*(range(sizes[axis]) for axis in order))
    numbers = {sum(c * strides[axis] for c, axis in zip(at, order, strict=True)) for at in coordinates}
    assert numbers == set(range(tp * dp * pp))
