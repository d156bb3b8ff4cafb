"""Adaptive tables on several ranks: they decide as one process does, bit for bit, and so do resumed ones."""

import pytest
from adaptive_cases import contents, go_on, make, together, train, trained
from processes import on_ranks

STEPS = 60


@pytest.fixture(scope="module")
def alone():
    """What one process has after all steps."""
    embeddings = make(None)
    train(embeddings, 0, STEPS)
    return contents(embeddings)


def test_chunks_are_pruned_and_grow_again(alone):
    rows, _, figures = alone
    assert figures.counts.pruned > 500
    assert figures.counts.grown > 100
    assert set(figures.mean_dims) == {"a", "b", "c", "d"}
    # Rows of several lengths, and sketches with something in them.
    assert {columns for (name, _), (columns, _) in rows.items() if name == "a"} >= {(0, 4), (0, 8)}
    assert any(any(parts["weight"]) for (name, _), (_, parts) in rows.items() if name == "a.candidates")


@pytest.mark.parametrize(
    ("ranks", "turn", "ahead"),
    [(2, 0, 1), (4, 1, 0), *(pytest.param(4, 0, ahead, marks=pytest.mark.slow) for ahead in (0, 1, 3))],
)
def test_ranks_decide_as_one_process(alone, ranks, turn, ahead):
    rows, state, figures = together(on_ranks(ranks, trained, STEPS, turn, ahead))
    assert rows == alone[0]
    assert state == alone[1]
    assert (figures.counts, figures.mean_dims) == (alone[2].counts, alone[2].mean_dims)
    assert figures.bytes.weights == alone[2].bytes.weights


# In the middle of an interval and of a window of sums, at a ranking, at the end of a window.
@pytest.mark.parametrize(
    ("ranks", "steps"),
    [
        ((2, 1), (33, STEPS)),
        pytest.param((1, 4, 1), (17, 36, STEPS), marks=pytest.mark.slow),
        pytest.param((4, 2, 3, 1), (8, 22, 40, STEPS), marks=pytest.mark.slow),
    ],
)
def test_what_some_ranks_saved_any_others_go_on_with(alone, tmp_path, ranks, steps):
    found = None
    for turn, (world_size, last) in enumerate(zip(ranks, steps, strict=True)):
        if world_size == 1:
            found = go_on(tmp_path, last)
        else:
            found = together(on_ranks(world_size, go_on, tmp_path, last, turn))
    rows, state, _ = found
    assert rows == alone[0]
    assert state == alone[1]
