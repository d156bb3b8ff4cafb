"""Adaptive tables in a collection: what is read, saved and loaded, and what moves under a batch."""

import copy

import pytest
import torch

import megalith as mg
from megalith.checkpoint.manifest import read_manifest
from megalith.checkpoint.store import CheckpointStore
from megalith.core.errors import CheckpointError, ConfigError
from megalith.embeddings.stores.adaptive.settings import BudgetSchedule

ROWS = {"a": 400, "b": 90}
POLICY = mg.AdaptivePolicy(budget="48KiB", end_step=8, warm_up=2, interval=4, gamma=0.9)


def tables(store="adaptive", chunk=4, dtype="float32"):
    own = {"kind": "adaptive", "chunk": chunk} if store == "adaptive" else store
    return [
        mg.TableSpec(name="a", rows=400, dim=16, features=("a",), dtype=dtype, store=own, padding_index=3),
        mg.TableSpec(name="b", rows=90, dim=16, features=("b",), pooling="mean", dtype=dtype, store=own),
        mg.TableSpec(name="whole", rows=90, dim=2, features=("b",)),
    ]


def collection(store="adaptive", optimizer=None, policy=POLICY, **arguments):
    adaptive = policy if store == "adaptive" else None
    return mg.EmbeddingCollection(
        tables(store, **arguments), optimizer or mg.Adam(lr=0.05), seed=3, adaptive=adaptive
    )


def batch(step, size=40):
    """A few ids often, most rarely; two ids a bag of the second feature."""
    generator = torch.Generator().manual_seed(step)
    spread = torch.rand(3 * size, generator=generator) ** 3
    values = torch.cat([(spread[:size] * 400).long(), (spread[size:] * 90).long()])
    return values, torch.cat([torch.arange(size + 1), size + torch.arange(2, 2 * size + 1, 2)])


def train(embeddings, first, last):
    outputs = []
    for step in range(first, last):
        out = embeddings(*batch(step))
        (out * torch.arange(1.0, out.shape[1] + 1)).square().sum().backward()
        outputs.append(out.detach().clone())
    return outputs


def all_ids():
    values = torch.cat([torch.arange(ROWS["a"]), torch.arange(ROWS["b"]), torch.full((310,), 3)])
    return values, torch.cat([torch.arange(401), 400 + torch.arange(1, 401)])


@torch.no_grad()
def read_all(embeddings):
    values, offsets = all_ids()
    values[-310:] = 0
    return embeddings(values, offsets)


