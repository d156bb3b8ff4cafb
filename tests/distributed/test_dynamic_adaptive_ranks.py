"""Chunks beneath dynamic tables on several ranks: they decide as one process does, bit for bit."""

import json

import pytest
from dynamic_adaptive_cases import go_on, together, trained
from processes import on_ranks
from small_runs import losses, outcome, train

from megalith.core.files import read_jsonl

STEPS = 40


@pytest.fixture(scope="module")
def alone():
    """What one process has after all steps."""
    return together([trained(STEPS)])


def test_ids_come_and_go_and_their_chunks_change(alone):
    rows, _, changes, counts = alone
    assert min(counts.evicted, counts.refused) > 300
    assert counts.expired_by_batches > 20
    assert changes.pruned > 200
    assert changes.grown > 50
    assert {columns for (name, _), (columns, _) in rows.items() if name == "a"} >= {(0, 0), (0, 4), (0, 8)}
    assert any(any(parts["weight"]) for (name, _), (_, parts) in rows.items() if name == "a.candidates")
    assert all(any(rows[name, 0][1]["second"]) for name in ("a.unknown", "c.unknown"))


@pytest.mark.parametrize(
    ("ranks", "turn", "ahead"),
    [(2, 0, 1), (4, 1, 0), *(pytest.param(4, 2, ahead, marks=pytest.mark.slow) for ahead in (0, 1, 3))],
)
def test_ranks_decide_as_one_process(alone, ranks, turn, ahead):
    rows, state, changes, counts = together(on_ranks(ranks, trained, STEPS, turn, ahead))
    assert rows == alone[0]
    assert state == alone[1]
    assert (changes, counts) == alone[2:]


@pytest.mark.parametrize(
    ("ranks", "steps"),
    [
        ((2, 4), (15, STEPS)),
        pytest.param((1, 4, 1), (9, 24, STEPS), marks=pytest.mark.slow),
        pytest.param((4, 2, 3, 1), (8, 18, 31, STEPS), marks=pytest.mark.slow),
    ],
)
def test_what_some_ranks_saved_any_others_go_on_with(alone, tmp_path, ranks, steps):
    found = None
    for turn, (world_size, last) in enumerate(zip(ranks, steps, strict=True)):
        if world_size == 1:
            found = go_on(tmp_path, last)
        else:
            found = together(on_ranks(world_size, go_on, tmp_path, last, turn))
    assert found[0] == alone[0]
    assert found[1] == alone[1]


def came_and_went(run):
    entries = [line["dynamic"] for line in read_jsonl(run.metrics) if line["kind"] == "train"]
    return [{key: value for key, value in entry.items() if key != "map_bytes"} for entry in entries]


def test_a_recipe_trains_on_ranks_with_the_ids_of_one_process(tiny_recipe, tmp_path):
    """Under the automatic plan; where ids without a row read zeros also the bits of any depth."""
    store = {"kind": "dynamic", "bound": 300, "unknown": "zeros", "over": {"kind": "adaptive"}}
    given = (
        "embeddings.stores=" + json.dumps({"*": store}),
        "adaptive={ratio: 3, chunk: 4, interval: 4, warm_up: 4}",
        *("model.dim=16", "train.epochs=1"),
    )
    alone = train(tiny_recipe, tmp_path / "alone", 1, *given)
    ranks = train(tiny_recipe, tmp_path / "ranks", 2, *given)
    again = train(tiny_recipe, tmp_path / "again", 2, *given, "train.pipeline=0")
    assert came_and_went(ranks) == came_and_went(alone)
    assert outcome(again) == outcome(ranks)
    changes = [line["adaptive"] for line in read_jsonl(ranks.metrics) if line["kind"] == "train"]
    assert sum(entry["pruned"] for entry in changes) > 1000
    # Gradients of the dense part are summed in another order, and utilities are rounded by what they get.
    assert losses(ranks) == pytest.approx(losses(alone), rel=1e-3)
