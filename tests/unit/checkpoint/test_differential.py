"""Differential checkpoints: a chain holds what was trained, bit for bit, at each of its steps."""

import re
import shutil
import threading

import pytest
import torch
from differential_tables import STORES, Tables, differential

import megalith as mg
from megalith.checkpoint.differential.chain import folder_bytes, needed_by
from megalith.checkpoint.differential.settings import CheckpointConfig
from megalith.checkpoint.manifest import read_manifest
from megalith.core.errors import CheckpointError, StorageError
from megalith.embeddings.changes.row_snapshot import RowSnapshot


def kinds_of(store):
    return [read_manifest(store.path(step)).kind for step in store.steps()]


@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
@pytest.mark.parametrize("kind", STORES)
def test_a_chain_is_what_was_trained_at_each_step(tmp_path, kind, background):
    tables, store = Tables(kind, tmp_path / "rows"), differential(tmp_path / "saved")
    rows = {}
    for _ in range(5):
        tables.train(4)
        tables.save(store, background)
        rows[tables.step] = tables.rows
    store.close()
    assert kinds_of(store) == ["full", "delta", "delta", "delta", "delta"]
    assert len({str(each) for each in rows.values()}) == 5
    for step, expected in rows.items():
        loaded = Tables(kind, tmp_path / f"rows-{step}", seed=0).load(store, step)
        assert loaded.rows == expected
        assert loaded.step == step


@pytest.mark.parametrize("kind", STORES)
def test_a_run_that_goes_on_from_a_chain_is_the_undisturbed_one(tmp_path, kind):
    """Restored in the middle, in new memory: what is touched from there on is in the next delta."""
    undisturbed = Tables(kind, tmp_path / "undisturbed")
    undisturbed.train(20)
    for attempt, last in enumerate((8, 16, 20)):
        store, tables = differential(tmp_path / "saved"), Tables(kind, tmp_path / f"rows-{attempt}")
        if (latest := store.latest()) is not None:
            tables.load(store, latest)
        while tables.step < last:
            tables.train(4)
            tables.save(store)
        # Lost: what comes after the last checkpoint.
        tables.train(2)
        store.close()
    assert kinds_of(store) == ["full", "delta", "delta", "delta", "delta"]
    assert Tables(kind, tmp_path / "end").load(store, 20).rows == undisturbed.rows


