"""Adaptive tables over tiers: rows leave memory and come back, and nothing else changes."""

import gc

import pytest
import torch

import megalith as mg
from megalith.core.errors import ConfigError, StorageError
from megalith.embeddings.stores.adaptive.tiers.tiered_chunks import TieredChunks
from megalith.embeddings.stores.row_files import Holds

ROWS, DIM = 6000, 16
POLICY = mg.AdaptivePolicy(budget="96KiB", end_step=24, warm_up=4, interval=4, gamma=0.9)
IN_MEMORY = {"kind": "adaptive", "chunk": 4}
ON_DISK = {**IN_MEMORY, "over": {"kind": "tiered"}}


def tables(store=ON_DISK, dtype="float32"):
    return [
        mg.TableSpec(
            name="a", rows=ROWS, dim=DIM, features=("a",), dtype=dtype, store=store, padding_index=3
        ),
        mg.TableSpec(name="b", rows=200, dim=DIM, features=("b",), pooling="mean", dtype=dtype, store=store),
    ]


def collection(folder=None, optimizer=None, dram="24KiB", store=ON_DISK, policy=POLICY, **changes):
    memory = None if folder is None else mg.TieredMemory(dram=dram, path=folder / "rows", **changes)
    store = ON_DISK if folder is not None and store is ON_DISK else IN_MEMORY if folder is None else store
    return mg.EmbeddingCollection(
        tables(store), optimizer or mg.RowWiseAdaGrad(lr=0.1), seed=3, memory=memory, adaptive=policy
    )


