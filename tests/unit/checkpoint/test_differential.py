"""Differential checkpoints: a chain holds what was trained, bit for bit, at each of its steps."""

import pytest
from differential_tables import STORES, Tables, differential

from megalith.checkpoint.manifest import read_manifest


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
