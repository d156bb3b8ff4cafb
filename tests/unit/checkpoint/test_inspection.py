"""What is in a folder of checkpoints: each damaged file is found, whatever kind of file it is."""

import pytest
from differential_tables import Tables, differential

from megalith.checkpoint.inspection import kept_steps, verified


def saved(kind, folder, steps=3):
    tables, store = Tables(kind, folder / "rows"), differential(folder / "saved", bits=4)
    for _ in range(steps):
        tables.train(4)
        tables.save(store)
    return store


@pytest.mark.parametrize("kind", ["dense", "tiered", "dynamic over adaptive"])
def test_all_is_whole_where_nothing_happened(tmp_path, kind):
    store = saved(kind, tmp_path)
    listed = kept_steps(store)
    assert [(each.step, each.kind, each.bits, each.needs) for each in listed] == [
        (4, "baseline", None, ()),
        (8, "delta", 4, (4,)),
        (12, "delta", 4, (8, 4)),
    ]
    told = []
    steps = verified(store, tell=told.append)
    assert told == [4, 8, 12]
    for each, own in zip(steps, listed, strict=True):
        manifest = (store.path(each.step) / "manifest.json").stat().st_size
        assert each.can_be_restored
        assert each.bytes == own.bytes - manifest


def test_a_damaged_segment_is_named_with_all_that_is_over_it(tmp_path):
    store = saved("tiered", tmp_path)
    path = max(store.path(4).rglob("*.rows"), key=lambda each: each.stat().st_size)
    content = bytearray(path.read_bytes())
    # Behind the header, in a record that lives.
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)
    steps = verified(store)
    assert [each.damaged for each in steps] == [[path], [], []]
    assert all(str(path) in each.error for each in steps)


def test_every_damaged_file_is_found_and_newer_ones_are_read_still(tmp_path):
    store = saved("dense", tmp_path)
    harmed = [store.path(4) / "dense.safetensors", *store.path(12).glob("rows-*")]
    for path in harmed:
        path.write_bytes(path.read_bytes()[:-1])
    steps = verified(store)
    assert [path for each in steps for path in each.damaged] == harmed
    assert [each.can_be_restored for each in steps] == [False, False, False]
    assert [each.damaged for each in verified(store, 8)] == [harmed[:1], []]
