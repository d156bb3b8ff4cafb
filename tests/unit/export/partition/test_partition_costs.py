"""Predictions of a partition, against requests worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_machines import machine, setting, table

from megalith.core.errors import ConfigError, PlanError
from megalith.export.partition.guidance import CHANGES, best_of, guidance
from megalith.export.partition.lessons import lessons
from megalith.export.partition.partitioner import CardPartitioner
from megalith.export.partition.plan import partition
from megalith.export.partition.prediction import HOST, RequestTimes, Setting
from megalith.export.partition.request_bytes import MovingLess

MICRO = 1e-6


def times(given: Setting) -> RequestTimes:
    maker = CardPartitioner(given)
    placement = maker.choose()
    assert placement is not None
    return maker.times(placement)


def test_two_cards_by_hand() -> None:
    """a: 1,000 lookups of 64 B, 4 B x (1,000 ids + 100 lengths), 100 vectors of 64 B; b: 3,000 lookups."""
    made = partition(setting(table("a", lookups=10), table("b", lookups=30)))
    assert [card.tables for card in made.cards] == [("a",), ("b",)]
    a, b = made.cards
    # Ids at 1 GB/s, rows and vectors at 10 GB/s, vectors at 1 GB/s.
    assert a.sparse_seconds == pytest.approx((4.4 + 6.4 + 0.64 + 6.4) * MICRO)
    assert b.sparse_seconds == pytest.approx((12.4 + 19.2 + 0.64 + 6.4) * MICRO)
    # Each runs the dense part (10 us, 2,000 B in, 200 B out) for every second request.
    assert b.busy_seconds == pytest.approx(
        {
            "memory": 19.84 * MICRO,
            "compute": 5 * MICRO,
            "link_in": (12.4 + 0.5 * (2.0 + 6.4)) * MICRO,
            "link_out": (0.5 * 6.4 + 0.5 * 0.2) * MICRO,
        }
    )
    predicted = made.prediction
    # The host copies 18,800 B once, at 1 GB/s each for reading and writing.
    host = 1e-3 + 37.6 * MICRO
    assert predicted.latency_parts == pytest.approx(
        {
            "host": host,
            "ids to cards": 12.4 * MICRO,
            "lookups": 19.84 * MICRO,
            "vectors between cards": 6.4 * MICRO,
            "dense inputs": 0,
            "dense part": 10 * MICRO,
            "scores": 0.2 * MICRO,
        }
    )
    assert predicted.latency_seconds == pytest.approx(sum(predicted.latency_parts.values()))
    assert predicted.slowest_card_seconds == b.sparse_seconds
    # One core of the host is busy longest.
    assert predicted.bound_by == "host cores"
    assert predicted.requests_per_second == pytest.approx(1 / host)
    assert predicted.requests_per_second_per_watt == pytest.approx(1 / host / 120)


def test_one_card_holds_all_and_the_others_are_replicas() -> None:
    made = partition(setting(table("a", 300), table("b", 300), on=machine(cards=5)))
    assert (len(made.cards), made.replicas, made.idle_cards) == (1, 5, 0)
    assert made.prediction.latency_parts["vectors between cards"] == 0
    two = partition(setting(table("a"), table("b"), on=machine(cards=5)))
    assert (len(two.cards), two.replicas, two.idle_cards) == (2, 2, 1)


def test_cards_that_would_be_left_over_join_the_replicas() -> None:
    tables = [table(str(number)) for number in range(4)]
    made = partition(setting(*tables, on=machine(cards=6)))
    assert (len(made.cards), made.replicas) == (6, 1)
    assert sorted(len(card.tables) for card in made.cards) == [0, 0, 1, 1, 1, 1]


def test_dense_inputs_come_behind_the_ids_while_rows_are_looked_up() -> None:
    given = setting(table("a", 100, lookups=1))
    wide = replace(given.model.dense, num_inputs=1000)
    found = times(replace(given, model=replace(given.model, dense=wide))).latency()
    # 200,000 B take 200 us; lookups (0.64 + 0.64 us) are done long before.
    assert found["dense inputs"] == pytest.approx((200 - 1.28) * MICRO)


def test_user_features_are_looked_up_once() -> None:
    given = setting(table("a", lookups=10), table("u", lookups=10))
    once = replace(given, model=given.model.with_user_features(["u"]))
    assert partition(once).user_features == ("u",)
    assert [card.lookups for card in partition(once).cards] == [1000, 10]
    every = replace(once, moving=MovingLess(user_once=False))
    assert [card.lookups for card in partition(every).cards] == [1000, 1000]


def test_small_tables_stay_on_the_host_where_that_moves_no_more() -> None:
    many = table("many", 0.5, lookups=40)
    few = table("few", 0.5, lookups=1)
    given = setting(table("a"), many, few)
    # 64 B of vector against 164 B of ids, and against 8 B.
    made = partition(given)
    assert made.host_tables == ("many",)
    assert made.host_table_bytes == 500_000
    assert partition(given, small_bytes=0).host_tables == ()
    assert CardPartitioner(given).place("platform", 1)[1] == HOST  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "ids", "vectors"),
    [("narrow_ids", 8800, 6400), ("half_vectors", 4400, 12800), ("used_bytes_only", 30800, 44800)],
)
def test_bytes_of_a_request_without_a_lesson(change: str, ids: float, vectors: float) -> None:
    given = setting(table("a"))
    work = times(replace(given, moving=replace(given.moving, **{change: False}))).work[0]
    assert (work.ids, work.vectors) == (ids, vectors)


def test_lessons_never_cost() -> None:
    given = setting(table("a"), table("b"), table("u"), on=machine(cards=3))
    for lesson in lessons(replace(given, model=given.model.with_user_features(["u"]))):
        assert lesson.latency is not None
        assert lesson.rate is not None
        assert lesson.latency >= 1
        assert lesson.rate >= 1


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    given = setting(*(table(name) for name in "abcde"), on=machine(cards=3))
    with pytest.raises(PlanError) as refused:
        partition(given)
    said = str(refused.value)
    assert "(2.3 GiB in int8, the largest 'a' of 476.8 MiB) do not fit on 3 card with 761.7 MiB" in said
    assert said.endswith("; 5 such cards or cards of 1.5 GiB or --tables int4 (1.3 GiB) would do.")
    assert len(partition(replace(given, machine=machine(cards=5))).cards) == 5
    partition(replace(given, machine=machine(cards=3, megabytes=1600)))


def test_a_dense_part_that_fills_a_card_is_refused() -> None:
    given = setting(table("a"))
    heavy = replace(given.model.dense, weight_bytes=10**9)
    with pytest.raises(PlanError, match="The dense part of small takes 95"):
        partition(replace(given, model=replace(given.model, dense=heavy)))


def test_numbers_of_cards_that_the_host_lacks_are_refused() -> None:
    with pytest.raises(ConfigError, match="--cards 3: small has 2 cards; name 1 to 2"):
        partition(setting(table("a")), cards=3)
    with pytest.raises(PlanError, match="do not fit on 1 card "):
        partition(setting(table("a"), table("b")), cards=1)


def test_guidance_names_what_bounds() -> None:
    bound = machine(cards=2, gigabytes_per_second=0.001)
    fast_host = replace(bound.host, cores=1000)
    found = guidance(setting(table("a"), on=replace(bound, host=fast_host)))
    assert found.now is not None
    assert found.now.bound_by == "card memory"
    best = found.gains[0]
    assert {gain.change for gain in found.gains[:2]} == {"memory bandwidth", "cards"}
    assert best.rate == pytest.approx(2, rel=0.01)
    assert next(gain.rate for gain in found.gains if gain.change == "TOPS") == 1


def test_guidance_for_a_model_that_does_not_fit_says_what_would() -> None:
    found = guidance(setting(*(table(name) for name in "abcd"), on=machine(cards=2)))
    assert not found.fits
    assert found.gains == ()
    assert found.made_to_fit == ("card memory", "cards")


sizes = st.lists(
    st.tuples(st.floats(0.1, 400), st.floats(0, 200), st.sampled_from([4, 32, 128])), min_size=1, max_size=12
)


def drawn(listed: list[tuple[float, float, int]], cards: int) -> Setting:
    tables = [
        table(f"t{number}", megabytes, lookups, dim)
        for number, (megabytes, lookups, dim) in enumerate(listed)
    ]
    return setting(*tables, on=machine(cards))


@given(
    listed=sizes, cards=st.integers(1, 6), factor=st.floats(1, 10), change=st.sampled_from(["link", "memory"])
)
@settings(max_examples=60, deadline=None)
def test_more_bandwidth_is_never_slower(
    listed: list[tuple[float, float, int]], cards: int, factor: float, change: str
) -> None:
    given = drawn(listed, cards)
    maker = CardPartitioner(given)
    on = given.machine
    faster = (
        machine(cards, gigabytes_per_second=10 * factor)
        if change == "memory"
        else machine(cards, link=factor)
    )
    better = CardPartitioner(replace(given, machine=faster))
    for rule in ("platform", "platform and link"):
        card_of = maker.place(rule, cards)
        assert better.place(rule, cards) == card_of
        if card_of is None:
            continue
        before = RequestTimes(replace(given, machine=on), card_of, cards)
        after = RequestTimes(replace(given, machine=faster), card_of, cards)
        assert sum(after.latency().values()) <= sum(before.latency().values()) * (1 + 1e-9)
        assert after.rate(1)[0] >= before.rate(1)[0] * (1 - 1e-9)


@given(listed=sizes, cards=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_no_change_for_the_better_makes_the_rate_worse(
    listed: list[tuple[float, float, int]], cards: int
) -> None:
    given = drawn(listed, cards)
    now = best_of(given)
    for change in ("TOPS", "link", "host"):
        after = best_of(replace(given, machine=CHANGES[change](given.machine)))
        assert (now is None) == (after is None)
        if now is not None and after is not None and change != "link":
            assert after.requests_per_second >= now.requests_per_second * (1 - 1e-9)


@given(listed=sizes, cards=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_partitions_hold_every_table_once_within_memory_and_above_the_bound(
    listed: list[tuple[float, float, int]], cards: int
) -> None:
    given = drawn(listed, cards)
    if CardPartitioner(given).choose() is None:
        with pytest.raises(PlanError, match=r"would do\.$"):
            partition(given)
        return
    made = partition(given)
    placed = [name for card in made.cards for name in card.tables]
    assert sorted([*placed, *made.host_tables]) == sorted(one.name for one in given.model.tables)
    for card in made.cards:
        assert card.table_bytes + card.dense_bytes <= card.memory_bytes <= given.machine.card.bytes
    if placed:
        assert made.prediction.slowest_card_seconds >= made.comparison.lower_bound_seconds * (1 - 1e-9)
    assert all(value >= 0 for value in made.prediction.latency_parts.values())
