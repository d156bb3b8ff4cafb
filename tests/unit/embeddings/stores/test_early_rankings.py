"""Tables that forget are ranked again soon, whatever is resolved ahead and wherever a run was stopped."""

import itertools
import json

import pytest
import torch

import megalith as mg
from megalith.checkpoint.state import OptionalValues
from megalith.checkpoint.store import CheckpointStore
from stored_rows import rows_by_id

INTERVAL, CHANGE, LAST = 40, 130, 170
TABLES = [
    mg.TableSpec(name=name, rows=400, dim=8, features=(name,), store={"kind": "adaptive", "chunk": 4})
    for name in ("a", "b")
]
POLICY = mg.AdaptivePolicy(budget="12KiB", end_step=50, warm_up=4, interval=INTERVAL, gamma=0.99)
BATCH = 32


def batch(step):
    """Other ids of the first table are popular after the change."""
    generator = torch.Generator().manual_seed(step)
    first, second = (torch.rand(2, BATCH, generator=generator) ** 4 * 400).long()
    gradient = torch.randint(-8, 9, (BATCH, 16), generator=generator) / 16
    return torch.cat([399 - first if step >= CHANGE else first, second]), gradient


def collection():
    return mg.EmbeddingCollection(TABLES, mg.RowWiseAdaGrad(lr=0.05), seed=3, adaptive=POLICY)


def train(embeddings, last, ahead=0):
    """Trains up to a step, and says after which steps chunks were ranked."""
    resolved, ranked, offsets = [], [], torch.arange(2 * BATCH + 1)
    for step in range(embeddings.num_steps, last):
        while len(resolved) <= ahead and step + len(resolved) < last:
            ids, _ = batch(step + len(resolved))
            resolved.append(embeddings.resolve(embeddings.exchange(ids, offsets), trains=True))
        before = embeddings.adaptive().counts.rankings
        found = embeddings.finish_lookup(embeddings.start_lookup(resolved.pop(0)))
        found.pooled.backward(batch(step)[1])
        if embeddings.adaptive().counts.rankings > before:
            ranked.append(embeddings.num_steps)
    return ranked


def outcome(embeddings):
    return rows_by_id(embeddings), embeddings.policy_state(), embeddings.adaptive().counts


@pytest.fixture(scope="module")
def whole():
    embeddings = collection()
    return train(embeddings, LAST), *outcome(embeddings)


def test_a_table_that_forgot_is_ranked_after_2_4_8_steps_until_an_interval_has_passed(whole):
    ranked, _, state, counts = whole
    tables = json.loads(state["predictions"]["tables"])
    forgot = tables[0]["forgot_at"]
    assert CHANGE < forgot <= CHANGE + 10
    assert tables[1]["forgot_at"] is None
    early = [forgot + passed for passed in (2, 4, 8, 16, 32)]
    assert ranked == sorted({*range(INTERVAL, LAST + 1, INTERVAL), *early})
    assert state["last"] == ranked[-1]
    assert counts.pruned > 100
    assert counts.grown > 50


@pytest.mark.parametrize("ahead", [1, 3])
def test_what_lives_does_not_depend_on_what_is_resolved_ahead(whole, ahead):
    embeddings = collection()
    assert (train(embeddings, LAST, ahead), *outcome(embeddings)) == whole


def test_a_run_that_goes_on_between_two_early_rankings_is_an_uninterrupted_one(whole, tmp_path):
    ranked, rows, state, _ = whole
    first, second = next(pair for pair in itertools.pairwise(ranked) if pair[1] - pair[0] == 8)
    stopped = collection()
    train(stopped, first + 3)
    store = CheckpointStore(tmp_path)
    store.save(first + 3, state_of(stopped), {})
    again = collection()
    loaded = state_of(again)
    store.load(first + 3, loaded)
    again.num_steps = loaded["num_steps"]
    again.load_policy_state(loaded["adaptive"])
    later = train(again, LAST)
    assert later[0] == second
    assert later == [step for step in ranked if step > first]
    assert outcome(again)[:2] == (rows, state)


def state_of(embeddings):
    return {
        "tables": embeddings.table_states(),
        "num_steps": embeddings.num_steps,
        "adaptive": OptionalValues(embeddings.policy_state()),
    }
