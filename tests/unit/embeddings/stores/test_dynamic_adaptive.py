"""Chunks beneath dynamic tables: whatever row an id has, and whenever it comes and goes."""

import itertools

import pytest
import torch
from dynamic_chunks import (
    ROOMY,
    SHAPES,
    STEPS,
    batch,
    check_rows_are_of_ids,
    chunked_places,
    contents,
    gradients_of,
    loaded,
    make,
    same,
    state_of,
    tables,
    train,
)

import megalith as mg
from megalith.checkpoint.store import CheckpointStore
from megalith.core.errors import ConfigError
from megalith.embeddings.optimizers import LAMB, SGD, AdaGrad, Adam, RowWiseAdaGrad
from megalith.embeddings.stores import make_stores
from megalith.ops.ids.policies import bound_for
from megalith.ops.stores.start_values import start_values_twin


@pytest.fixture(scope="module")
def pruned():
    """A run under a tight budget."""
    embeddings = make()
    outputs = train(embeddings, 0, STEPS, check=lambda: check_rows_are_of_ids(embeddings))
    return embeddings, outputs, contents(embeddings)


def test_chunks_are_pruned_and_grow_and_ids_come_and_go(pruned):
    embeddings, _, (rows, _) = pruned
    counts, figures = embeddings.dynamic_counts(), embeddings.adaptive()
    assert min(counts.evicted, counts.expired_by_batches, counts.refused) > 50
    assert figures.counts.pruned > 300
    assert figures.counts.grown > 50
    assert set(figures.tables) == {"a", "b", "c", "d", "e"}
    columns = [own for (name, _), (own, _) in rows.items() if name == "a"]
    assert {(0, 0), (0, 4), (0, 8)} <= set(columns)
    assert any(any(parts["weight"]) for (name, _), (_, parts) in rows.items() if name == "a.candidates")


@pytest.mark.parametrize(
    "optimizer", [Adam(lr=0.05), SGD(lr=0.1), RowWiseAdaGrad(lr=0.1), AdaGrad(lr=0.1), LAMB(lr=0.01)]
)
def test_with_room_for_all_chunks_it_is_dynamic_over_dense_bit_for_bit(optimizer):
    chunked, dense = make(ROOMY, optimizer, beside=False), make(None, optimizer, "dense", beside=False)
    assert same(train(chunked, 0, STEPS), train(dense, 0, STEPS))
    assert chunked.dynamic_counts()._replace(map_bytes=0) == dense.dynamic_counts()._replace(map_bytes=0)
    mine, theirs = contents(chunked)[0], contents(dense)[0]
    for key, (columns, parts) in theirs.items():
        assert mine[key][0] == columns
        assert {name: mine[key][1][name] for name in parts} == parts
    with torch.no_grad():
        assert torch.equal(*(own(*batch(7, own.features)) for own in (chunked, dense)))


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_results_do_not_depend_on_how_far_ahead_ids_are_resolved(pruned, ahead):
    embeddings = make()
    assert same(train(embeddings, 0, STEPS, ahead=ahead), pruned[1])
    assert contents(embeddings) == pruned[2]


@pytest.mark.parametrize("ahead", [0, 2])
def test_chunks_on_disk_are_those_in_memory_also_after_a_checkpoint(pruned, tmp_path, monkeypatch, ahead):
    monkeypatch.setattr(make_stores, "LEAST_ROWS", 4)
    memory = mg.TieredMemory(dram="40KiB", path=tmp_path / "rows")
    first = make(memory=memory)
    outputs = train(first, 0, 17, ahead=ahead, check=lambda: check_rows_are_of_ids(first))
    assert first.counts().reads > 0
    CheckpointStore(tmp_path / "saved").save(17, state_of(first), {})
    memory = memory.model_copy(update={"path": tmp_path / "others", "dram": 24 << 10})
    again = loaded(make(memory=memory), CheckpointStore(tmp_path / "saved"), 17)
    assert contents(again) == contents(first)
    outputs += train(again, 17, STEPS, ahead=ahead)
    assert again.counts().reads > 0
    assert same(outputs, pruned[1])
    assert contents(again) == pruned[2]


