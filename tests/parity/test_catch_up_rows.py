"""Rows that take the steps they missed: native against plain torch, and against taking each in its time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import megalith as mg
from megalith.core.errors import ConfigError
from megalith.embeddings.optimizers import LAMB, LARS, SGD, AdaGrad, Adam, RowWiseAdaGrad, RowWiseAdam
from megalith.ops.optimizer.catch_up import StepHistory, catch_up_rows_, catch_up_rows_twin
from megalith.ops.optimizer.steps import OptimizerStep, PhysicalRows

OPTIMIZERS = (SGD, AdaGrad, RowWiseAdaGrad, Adam, RowWiseAdam, LAMB, LARS)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def state_of(shape, rows, dim):
    return torch.rand({"none": (0,), "row": (rows,), "full": (rows, dim)}[shape])


@st.composite
def worlds(draw):
    rows, dim = draw(st.integers(1, 40)), draw(st.sampled_from([1, 3, 8, 17, 33]))
    kind = draw(st.sampled_from(OPTIMIZERS))
    optimizer = kind(lr=0.1, weight_decay=draw(st.sampled_from([0.0, 0.01, 0.5])))
    base, num_steps = draw(st.integers(0, 9)), draw(st.integers(0, 12))
    torch.manual_seed(draw(st.integers(0, 1000)))
    table = PhysicalRows(
        torch.randn(rows, dim).to(draw(st.sampled_from(DTYPES))),
        state_of(optimizer.first_state, rows, dim),
        state_of(optimizer.second_state, rows, dim),
    )
    taken = [optimizer.at(step + 1, 1 / (step + 1), True) for step in range(base, base + num_steps)]
    steps = torch.tensor(taken).reshape(-1, len(OptimizerStep._fields))
    rounding = torch.randint(-(2**62), 2**62, (num_steps, 3)) % torch.tensor([2**62, 7, 3])
    last = torch.randint(base, base + num_steps + 1, (rows,), dtype=torch.int32)
    wide = draw(st.sampled_from([torch.int32, torch.int64]))
    ids = draw(st.sampled_from([None, torch.randint(0, rows, (draw(st.integers(0, 60)),), dtype=wide)]))
    return table, last, StepHistory(steps, rounding, base), ids, draw(st.sampled_from([-1, 0, rows - 1]))


def copied(table):
    return PhysicalRows(*(None if part is None else part.clone() for part in table))


@given(worlds())
def test_native_rows_take_the_steps_that_plain_ones_take(world):
    table, last, history, ids, padding = world
    twin, twin_last = copied(table), last.clone()
    before = copied(table)
    catch_up_rows_(table, last, history, ids, padding)
    catch_up_rows_twin(twin, twin_last, history, ids, padding)
    assert torch.equal(last, twin_last)
    exact = table.weight.dtype == torch.float32
    for got, wanted in zip(table[:3], twin[:3], strict=True):
        # A step in half precision may round to the other side of what differs in the last bit.
        torch.testing.assert_close(got, wanted, rtol=1e-4 if exact else 0.05, atol=1e-5 if exact else 0.05)
    if padding >= 0:
        assert torch.equal(table.weight[padding], before.weight[padding])


def ids_of(step, rows, features=1):
    generator = torch.Generator().manual_seed(step)
    values = torch.randint(0, rows, (features * 6,), generator=generator)
    return values, torch.arange(0, features * 6 + 1, 2)


@pytest.mark.parametrize("kind", [SGD, AdaGrad, Adam])
def test_all_rows_train_as_with_the_dense_optimizers_of_torch(kind):
    rows, dim = 50, 8
    optimizer = kind(lr=0.05, weight_decay=0.1, rows="all")
    tables = [mg.TableSpec(name="t", rows=rows, dim=dim, features=("f",))]
    collection = mg.EmbeddingCollection(tables, optimizer)
    plain = nn.EmbeddingBag(rows, dim, mode="sum")
    with torch.no_grad():
        plain.weight.copy_(collection.weight("t"))
    its = {SGD: torch.optim.SGD, AdaGrad: torch.optim.Adagrad, Adam: torch.optim.Adam}[kind]
    extra = {"eps": 1e-8} if kind is AdaGrad else {}
    stepper = its(plain.parameters(), lr=0.05, weight_decay=0.1, **extra)
    for step in range(30):
        values, offsets = ids_of(step, rows)
        ours = collection(values, offsets)
        theirs = plain(values, offsets[:-1])
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        (ours**2).sum().backward()
        stepper.zero_grad()
        (theirs**2).sum().backward()
        stepper.step()
    torch.testing.assert_close(collection.weight("t"), plain.weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_that_wait_have_the_bits_of_rows_that_do_not(kind, dtype):
    """Whether all rows are brought up to now after every step or only where they are read changes nothing."""
    tables = [
        mg.TableSpec(name="t", rows=40, dim=5, features=("f", "g"), dtype=dtype, padding_index=3),
        mg.TableSpec(name="u", rows=20, dim=3, features=("g",), pooling="mean"),
        mg.TableSpec(name="touched", rows=40, dim=4, features=("f",)),
    ]
    own = {"touched": SGD(lr=0.1)}
    waiting, eager = (
        mg.EmbeddingCollection(tables, kind(lr=0.05, weight_decay=0.1, rows="all"), table_optimizers=own)
        for _ in range(2)
    )
    for step in range(25):
        values, offsets = ids_of(step, 20, features=2)
        for collection in (waiting, eager):
            collection.lr_factor = 1 / (1 + step)
            (collection(values, offsets) ** 2).sum().backward()
        eager.weight("t")
        eager.state("u")
        if step == 12:
            saved = waiting.state_dict()
            waiting = mg.EmbeddingCollection(
                tables, kind(lr=0.05, weight_decay=0.1, rows="all"), table_optimizers=own
            )
            waiting.load_state_dict(saved)
    for table in ("t", "u", "touched"):
        assert torch.equal(waiting.weight(table), eager.weight(table))
        for name, state in waiting.state(table).items():
            assert torch.equal(state, eager.state(table)[name])


def test_two_batches_under_way_take_both_steps():
    tables = [mg.TableSpec(name="t", rows=10, dim=4, features=("f",))]
    both, one_by_one = (
        mg.EmbeddingCollection(tables, SGD(lr=0.1, weight_decay=0.5, rows="all")) for _ in range(2)
    )
    offsets = torch.tensor([0, 1])
    first, second = both(torch.tensor([1]), offsets), both(torch.tensor([2]), offsets)
    first.sum().backward()
    second.sum().backward()
    for value in (1, 2):
        one_by_one(torch.tensor([value]), offsets).sum().backward()
    assert torch.equal(both.weight("t"), one_by_one.weight("t"))


def test_old_steps_are_forgotten_in_time(monkeypatch):
    monkeypatch.setattr("megalith.embeddings.module.every_step._MOST_STEPS", 7)
    tables = [mg.TableSpec(name="t", rows=30, dim=4, features=("f",))]
    collection = mg.EmbeddingCollection(tables, Adam(weight_decay=0.1, rows="all"))
    monkeypatch.undo()
    unbounded = mg.EmbeddingCollection(tables, Adam(weight_decay=0.1, rows="all"))
    for step in range(40):
        values, offsets = ids_of(step, 30)
        for each, most in ((collection, 7), (unbounded, 1 << 16)):
            monkeypatch.setattr("megalith.embeddings.module.every_step._MOST_STEPS", most)
            each(values, offsets).sum().backward()
    assert torch.equal(collection.weight("t"), unbounded.weight("t"))


def test_tables_that_are_not_whole_are_refused():
    table = mg.TableSpec(name="t", rows=64, dim=4, features=("f",), store={"kind": "dynamic", "bound": 64})
    with pytest.raises(ConfigError, match=r"'t' are not all in memory.*use rows=touched"):
        mg.EmbeddingCollection([table], Adam(rows="all"))
    dense = mg.TableSpec(name="d", rows=64, dim=4, features=("f",))
    with pytest.raises(ConfigError, match=r"'d' may lie on other processes.*use rows=touched"):
        mg.ShardedEmbeddingCollection([dense], optimizer=Adam(rows="all"))
