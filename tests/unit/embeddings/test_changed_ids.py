"""Ids that the caller overwrites between forward and backward, where torch cannot see it."""

import numpy as np
import pytest
import torch

import megalith as mg

TABLES = [
    mg.TableSpec(name="a", rows=50, dim=4, features=("f", "g"), init_scale=1.0),
    mg.TableSpec(name="b", rows=40, dim=3, features=("g",), pooling="mean", init_scale=1.0),
    mg.TableSpec(name="c", rows=30, dim=2, features=("f",), pooling="none", init_scale=1.0),
]
BATCH = 5


class Arrays:
    """A reader's buffers, and tensors over the same memory."""

    def __init__(self, dtype):
        draw = np.random.default_rng(0)
        self.values = draw.integers(0, 30, 2 * BATCH * 3).astype(dtype)
        self.offsets = np.arange(0, 2 * BATCH * 3 + 1, 3)
        self.weights = draw.random(2 * BATCH * 3, dtype=np.float32)

    def tensors(self):
        return [torch.from_numpy(one) for one in (self.values, self.offsets, self.weights)]


def trained(change, dtype, *, weighted):
    collection = mg.EmbeddingCollection(TABLES, mg.AdaGrad(lr=0.1), seed=1)
    arrays = Arrays(dtype)
    values, offsets, weights = arrays.tensors()
    weights = weights.requires_grad_() if weighted else None
    found = collection.lookup(values, offsets, weights)
    loss = found.pooled.square().sum() + found.sequences["c", "f"].square().sum()
    change(arrays)
    loss.backward()
    learned = [collection.weight(table.name) for table in TABLES]
    learned += [collection.state(table.name)["first"] for table in TABLES]
    return [*learned, *([] if weights is None else [weights.grad])]


def overwrite(name, value):
    return lambda arrays: getattr(arrays, name).__setitem__(slice(None), value)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(overwrite("values", 29), id="other rows"),
        pytest.param(overwrite("values", 2**31 - 1), id="rows that are not there"),
        pytest.param(overwrite("values", -1), id="rows below zero"),
        pytest.param(overwrite("offsets", 0), id="empty bags"),
        pytest.param(overwrite("offsets", 2**40), id="offsets too large"),
        pytest.param(overwrite("weights", 7.0), id="other sample weights"),
    ],
)
def test_the_rows_that_were_read_are_updated(change, weighted, dtype):
    expected = trained(lambda arrays: None, dtype, weighted=weighted)
    found = trained(change, dtype, weighted=weighted)
    assert all(map(torch.equal, found, expected))


def test_a_lookup_without_gradients_copies_nothing():
    """Nobody comes back to its ids; it reads them where they are."""
    collection = mg.EmbeddingCollection(TABLES, seed=1)
    values, offsets, weights = Arrays(np.int64).tensors()
    with torch.no_grad():
        quiet = collection(values, offsets, weights)
    assert torch.equal(quiet, collection(values, offsets, weights).detach())
    assert not quiet.requires_grad