OPTIMIZERS = {
    "sgd": mg.SGD(lr=0.1),
    "adagrad": mg.AdaGrad(lr=0.1),
    "adam": mg.Adam(lr=0.05),
    "adam on all rows": mg.Adam(lr=0.05, rows="all"),
    "rowwise adam": mg.RowWiseAdam(lr=0.05),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_state_of_every_optimizer_is_part_of_it(tmp_path, optimizer):
    tables = Tables("dense", tmp_path, OPTIMIZERS[optimizer])
    store = differential(tmp_path / "saved")
    for _ in range(3):
        tables.train(2)
        tables.save(store)
    rows = tables.rows
    assert Tables("dense", tmp_path, OPTIMIZERS[optimizer]).load(store, 6).rows == rows


def test_a_tiered_chain_loads_into_memory_and_back(tmp_path):
    tables, store = Tables("tiered", tmp_path / "rows"), differential(tmp_path / "saved")
    for _ in range(3):
        tables.train(3)
        tables.save(store)
    dense = Tables("dense", None).load(store, 9)
    trained = tables.rows
    assert {place: row for place, row in dense.rows.items() if place in trained} == trained
    # Rows lie elsewhere now: what follows is whole, and deltas follow on that.
    for _ in range(2):
        dense.train(3)
        tables.train(3)
        dense.save(store)
    assert kinds_of(store) == ["full", "delta", "delta", "full", "delta"]
    again = Tables("tiered", tmp_path / "again").load(store, 15)
    assert again.rows == tables.rows


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", ["dense", "tiered", "adaptive", "dynamic over adaptive"])
def test_rounded_rows_keep_their_state_exactly(tmp_path, kind, bits):
    tables, store = Tables(kind, tmp_path / "rows"), differential(tmp_path / "saved", bits=bits)
    for _ in range(2):
        tables.train(5)
        tables.save(store)
    exact, rounded = tables.rows, Tables(kind, tmp_path / "again").load(store, 10).rows
    assert exact.keys() == rounded.keys()
    differing = 0
    for place, (columns, parts) in exact.items():
        own_columns, own = rounded[place]
        assert own_columns == columns
        weight, own_weight = parts.pop("weight"), own.pop("weight")
        assert own == parts
        differing += own_weight != weight
        if weight:
            step = (max(weight) - min(weight)) / (2**bits - 1)
            # Four bits give up the ends of a row's range for less error in between.
            within = 0.51 if bits == 8 else 0.51 + 0.4 * 15
            assert max(abs(a - b) for a, b in zip(weight, own_weight, strict=True)) <= within * step + 1e-7
    assert 20 < differing < len(exact)


def test_the_last_one_may_be_asked_to_be_whole_and_exact(tmp_path):
    tables, store = Tables("dense", tmp_path), differential(tmp_path / "saved", bits=4)
    for whole in (False, False, True):
        tables.train(3)
        tables.save(store, whole=whole)
        assert store.changes.has_saved(tables.step)
        assert store.changes.has_saved(tables.step, exactly=True) == (whole or tables.step == 3)
    assert kinds_of(store) == ["full", "delta", "full"]
    assert Tables("dense", tmp_path).load(store, 9).rows == tables.rows


def test_bits_follow_the_restores_that_are_expected_and_that_happened(tmp_path):
    config = CheckpointConfig(differential=True, bits="auto", expected_restores=1)
    assert [config.bits_after(restores) for restores in (0, 1, 2, 10, 11)] == [4, 4, 8, 8, 32]
    assert config.model_copy(update={"expected_restores": 3}).bits_after(0) == 8
    found = []
    for attempt in range(3):
        store, tables = differential(tmp_path, config, compact_at=100.0), Tables("dense", None)
        if attempt:
            tables.load(store, store.latest())
        for _ in range(2):
            tables.train()
            tables.save(store)
        found.append(read_manifest(store.path(tables.step)).delta.bits)
    assert found == [4, 4, 8]


def test_a_new_baseline_is_made_when_deltas_are_large(tmp_path):
    tables, store = Tables("dense", tmp_path), differential(tmp_path / "saved", compact_at=0.5)
    sizes = []
    for _ in range(8):
        tables.train(2)
        tables.save(store)
        sizes.append(folder_bytes(store.path(tables.step)))
    kinds, since, base = kinds_of(store), None, 0
    for kind, size in zip(kinds, sizes, strict=True):
        expected = "full" if since is None or since > 0.5 * base else "delta"
        assert kind == expected
        base, since = (size, 0) if kind == "full" else (base, since + size)
    assert 2 <= kinds.count("full") < len(kinds)


def test_what_a_kept_step_is_over_stays(tmp_path):
    tables, store = Tables("dense", tmp_path), differential(tmp_path / "saved", keep=2, compact_at=0.5)
    rows = {}
    for _ in range(10):
        tables.train(2)
        tables.save(store)
        rows[tables.step] = tables.rows
        for step in store.steps()[-2:]:
            assert Tables("dense", None).load(store, step, follow=False).rows == rows[step]
        # `load` into other tables is not this run's: they go on from their own.
        store.load(tables.step, tables.state())
        store.follow(tables.step, tables.state())
    assert len(store.steps()) < 10
    kept = needed_by(store.path, store.steps()[-2:])
    assert set(store.steps()) == kept
    assert store.prune(1) == sorted(kept - needed_by(store.path, store.steps()[-1:]), reverse=True)
    assert Tables("dense", None).load(store, 20).rows == rows[20]


def test_rows_that_wait_to_be_written_stay_within_the_bound(tmp_path):
    """Of tables all of whose rows take every step, rows are copied before training goes on."""
    memory = 1 << 20
    table = mg.TableSpec(name="t", rows=20_000, dim=16, features=("f",), pooling="sum")
    embeddings = mg.EmbeddingCollection([table], mg.Adam(lr=0.1, rows="all"), seed=0)
    store = differential(tmp_path, memory=memory)
    for step in (1, 2):
        ids = torch.arange(0, table.rows, step)
        embeddings(ids, torch.arange(len(ids) + 1)).sum().backward()
        store.save(step, {"tables": embeddings.table_states()}, {}, background=True)
    store.close()
    assert folder_bytes(store.path(2)) > memory
    assert memory // 4 < store.changes.peak_bytes <= memory // 2


def test_steps_taken_while_a_checkpoint_is_written_are_not_in_it(tmp_path, monkeypatch):
    """The writer stops in the middle of a table until training has changed what it has not read."""
    rows, read = 40_000, RowSnapshot._read
    monkeypatch.setattr("megalith.embeddings.changes.row_snapshot._LOCKED_BYTES", 4 * 17 * 1000)
    may_go_on = threading.Semaphore(0)

    def slow_read(snapshot, begin, *others):
        # Once in each save.
        if begin == 9000:
            assert may_go_on.acquire(timeout=30)
        read(snapshot, begin, *others)

    monkeypatch.setattr(RowSnapshot, "_read", slow_read)
    table = mg.TableSpec(name="t", rows=rows, dim=16, features=("f",), pooling="sum")
    embeddings = mg.EmbeddingCollection([table], mg.RowWiseAdaGrad(lr=0.1), seed=0)
    store, expected = differential(tmp_path), {}

    def train(seed):
        ids = torch.randint(0, rows, (15_000,), generator=torch.Generator().manual_seed(seed))
        embeddings(ids, torch.arange(len(ids) + 1)).sum().backward()

    for step in (1, 2, 3):
        train(step)
        expected[step] = embeddings.weight("t").clone()
        store.save(step, {"tables": embeddings.table_states()}, {}, background=True)
        train(10 + step)
        may_go_on.release()
    store.close()
    assert kinds_of(store) == ["full", "delta", "delta"]
    assert 0 < store.changes.peak_bytes <= 2 * 15_000 * (17 * 4 + 8)
    for step, weight in expected.items():
        loaded = mg.EmbeddingCollection([table], mg.RowWiseAdaGrad(lr=0.1), seed=0)
        store.load(step, {"tables": loaded.table_states()})
        assert torch.equal(loaded.weight("t"), weight)


def test_a_save_that_failed_is_followed_by_a_whole_one(tmp_path):
    tables, store = Tables("dense", tmp_path), differential(tmp_path / "saved")
    for _ in range(2):
        tables.train()
        tables.save(store)
    tables.train()
    (tmp_path / "saved").rename(tmp_path / "aside")
    (tmp_path / "saved").write_text("in the way")
    with pytest.raises(StorageError, match="stands in the way"):
        tables.save(store)
    (tmp_path / "saved").unlink()
    (tmp_path / "aside").rename(tmp_path / "saved")
    tables.train()
    tables.save(store)
    assert kinds_of(store) == ["full", "delta", "full"]
    assert Tables("dense", tmp_path).load(store, 4).rows == tables.rows


def three_steps(folder):
    tables, store = Tables("dense", None), differential(folder)
    for _ in range(3):
        tables.train()
        tables.save(store)
    return store


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_damage_anywhere_in_a_chain_is_named(tmp_path, step, damage):
    store = three_steps(tmp_path)
    path = max(store.path(step).glob("rows-*"), key=lambda one: one.stat().st_size)
    content = bytearray(path.read_bytes())
    if damage == "truncate":
        path.write_bytes(content[:-1])
    elif damage == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    for refused in range(step, 4):
        with pytest.raises(CheckpointError, match=re.escape(str(path))) as error:
            Tables("dense", None).load(store, refused)
        assert (f"go back to step {step - 1}" if step > 1 else "start the run again") in str(error.value)
        with pytest.raises(CheckpointError, match=re.escape(str(path))):
            store.verify(refused)
    for whole in range(1, step):
        assert Tables("dense", None).load(store, whole).step == whole


def test_a_delta_without_what_it_is_over_is_refused(tmp_path):
    store = three_steps(tmp_path)
    shutil.rmtree(store.path(2))
    with pytest.raises(CheckpointError, match=r"since .*step-00000002, which is missing"):
        Tables("dense", None).load(store, 3)


def test_a_delta_over_another_checkpoint_of_the_same_step_is_refused(tmp_path):
    store = three_steps(tmp_path / "a")
    other = Tables("dense", None, seed=1)
    other_store = differential(tmp_path / "b")
    for _ in range(2):
        other.train()
        other.save(other_store)
    shutil.rmtree(store.path(2))
    shutil.copytree(other_store.path(2), store.path(2))
    with pytest.raises(CheckpointError, match="another step-00000002 than the one that is there"):
        Tables("dense", None).load(store, 3)


@pytest.mark.parametrize(("bits", "row"), [(32, 64 * 4 + 4 + 8), (8, 64 + 8 + 4 + 8), (4, 32 + 8 + 4 + 8)])
def test_bytes_are_those_of_touched_rows(tmp_path, bits, row):
    """Of 64 columns under row-wise AdaGrad: weight, state and id, at most a twentieth more."""
    rows, generator = 200_000, torch.Generator().manual_seed(0)
    table = mg.TableSpec(name="t", rows=rows, dim=64, features=("f",), pooling="sum")
    embeddings = mg.EmbeddingCollection([table], mg.RowWiseAdaGrad(lr=0.1), seed=0)
    state = {"dense": torch.randn(100_000, generator=generator)}
    store = differential(tmp_path, bits=bits)
    store.save(1, {**state, "tables": embeddings.table_states()}, {})
    ids = (torch.rand(60_000, generator=generator) ** 1.5 * rows).long()
    touched = len(ids.unique())
    assert touched >= 0.15 * rows
    embeddings(ids, torch.arange(len(ids) + 1)).sum().backward()
    store.save(2, {**state, "tables": embeddings.table_states()}, {})
    whole, delta = (folder_bytes(store.path(step)) for step in (1, 2))
    assert delta <= 1.05 * touched * row + 400_000 + 4096
    assert whole >= rows * (64 * 4 + 4)
    if bits < 32:
        assert whole >= {8: 6, 4: 12}[bits] * (delta - 400_000)