@pytest.mark.parametrize("middle", [3, 12, 17, 30])
def test_a_resumed_run_is_an_uninterrupted_one(pruned, tmp_path, middle):
    """Ids get other rows as they are loaded: nothing may depend on them."""
    first = make()
    outputs = train(first, 0, middle)
    CheckpointStore(tmp_path).save(middle, state_of(first), {})
    again = loaded(make(), CheckpointStore(tmp_path), middle)
    assert contents(again) == contents(first)
    if middle > 10:
        rows = [
            {
                int(id_): int(row)
                for block in store.ids.scan(0, 1 << 20)
                for id_, row in zip(*block[:2], strict=True)
            }
            for store in (first.stores.dynamic[0], again.stores.dynamic[0])
        ]
        assert rows[0].keys() == rows[1].keys()
        assert rows[0] != rows[1]
    outputs += train(again, middle, STEPS, check=lambda: check_rows_are_of_ids(again))
    assert same(outputs, pruned[1])
    assert contents(again) == pruned[2]


def test_a_state_dict_goes_on_like_the_collection_it_was_taken_from(pruned):
    first = make()
    train(first, 0, 15)
    again = make()
    again.load_state_dict(first.state_dict())
    train(again, 15, STEPS)
    assert contents(again) == pruned[2]


def test_an_id_that_leaves_takes_its_bytes_with_it_and_begins_anew():
    store = {"kind": "dynamic", "bound": bound_for(100), "over": {"kind": "adaptive"}}
    table = mg.TableSpec(name="t", dim=16, features=("f",), store=store)
    embeddings = mg.EmbeddingCollection([table], SGD(lr=0.5), seed=3, adaptive=ROOMY)
    ((_, _, inner, own),) = chunked_places(embeddings)
    ids = torch.arange(80) * 7046029254386353131

    def look_up(some, gradient=1.0):
        out = embeddings(some, torch.arange(len(some) + 1))
        out.backward(torch.full_like(out, gradient))
        return out.detach()

    start = start_values_twin(embeddings.stores.dynamic[0].starts[0], ids)
    assert torch.equal(look_up(ids), start)
    row_bytes = inner.pool.statistics().row_bytes[-1]
    used = inner.used_bytes()
    assert used == embeddings.dynamic_counts().ids * row_bytes
    # As many others as there are rows: all of the first ones leave.
    for number in range(3):
        look_up(torch.arange(1000 + 500 * number, 1500 + 500 * number))
    count = embeddings.dynamic_counts().ids
    assert count == bound_for(100)
    assert inner.used_bytes() == count * row_bytes > used
    assert not inner.pool.masks(own, torch.arange(count)).eq(0).any()
    assert torch.equal(look_up(ids[:20], 0.0), start[:20])
    check_rows_are_of_ids(embeddings)