def batch(step, size=48):
    """A few ids often, most rarely, and other popular ones every eight steps: chunks come and go."""
    spread = torch.rand(2, size, generator=torch.Generator().manual_seed(step)) ** 3
    values = torch.cat([(spread[0] * ROWS + step // 8 * 700).long() % ROWS, (spread[1] * 200).long()])
    return values, torch.arange(2 * size + 1)


def train(embeddings, first, last):
    outputs = []
    for step in range(first, last):
        out = embeddings(*batch(step))
        (out * torch.arange(1.0, out.shape[1] + 1)).square().sum().backward()
        outputs.append(out.detach().clone())
    return outputs


def tiers_of(embeddings):
    (store,) = embeddings.stores.stores
    assert isinstance(store.tiers, TieredChunks)
    return store.tiers


def weights(embeddings):
    return embeddings.get_extra_state()["weights"]


def assert_same_rows(one, other):
    for table in ("a", "b"):
        assert torch.equal(weights(one)[table], weights(other)[table])
    assert one.policy_state() == other.policy_state()


@pytest.mark.parametrize("optimizer", [mg.SGD(lr=1e-4), mg.RowWiseAdaGrad(lr=0.1), mg.Adam(lr=0.05)])
def test_rows_leave_and_come_back(tmp_path, optimizer):
    here, there = collection(optimizer=optimizer), collection(tmp_path, optimizer)
    for expected, found in zip(train(here, 0, 60), train(there, 0, 60), strict=True):
        assert torch.equal(expected, found)
    assert_same_rows(here, there)
    counts = there.counts()
    assert counts.written_rows > 300
    assert counts.reads > 300
    assert here.adaptive().counts == there.adaptive().counts


def test_rows_grow_while_they_are_on_disk(tmp_path, monkeypatch):
    grown, grow = [], TieredChunks._grow
    monkeypatch.setattr(
        TieredChunks, "_grow", lambda self, *given: (grown.append(len(given[1])), grow(self, *given))
    )
    here, there = (collection(folder, mg.Adam(lr=0.05)) for folder in (None, tmp_path))
    for expected, found in zip(train(here, 0, 60), train(there, 0, 60), strict=True):
        assert torch.equal(expected, found)
    assert sum(grown) > 0
    assert_same_rows(here, there)


def test_memory_holds_what_it_may_and_outlines_of_the_rest(tmp_path):
    embeddings = collection(tmp_path, policy=POLICY.model_copy(update={"budget": 1 << 20}))
    train(embeddings, 0, 40)
    tiers, taken = tiers_of(embeddings), embeddings.bytes()
    found = tiers.pool.statistics()
    used = sum(count * size for count, size in zip(found.records, found.row_bytes, strict=True))
    assert used <= 24 << 10
    assert sum(tiers.outlines.statistics().rows) > 2 * sum(found.rows)
    assert taken.disk > 0
    assert sum(tiers.statistics().rows) == sum(found.rows) + sum(tiers.outlines.statistics().rows)


def test_pruned_rows_free_their_place_on_disk(tmp_path):
    embeddings = collection(tmp_path)
    train(embeddings, 0, 60)
    tiers = tiers_of(embeddings)
    on_disk = sum(pool.statistics().live_rows for pool in tiers.files._pools.values())
    assert on_disk == sum(tiers.outlines.statistics().rows)
    for length, pool in tiers.files._pools.items():
        longest = int(tiers.files.lengths[length])
        shortest = int(tiers.files.lengths[length - 1]) if length else 0
        for table, ids, _ in (pool.flush() and pool.rows()) or ():
            live = (tiers.outlines.masks(table, ids)[:, None] >> torch.arange(4) & 1).sum(dim=1)
            assert bool(((live > shortest) & (live <= longest)).all())


def test_evaluation_writes_nothing(tmp_path):
    embeddings = collection(tmp_path)
    train(embeddings, 0, 30)
    before, in_memory = embeddings.counts(), sum(tiers_of(embeddings).pool.statistics().rows)
    with torch.no_grad():
        for step in range(30):
            embeddings(*batch(step))
        after = embeddings.counts()
        for step in range(30):
            embeddings(*batch(step))
    assert after.reads > before.reads
    # What training had changed leaves once.
    assert after.written_rows - before.written_rows <= in_memory
    assert embeddings.counts().written_rows == after.written_rows
    assert torch.equal(*(train(each, 30, 31)[0] for each in (embeddings, _trained(30))))


def _trained(steps):
    embeddings = collection()
    train(embeddings, 0, steps)
    return embeddings


def test_a_checkpoint_goes_on_in_memory_and_on_disk(tmp_path):
    saved, expected = collection(tmp_path / "one"), _trained(27)
    train(saved, 0, 27)
    state = saved.state_dict()
    for target in (collection(), collection(tmp_path / "two", dram="32KiB")):
        target.load_state_dict(state)
        assert_same_rows(expected, target)
    train(saved, 27, 40)
    train(expected, 27, 40)
    assert_same_rows(expected, saved)


def test_what_is_saved_while_training_goes_on_is_on_disk(tmp_path):
    embeddings = collection(tmp_path)
    train(embeddings, 0, 27)
    before = list(embeddings.shard("a").blocks(1 << 20))
    held = embeddings.shard("a").snapshot(Holds(), copy=True)
    assert list(tmp_path.rglob("held-*/*.safetensors"))
    train(embeddings, 27, 40)
    for expected, found in zip(before, held.blocks(1 << 20), strict=True):
        assert torch.equal(torch.as_tensor(expected.ids), torch.as_tensor(found.ids))
        assert all(torch.equal(expected.parts[name], found.parts[name]) for name in expected.parts)
    del held
    gc.collect()
    assert not list(tmp_path.rglob("held-*/*.safetensors"))


def test_what_cannot_be_is_said(tmp_path):
    with pytest.raises(ConfigError, match="adaptive over tiers: say how much memory"):
        mg.EmbeddingCollection(tables(), mg.SGD(lr=0.1), adaptive=POLICY)
    full = collection(tmp_path, policy=POLICY.model_copy(update={"budget": 8 << 20}))
    files = tiers_of(full).files
    object.__setattr__(files.memory, "disk", 1000)
    with pytest.raises(StorageError, match=r"raise its bound \(memory\.disk\)"):
        train(full, 0, 40)
