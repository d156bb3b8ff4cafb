"""A table cut by rows: its parts, which add up their numbers, decide what the whole table decides."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import megalith as mg
from megalith.embeddings.initial_values import TableWindow
from megalith.embeddings.stores.adaptive.budget import AdaptiveBudget

ROWS, DIM, BATCH, STEPS = 6400, 16, 600, 30
TABLE = mg.TableSpec(
    name="t", rows=ROWS, dim=DIM, features=("t",), store={"kind": "adaptive", "chunk": 4}, init_scale=0.1
)
POLICY = mg.AdaptivePolicy(ratio=8, end_step=12, warm_up=4, interval=3, gamma=0.95)


class AddedOverThreads:
    """Sums tensors of threads that call it together, as ranks would."""

    def __init__(self, count):
        self._barrier, self._given, self._lock = threading.Barrier(count, timeout=60), [], threading.Lock()

    def __call__(self, numbers):
        with self._lock:
            self._given.append(numbers)
        self._barrier.wait()
        total = torch.stack(self._given).sum(0)
        if self._barrier.wait() == 0:
            self._given.clear()
        self._barrier.wait()
        return total


def train_part(first, last, add):
    """The part [first, last) of the table: its rows, what its chunks are worth, and the budget's state."""
    budget = AdaptiveBudget(POLICY, ROWS * (DIM + 1) * 4, {"t": ROWS}, num_lengths=4)
    spec = TABLE.model_copy(update={"rows": last - first})
    embeddings = mg.EmbeddingCollection(
        [spec],
        mg.RowWiseAdaGrad(lr=0.1),
        windows={"t": TableWindow(TABLE, (first, last), (0, DIM))},
        adaptive=budget,
    )
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        ids = (torch.rand(BATCH, generator=generator) ** 2 * ROWS).long()
        gradient = torch.randn(BATCH, DIM, generator=generator) * torch.linspace(1, 2, DIM)
        own = (ids >= first) & (ids < last)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), own.long().cumsum(0)])
        embeddings(ids[own] - first, offsets).backward(gradient)
        budget.after_step(step + 1, add)
    return list(budget.stores[0].pool.blocks(0)), budget.state_dict(add), budget


@pytest.mark.parametrize("cuts", [(0, 3200, 6400), (0, 100, 2000, 6400)])
def test_parts_of_a_table_decide_what_the_whole_decides(cuts):
    (whole,), state, budget = train_part(0, ROWS, lambda numbers: numbers)
    assert budget.counts.pruned > 100
    assert budget.counts.grown > 100
    add = AddedOverThreads(len(cuts) - 1)
    with ThreadPoolExecutor(len(cuts) - 1) as threads:
        parts = list(threads.map(train_part, cuts[:-1], cuts[1:], [add] * (len(cuts) - 1)))
    assert all(own == state for _, own, _ in parts)
    blocks = [(block, first) for (found, _, _), first in zip(parts, cuts, strict=False) for block in found]
    ids = torch.cat([block.ids + first for block, first in blocks])
    assert torch.equal(ids, whole.ids)
    for name in ("masks", "growth", "utilities", "weights", "first"):
        found = torch.cat([getattr(block, name) for block, _ in blocks])
        assert torch.equal(found, getattr(whole, name)), name
