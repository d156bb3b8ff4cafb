"""Checkpoints: whole or absent, damaged ones named, old ones pruned."""

import random
import signal

import pytest
import torch

from forked import Forked, signalled_at_call
from megalith.checkpoint.store import CheckpointStore
from megalith.core.errors import CheckpointError, StorageError


def state(value, size=1000):
    return {"weight": torch.full((size,), float(value)), "nested": {"step": value, "name": f"v{value}"}}


def test_a_state_reads_back(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(5, state(5), {"samples": 50})
    loaded = state(0)
    assert store.load(5, loaded)["samples"] == 50
    assert torch.equal(loaded["weight"], state(5)["weight"])
    assert loaded["nested"] == {"step": 5, "name": "v5"}


def test_the_newest_are_kept_and_the_protected_one(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 3, 4):
        store.save(step, state(step), {}, protect=1)
    assert store.steps() == [1, 3, 4]
    assert store.latest() == 4


def test_saving_a_step_again_replaces_it(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, state(1), {})
    store.save(1, state(7), {})
    loaded = state(0)
    store.load(1, loaded)
    assert loaded["nested"]["step"] == 7


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_a_damaged_file_is_named_and_the_way_back_too(tmp_path, damage):
    store = CheckpointStore(tmp_path)
    store.save(1, state(1), {})
    store.save(2, state(2), {})
    path = max(store.path(2).glob("*.safetensors"), key=lambda one: one.stat().st_size)
    content = bytearray(path.read_bytes())
    if damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    with pytest.raises(CheckpointError) as error:
        store.load(2, state(0))
    assert str(path) in str(error.value)
    assert "go back to step 1" in str(error.value)
    loaded = state(0)
    store.load(1, loaded)
    assert loaded["nested"]["step"] == 1


def test_a_broken_manifest_is_named(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, state(1), {})
    (store.path(1) / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"manifest.json is damaged"):
        store.load(1, state(0))


def test_another_models_checkpoint_is_refused(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, state(1, size=10), {})
    with pytest.raises(CheckpointError, match="another model"):
        store.load(1, state(0, size=11))


def test_a_background_save_holds_what_was_when_it_began(tmp_path):
    store = CheckpointStore(tmp_path)
    changing = state(1)
    store.save(1, changing, {}, background=True)
    changing["weight"].zero_()
    store.save(2, changing, {}, background=True)
    loaded = state(0)
    store.load(1, loaded)
    assert torch.equal(loaded["weight"], state(1)["weight"])
    assert store.steps() == [1, 2]
    store.close()


def test_the_error_of_a_background_save_surfaces_at_the_next_call(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = CheckpointStore(tmp_path / "file")
    store.save(1, state(1), {}, background=True)
    with pytest.raises(StorageError, match="stands in the way"):
        store.wait()
    store.close()


def save_until_call(folder, confirmed, calls):
    store = CheckpointStore(folder)
    store.save(1, {"weight": torch.full((200_000,), 1.0), "step": 1}, {})
    confirmed.write_text("1")
    signalled_at_call(signal.SIGKILL, calls)
    for step in range(2, 1000):
        store.save(step, {"weight": torch.full((200_000,), float(step)), "step": step}, {})
        confirmed.write_text(str(step))


@pytest.mark.parametrize("seed", range(10))
def test_a_kill_while_saving_keeps_the_last_one(tmp_path, seed):
    """Killed at any call of a function, some saves on: what is there must load."""
    confirmed, tmp_path = tmp_path / "confirmed", tmp_path / "checkpoints"
    with Forked(save_until_call, tmp_path, confirmed, random.Random(seed).randint(1, 10_000)) as saver:
        assert saver.wait() == -signal.SIGKILL
    store = CheckpointStore(tmp_path)
    latest = store.latest()
    assert latest >= int(confirmed.read_text() or 1)
    loaded = {"weight": torch.zeros(200_000), "step": 0}
    store.load(latest, loaded)
    assert loaded["step"] == latest
    assert bool((loaded["weight"] == latest).all())
    store.save(latest + 1, loaded, {})
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
