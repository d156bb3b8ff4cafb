"""Touched rows: each consumer is told of every row that took a step since it last asked, and of no other."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import megalith as mg
from megalith.embeddings.changes.touched_rows import TouchedRows
from megalith.embeddings.stores.settings import TieredMemory

ROWS = 12


@given(
    st.lists(
        st.one_of(
            st.lists(st.integers(0, ROWS - 1)),
            st.sampled_from(["take a", "take b", "fail a", "fail b"]),
        )
    )
)
def test_consumers_see_what_was_touched_since_they_asked(events):
    touched, expected = TouchedRows(ROWS), {"a": set(), "b": set()}
    for consumer in expected:
        touched.watch(consumer)
    for event in events:
        if isinstance(event, list):
            touched.touch(torch.tensor(event, dtype=torch.int64))
            for ids in expected.values():
                ids.update(event)
            continue
        what, consumer = event.split()
        taken = touched.take(consumer)
        assert taken.tolist() == sorted(expected[consumer])
        if what == "fail":
            touched.give_back(consumer, taken)
        else:
            expected[consumer].clear()
    assert {consumer: touched.count(consumer) for consumer in expected} == {
        consumer: len(ids) for consumer, ids in expected.items()
    }


def test_nothing_is_marked_before_somebody_watches():
    touched = TouchedRows(ROWS)
    touched.touch(torch.tensor([1]))
    assert touched.bytes() == 0
    touched.watch("a")
    touched.touch(torch.tensor([2]))
    touched.watch("b")
    assert touched.take("a").tolist() == [2]
    assert touched.take("b").tolist() == []
    touched.forget("a")
    touched.forget("b")
    assert touched.bytes() == 0


@pytest.mark.parametrize("store", ["dense", "tiered"])
def test_a_step_marks_the_ids_of_its_batch_in_each_table(tmp_path, store):
    tables = [
        mg.TableSpec(name="t0", rows=50, dim=4, features=("f0", "f1"), pooling="sum", store=store),
        mg.TableSpec(name="t1", rows=50, dim=4, features=("f1",), pooling="sum", store=store),
    ]
    memory = TieredMemory(dram=1 << 16, path=tmp_path) if store == "tiered" else None
    collection = mg.EmbeddingCollection(tables, mg.RowWiseAdaGrad(lr=0.1), seed=0, memory=memory)
    marks = [collection.shard(table.name).touched for table in tables]
    for own in marks:
        own.watch("a")
    values, offsets = torch.tensor([3, 4, 7, 7]), torch.tensor([0, 1, 2, 3, 4])
    with torch.no_grad():
        collection(values, offsets)
    assert [own.count("a") for own in marks] == [0, 0]
    collection(values, offsets).sum().backward()
    assert [own.take("a").tolist() for own in marks] == [[3, 4, 7], [7]]


def test_rows_that_take_every_step_are_always_touched():
    table = mg.TableSpec(name="t0", rows=5, dim=4, features=("f0",), pooling="sum")
    collection = mg.EmbeddingCollection([table], mg.Adam(lr=0.1, rows="all"), seed=0)
    marks = collection.shard("t0").touched
    marks.watch("a")
    assert marks.take("a").tolist() == [0, 1, 2, 3, 4]
