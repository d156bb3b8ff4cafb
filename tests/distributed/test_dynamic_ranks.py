"""Dynamic tables on several ranks: they decide as one process does, bit for bit, and so do resumed ones."""

import pytest
from dynamic_cases import BOUNDS, changed_policy, go_on, moved_ids, together, trained, weighted
from processes import on_ranks

STEPS = 30


@pytest.fixture(scope="module")
def alone():
    """What one process has after all steps, and which ids left on the way."""
    return trained(STEPS)


def test_ids_come_and_go_and_share_a_row(alone):
    rows, counts, left = alone
    assert counts.evicted > 300
    assert counts.expired_by_batches > 20
    assert counts.refused > 300
    assert {table for _, table, *_ in left} == set(BOUNDS)
    assert {name for name, _ in rows if name.endswith(".unknown")} == {
        "a.unknown",
        "b.unknown",
        "c.unknown",
        "d.unknown",
    }
    # It is trained: Adam's second moments are not 0.
    assert all(any(rows[name, 0]["second"]) for name in ("a.unknown", "c.unknown"))


@pytest.mark.parametrize(
    ("ranks", "turn", "ahead", "deduplicate"),
    [
        (2, 0, 1, True),
        (4, 1, 0, False),
        *(pytest.param(4, 2, ahead, True, marks=pytest.mark.slow) for ahead in (0, 1, 3)),
    ],
)
def test_ranks_decide_as_one_process(alone, ranks, turn, ahead, deduplicate):
    found = on_ranks(ranks, trained, STEPS, turn, ahead, None, deduplicate)
    rows, counts = together(found)
    assert rows == alone[0]
    assert counts == alone[1]
    assert sorted(one for *_, left in found for one in left) == sorted(alone[2])


def test_rows_on_disk_underneath_change_nothing(alone, tmp_path):
    rows, counts = together(on_ranks(3, trained, STEPS, 0, 1, tmp_path))
    assert (rows, counts) == alone[:2]


@pytest.mark.parametrize(
    ("ranks", "steps"),
    [
        ((2, 4), (13, STEPS)),
        ((4, 2, 3, 1), (5, 12, 20, STEPS)),
        pytest.param((1, 4, 1), (9, 18, STEPS), marks=pytest.mark.slow),
    ],
)
def test_what_some_ranks_saved_any_others_go_on_with(alone, tmp_path, ranks, steps):
    """Each time over rows in memory or on disk, and under another plan."""
    found = None
    for turn, (world_size, last) in enumerate(zip(ranks, steps, strict=True)):
        rows = tmp_path / f"rows-{turn}" if turn % 2 else None
        if world_size == 1:
            found = go_on(tmp_path / "saved", last, turn, rows)
        else:
            found = together(on_ranks(world_size, go_on, tmp_path / "saved", last, turn, rows))
    assert found[0] == alone[0]


@pytest.mark.parametrize("bounds", [{"a": 90, "b": 64}, {"a": 400, "c": 131}], ids=["smaller", "larger"])
def test_another_bound_on_another_number_of_ranks_is_that_of_one_process(tmp_path, bounds):
    """A smaller table keeps the best ids by its policy, whoever has them."""
    for folder in ("one", "three"):
        together(on_ranks(2, go_on, tmp_path / folder, 11))
    rows, _ = go_on(tmp_path / "one", 20, 0, None, bounds)
    found, _ = together(on_ranks(3, go_on, tmp_path / "three", 20, 1, None, bounds))
    assert found == rows


@pytest.mark.parametrize("bound", [70, 300])
def test_ids_are_exported_from_all_ranks_and_imported_into_theirs(bound):
    exported, count, taken = moved_ids(10, bound)
    assert len(exported) > 80
    assert count == len(taken) <= bound
    assert all(taken[one] == exported[one] for one in taken)
    for of_rank in on_ranks(3, moved_ids, 10, bound):
        assert of_rank == (exported, count, taken)


def test_shared_rows_and_sample_weights_get_the_gradients_of_one_process():
    rows, gradients = weighted(12)
    found = on_ranks(2, weighted, 12)
    merged = {key: parts for own, _ in found for key, parts in own.items()}
    assert merged == rows
    assert [[*one, *other] for one, other in zip(found[0][1], found[1][1], strict=True)] == gradients


@pytest.mark.parametrize("ranks", [1, 3])
def test_scores_of_another_policy_load_from_any_number_of_ranks(tmp_path, ranks):
    """A use counts as one whatever the policy was, and whoever saved its partition."""
    saved = on_ranks(2, changed_policy, tmp_path, True)[0]
    if ranks == 1:
        loaded = changed_policy(tmp_path, False)
    else:
        loaded = on_ranks(ranks, changed_policy, tmp_path, False)[0]
    assert loaded == saved
    assert {score for _, (_, score) in loaded} == {2.0 * count for count in range(1, 8)}