@pytest.mark.parametrize("optimizer", [mg.SGD(lr=0.1), mg.RowWiseAdaGrad(lr=0.1), mg.Adam(lr=0.05)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_fills_the_budget_and_no_more(optimizer, dtype):
    policy = mg.AdaptivePolicy(ratio=8, end_step=8, warm_up=2, interval=4, gamma=0.9)
    table = mg.TableSpec(name="t", rows=40_000, dim=16, features=("t",), dtype=dtype, store=tables()[0].store)
    embeddings = mg.EmbeddingCollection([table], optimizer, adaptive=policy)
    for step in range(20):
        generator = torch.Generator().manual_seed(step)
        values = (torch.rand(4000, generator=generator) ** 2 * 40_000).long()
        out = embeddings(values, torch.arange(4001))
        (out * torch.arange(1.0, 17)).square().sum().backward()
    figures = embeddings.adaptive()
    assert figures.counts.pruned > 0
    assert not figures.is_open
    assert 0 < figures.mean_dims["t"] < 4
    assert 0.8 * figures.budget_bytes < figures.bytes.memory < figures.budget_bytes
    assert figures.budget_bytes == figures.dense_bytes // 8


@pytest.mark.parametrize("optimizer", [mg.RowWiseAdaGrad(lr=0.05), mg.Adam(lr=0.05)])
@pytest.mark.parametrize("budget", [32, 64, 128, 256])
def test_small_tables_fit_their_budget(optimizer, budget):
    """Pages that are partly free, the sketch and all else of tables of 360 KiB to 1 MiB, at every step."""
    rows = (957, 4082, 80, 233)
    policy = mg.AdaptivePolicy(budget=f"{budget}KiB", end_step=10, warm_up=2, interval=4, gamma=0.98)
    specs = [
        mg.TableSpec(name=f"t{i}", rows=count, dim=16, features=(f"f{i}",), store=tables()[0].store)
        for i, count in enumerate(rows)
    ]
    embeddings = mg.EmbeddingCollection(specs, optimizer, seed=1, adaptive=policy)
    for step in range(24):
        generator = torch.Generator().manual_seed(step)
        values = [(torch.rand(512, generator=generator) ** 3 * count).long() for count in rows]
        out = embeddings(torch.cat(values), torch.arange(4 * 512 + 1))
        (out * torch.arange(1.0, out.shape[1] + 1)).square().sum().backward()
        figures = embeddings.adaptive()
        if step >= 12:
            assert figures.budget_bytes == budget << 10
            assert 0.7 * figures.budget_bytes < figures.bytes.memory <= figures.budget_bytes
    assert figures.bytes.sketch < figures.budget_bytes / 8


def test_a_row_that_lives_nowhere_reads_as_zeros_and_counts_in_a_mean():
    embeddings = collection()
    train(embeddings, 0, 18)
    pool = embeddings.stores.budget.stores[0].pool
    absent = [
        int((pool.masks(table, torch.arange(rows)) == 0).nonzero()[-1])
        for table, rows in enumerate((400, 90))
    ]
    with torch.no_grad():
        out = embeddings(torch.tensor([absent[0], 5, absent[1]]), torch.tensor([0, 1, 3]))
        single = embeddings(torch.tensor([absent[0], 5]), torch.tensor([0, 1, 2]))
    assert not out[0, :16].any()
    assert single[0, 16:20].all()
    torch.testing.assert_close(out[0, 16:32], single[0, 16:32] / 2)


def test_rows_that_move_between_a_lookup_and_its_update_are_found_again():
    """Two lookups, of which the first one's update ranks and moves records before that of the second."""
    embeddings, other = collection(), collection()
    train(embeddings, 0, 19)
    first, second = (embeddings(*batch(step)) for step in (19, 20))
    generation = embeddings.stores.budget.stores[0].pool.generation
    first.square().sum().backward()
    assert embeddings.stores.budget.stores[0].pool.generation > generation
    gradient = 2 * second.detach()
    # What the same gradient does to the same rows where nothing moved in between.
    other.load_state_dict(copy.deepcopy(embeddings.state_dict()))
    other(*batch(20)).backward(gradient)
    second.backward(gradient)
    assert torch.equal(read_all(embeddings), read_all(other))


@pytest.mark.parametrize("step", [14, 16])
def test_a_state_dictionary_brings_everything_back(step):
    embeddings = collection()
    train(embeddings, 0, step)
    state = copy.deepcopy(embeddings.state_dict())
    expected = train(embeddings, step, step + 12)
    other = collection()
    train(other, 100, 103)
    other.load_state_dict(state)
    found = train(other, step, step + 12)
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


def save(folder, embeddings):
    store = CheckpointStore(folder, file_bytes=4096)
    store.save(1, {"tables": embeddings.table_states()}, {})
    return store


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_checkpoint_of_chunks_loads_into_dense_tables_as_zeros_where_none_lives(tmp_path, dtype):
    embeddings = collection(dtype=dtype, optimizer=mg.RowWiseAdaGrad(lr=0.1))
    train(embeddings, 0, 18)
    dense = collection("dense", dtype=dtype, optimizer=mg.RowWiseAdaGrad(lr=0.1))
    save(tmp_path, embeddings).load(1, {"tables": dense.table_states()})
    assert torch.equal(read_all(dense), read_all(embeddings))
    assert (dense.weight("a") == 0).all(dim=1).any()
    again = collection(dtype=dtype, optimizer=mg.RowWiseAdaGrad(lr=0.1))
    train(again, 50, 60)
    save(tmp_path, embeddings).load(1, {"tables": again.table_states()})
    assert torch.equal(read_all(again), read_all(embeddings))


def test_a_dense_checkpoint_loads_with_all_chunks_live(tmp_path):
    dense = collection("dense")
    train(dense, 0, 9)
    embeddings = collection(policy=POLICY.model_copy(update={"end_step": 10**6, "warm_up": 10**5}))
    save(tmp_path, dense).load(1, {"tables": embeddings.table_states()})
    embeddings.num_steps = dense.num_steps
    embeddings.load_policy_state(embeddings.policy_state())
    assert torch.equal(read_all(embeddings), read_all(dense))
    for table in range(2):
        masks = embeddings.stores.budget.stores[0].pool.masks(table, torch.arange(90))
        assert ((masks == 15) | (torch.arange(90) == 3) * (table == 0)).all()
    found, expected = train(embeddings, 9, 15), train(dense, 9, 15)
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


def test_a_tiered_checkpoint_and_one_of_chunks_load_each_other(tmp_path):
    memory = mg.TieredMemory(dram="1MiB", path=tmp_path / "rows", engine="threads")

    def tiered():
        return mg.EmbeddingCollection(tables("tiered"), mg.Adam(lr=0.05), seed=3, memory=memory)

    embeddings, other = collection(), tiered()
    train(embeddings, 0, 18)
    save(tmp_path / "chunks", embeddings).load(1, {"tables": other.table_states()})
    assert torch.equal(read_all(other), read_all(embeddings))
    back = collection()
    save(tmp_path / "rows-saved", other).load(1, {"tables": back.table_states()})
    assert torch.equal(read_all(back), read_all(embeddings))


def test_only_checkpoints_of_chunks_have_the_newer_version(tmp_path):
    for name, store, version in (("chunks", "adaptive", 4), ("whole", "dense", 3)):
        saved = save(tmp_path / name, collection(store))
        assert read_manifest(saved.path(1)).version == version


def test_chunks_of_another_width_are_refused(tmp_path):
    embeddings, other = collection(), collection(chunk=8)
    train(embeddings, 0, 3)
    with pytest.raises(CheckpointError, match="chunks of 4 there and 8 here"):
        save(tmp_path, embeddings).load(1, {"tables": other.table_states()})


def test_an_adaptive_table_without_a_budget_is_refused():
    with pytest.raises(ConfigError, match="Table 'a' is adaptive: say how much memory"):
        mg.EmbeddingCollection(tables(), mg.SGD())


def test_a_schedule_without_an_end_is_refused():
    with pytest.raises(ConfigError, match="end_step"):
        collection(policy=mg.AdaptivePolicy(ratio=4))


def test_the_schedule_falls_from_dense_to_the_budget():
    policy = mg.AdaptivePolicy(ratio=10, warm_up=10, end_step=30)
    schedule = BudgetSchedule(policy, 1000)
    assert [schedule.at(step) for step in (0, 10)] == [None, None]
    assert [schedule.at(step) for step in (20, 30, 99)] == [212, 100, 100]
    assert BudgetSchedule(policy.model_copy(update={"begin_ratio": 4}), 1000).at(0) == 250
    assert BudgetSchedule(mg.AdaptivePolicy(ratio=1, end_step=1), 1000).at(99) is None


def test_a_budget_without_room_for_a_chunk_is_refused():
    with pytest.raises(ConfigError, match=r"looking for rows to grow in 2 tables takes 1\.0 KiB"):
        collection(policy=POLICY.model_copy(update={"budget": 2 << 10}))


def test_fading_and_rankings_follow_the_length_of_the_run():
    short, long = (mg.AdaptivePolicy(ratio=4, end=0.4).for_steps(steps) for steps in (500, 5000))
    assert short.halvings == pytest.approx(1 / 500)
    assert long.halvings == pytest.approx(1 / 5000)
    assert (short.ranking_interval, long.ranking_interval) == (25, 100)
    given = mg.AdaptivePolicy(ratio=4, end_step=100, gamma=0.5, interval=7)
    assert (given.halvings, given.ranking_interval) == (1, 7)
    with pytest.raises(ConfigError, match="give AdaptivePolicy an end_step"):
        _ = mg.AdaptivePolicy(ratio=4).halvings