def test_what_leaves_gives_room_to_what_is_missed():
    """Ids expire all at once: others have their chunks at the next ranking."""
    store = {
        "kind": "dynamic",
        "bound": bound_for(240),
        "expiry": {"batches": 3, "interval": 1},
        "over": {"kind": "adaptive"},
    }
    table = mg.TableSpec(name="t", dim=16, features=("f",), store=store)
    policy = mg.AdaptivePolicy(budget="12KiB", chunk=4, end_step=2, warm_up=1, interval=2, begin_ratio=3)
    embeddings = mg.EmbeddingCollection([table], SGD(lr=0.5), seed=3, adaptive=policy)
    ((_, _, inner, _),) = chunked_places(embeddings)
    used = []
    for step in range(12):
        ids = torch.arange(120) + 1000 * (step // 6)
        embeddings(ids, torch.arange(121)).sum().backward()
        used.append(inner.used_bytes())
        check_rows_are_of_ids(embeddings)
    assert used[5] > 3000
    ids = embeddings.dynamic_counts()
    assert ids.expired_by_batches == 120
    assert ids.ids == 120
    # Only the second 120 have chunks, as many as the first had.
    assert used[11] > 3000


def test_ids_without_a_chunk_read_zeros_and_count_as_pruned_rows_do(pruned):
    embeddings, _, (rows, _) = pruned
    bare = [one for (name, one), (columns, _) in rows.items() if name == "a" and columns == (0, 0)]
    some = [one for (name, one), (columns, _) in rows.items() if name == "a" and columns == (0, 8)]
    features = embeddings.features
    values = {"a": torch.tensor([bare[0], some[0]])}
    ids = torch.cat([values.get(feature, torch.zeros(0, dtype=torch.int64)) for feature in features])
    lengths = [1, 1] + [0, 0] * (len(features) - 1)
    with torch.no_grad():
        out = embeddings(ids, torch.tensor([0, *itertools.accumulate(lengths)]))
    assert not out[0, :16].any()
    assert out[1, :16].tolist() == [*rows["a", some[0]][1]["weight"], *[0.0] * 8]


def test_all_bytes_fit_the_budget_and_shared_rows_are_charged():
    store = {"kind": "dynamic", "bound": 6000, "over": {"kind": "adaptive"}}
    table = mg.TableSpec(name="t", dim=16, features=("f",), store=store)
    policy = mg.AdaptivePolicy(budget="128KiB", chunk=4, end_step=8, warm_up=2, interval=4, gamma=0.95)
    embeddings = mg.EmbeddingCollection([table], RowWiseAdaGrad(lr=0.1), seed=3, adaptive=policy)
    budget = embeddings.stores.budget
    assert budget.shared_bytes == 4 * 16 + 4 + 12 + 11
    for step in range(20):
        generator = torch.Generator().manual_seed(step)
        ids = (torch.rand(2000, generator=generator) ** 3 * 10_000).long() + 200 * step
        out = embeddings(ids, torch.arange(2001))
        out.backward(torch.randn(out.shape, generator=generator))
    counts = embeddings.dynamic_counts()
    assert counts.evicted > 1000
    taken = embeddings.adaptive().bytes
    assert 0.8 * budget.schedule.final < taken.memory < 1.02 * budget.schedule.final
    everything = embeddings.bytes()
    # Beside them the map of ids, which knows the id of every row: eight bytes, the shared one included.
    assert everything.bookkeeping >= taken.bookkeeping + 8 * 6001
    assert everything.weights == taken.weights
    check_rows_are_of_ids(embeddings)


def test_shared_rows_are_whole_and_train(pruned):
    rows = pruned[2][0]
    for name, dim in (("a.unknown", 16), ("b.unknown", 8), ("c.unknown", 16)):
        assert rows[name, 0][0] == (0, dim)
    assert all(any(rows[name, 0][1]["second"]) for name in ("a.unknown", "c.unknown"))
    assert ("d.unknown", 0) not in rows


def test_dense_rows_load_as_chunks_and_chunks_as_dense_rows(pruned, tmp_path):
    embeddings, _, (rows, _) = pruned
    store = CheckpointStore(tmp_path)
    state = state_of(embeddings)
    store.save(1, {"tables": {name: own for name, own in state["tables"].items() if name[0] in "abcd"}}, {})
    dense = make(None, over="dense", beside=False)
    store.load(1, {"tables": dense.table_states()})
    found = contents(dense)[0]
    for (name, one), (_, parts) in rows.items():
        if name in SHAPES:
            dim = SHAPES[name]["dim"]
            columns, own = found[name, one]
            assert columns == (0, dim)
            for part in ("weight", "first", "second"):
                assert own[part] == parts[part] + [0.0] * (dim - len(parts[part]))
            assert [own[part] for part in ("last", "score", "time")] == [
                parts[part] for part in ("last", "score", "time")
            ]
    again = make(ROOMY, beside=False)
    store.save(2, {"tables": dense.table_states()}, {})
    store.load(2, {"tables": again.table_states()})
    back = contents(again)[0]
    for key, (columns, parts) in found.items():
        assert back[key][0] == columns
        assert {name: back[key][1][name] for name in parts} == parts
    check_rows_are_of_ids(again)


@pytest.mark.parametrize("bound", [80, 400])
def test_another_bound_keeps_the_best_ids_with_their_chunks(pruned, tmp_path, bound):
    embeddings, _, (rows, _) = pruned
    CheckpointStore(tmp_path).save(1, state_of(embeddings), {})
    other = loaded(make(bound=bound), CheckpointStore(tmp_path), 1)
    found = contents(other)[0]
    for name in SHAPES:
        kept = [one for own, one in found if own == name]
        assert 0 < len(kept) <= bound
        assert all(found[name, one] == rows[name, one] for one in kept)
    train(other, STEPS, STEPS + 5, check=lambda: check_rows_are_of_ids(other))


def test_ids_are_exported_whole_and_imported_with_all_chunks(pruned):
    embeddings, _, (rows, _) = pruned
    blocks = list(embeddings.export_ids("a", 1 << 11))
    exported = {
        int(one): (weight.tolist(), float(score))
        for block in blocks
        for one, weight, score in zip(block.ids, block.parts["weight"], block.parts["score"], strict=True)
    }
    assert exported.keys() == {one for name, one in rows if name == "a"}
    for one, (weight, _) in exported.items():
        live = rows["a", one][1]["weight"]
        assert weight == live + [0.0] * (16 - len(live))
    other = make(ROOMY, bound=bound_for(len(exported)))
    assert other.import_ids("a", blocks) == len(exported)
    again = contents(other)[0]
    for one, (weight, _) in exported.items():
        assert again["a", one][0] == (0, 16)
        assert again["a", one][1]["weight"] == weight
    # Into a full table of another run: some leave, with their chunks.
    full = make()
    train(full, 20, 40)
    assert 0 < full.import_ids("a", blocks) <= 150
    check_rows_are_of_ids(full)
    train(full, 40, 45, check=lambda: check_rows_are_of_ids(full))


def test_rows_that_move_under_a_batch_are_found_again(monkeypatch):
    """A lookup that waits while others rank and compact takes its step on the rows as they lie then."""
    # Which values are the largest is known only of rows as they were read.
    monkeypatch.setitem(SHAPES, "d", {**SHAPES["d"], "pooling": "sum"})
    embeddings = make()
    train(embeddings, 0, 17)
    waiting = embeddings.finish_lookup(
        embeddings.start_lookup(embeddings.resolve(embeddings.exchange(*batch(50)), trains=True))
    )
    before = [inner.pool.generation for *_, inner, _ in chunked_places(embeddings)]
    train(embeddings, 17, 19)
    assert all(
        inner.pool.generation > old
        for old, (*_, inner, _) in zip(before, chunked_places(embeddings), strict=True)
    )
    torch.autograd.backward(*gradients_of(waiting, 50))
    check_rows_are_of_ids(embeddings)
    train(embeddings, 19, 24)


def test_what_cannot_be_is_refused_in_a_sentence():
    table = tables(beside=False)[0]
    with pytest.raises(ConfigError, match="'a' is adaptive: say how much memory"):
        mg.EmbeddingCollection([table], seed=3)
    sized = {"kind": "dynamic", "bound_bytes": "1MiB", "over": {"kind": "adaptive"}}
    with pytest.raises(ConfigError, match=r"bound_bytes over adaptive rows.*give it `bound` rows"):
        mg.EmbeddingCollection(
            [mg.TableSpec(name="a", dim=4, features=("a",), store=sized)], seed=3, adaptive=ROOMY
        )
    waiting = mg.EmbeddingCollection([table], seed=3, adaptive=ROOMY, accumulate=True)
    for step in range(2):
        waiting(torch.arange(5) + step, torch.arange(6)).sum().backward()
    with pytest.raises(ConfigError, match="'a' is adaptive, and gradients of several lookups beside dynamic"):
        waiting.step()
