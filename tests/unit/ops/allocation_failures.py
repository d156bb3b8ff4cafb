"""Run by test_allocation_failures.py in a process of its own, with failing_allocations.cpp preloaded.

Tells of each allocation of each operation what came of it when it failed.
"""

import ctypes
import itertools
import json
import sys
import threading
from functools import partial

import child_process
import torch
from served_operations import SERVED

from megalith.core.errors import MegalithError
from megalith.core.schema import TableSpec
from megalith.embeddings.descriptors import CollectionLookups
from megalith.ops import native
from megalith.ops.embedding.descriptors import LookupBatch, OutputGradients
from megalith.ops.embedding.index_check import lookup_fault
from megalith.ops.embedding.native_tables import NativeTables
from megalith.ops.interaction.dot import dot_interaction, dot_interaction_backward
from megalith.ops.optimizer.column_sharded import ColumnShardedUpdate
from megalith.ops.optimizer.steps import OPTIMIZER_KINDS, OptimizerStep
from megalith.ops.sharding.bucketize import CutFeature, RowBuckets, bucketize_rows

BATCH = 300


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


class Lookup:
    """NativeTables of every way that the backward pass takes, and one batch."""

    def __init__(self, kind):
        # Rows that repeat by the thousand; more rows than bits; weights of samples; maxima; sequences.
        shapes = [
            ("a", 5000, 64, "sum"),
            ("b", 200_000, 4, "mean"),
            ("c", 40, 8, "max"),
            ("d", 90, 3, "none"),
        ]
        self.tables = [
            TableSpec(name=name, rows=rows, dim=dim, features=(f"f_{name}",), pooling=pooling)
            for name, rows, dim, pooling in shapes
        ]
        self.lookups = CollectionLookups(self.tables)
        lengths = [50, 2, 3, 4]
        generator = torch.Generator().manual_seed(1)
        ids = [
            torch.randint(0, table.rows, (BATCH * length,), generator=generator)
            for table, length in zip(self.tables, lengths, strict=True)
        ]
        self.values = torch.cat(ids)
        each = torch.tensor(lengths).repeat_interleave(BATCH)
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), each.cumsum(0)])
        self.sample_weights = torch.rand(len(self.values), generator=generator)
        self.gradient = draw(BATCH, self.lookups.output_dim)
        self.sequence_gradients = [draw(BATCH * lengths[3], 3)]
        self.steps = torch.tensor(
            [
                OptimizerStep(
                    kind=OPTIMIZER_KINDS.index(kind),
                    lr=0.1,
                    eps=1e-3,
                    beta1=0.9,
                    beta2=0.99,
                    rest1=0.1,
                    rest2=0.01,
                )
            ]
            * 4
        )
        self.start = [draw(table.rows, table.dim) for table in self.tables]
        self.states = [torch.rand(table.rows, table.dim, generator=generator) for table in self.tables]

    def fresh(self):
        return [[one.clone() for one in some] for some in (self.start, self.states, self.states)]

    @property
    def lookup(self):
        return LookupBatch(self.values, self.offsets, self.sample_weights, 4)

    @property
    def rounding(self):
        return torch.zeros(len(self.tables), 3, dtype=torch.int64)

    @property
    def gradients(self):
        return OutputGradients(self.gradient, self.sequence_gradients)


def forward(world):
    lists = world.fresh()
    output = world.lookups.output_dim, torch.float32
    return [], lambda: [NativeTables(*lists).forward(world.lookups.pooled_descriptors, world.lookup, *output)]


def backward(world, sample_weights=True):
    lists = world.fresh()
    batch = world.lookup if sample_weights else world.lookup._replace(sample_weights=None)
    kept = [one for some in lists for one in some]

    def run():
        NativeTables(*lists).backward_(
            world.steps, world.lookups.descriptors, batch, world.gradients, world.rounding
        )
        return kept

    return kept, run


def column_sharded(world):
    lists = world.fresh()
    kept = [one for some in lists for one in some]
    sections = [(table, 0, spec.rows) for table, spec in enumerate(world.tables)]
    columns = [2 * spec.dim for spec in world.tables]
    update = ColumnShardedUpdate(*lists, world.lookups.descriptors, columns, sections)

    def run():
        norms = update.begin(world.steps, world.lookup, world.gradients)
        # All in memory that the first half has taken.
        update.finish(norms, world.rounding)
        return kept

    return kept, run


def bucketizing(world):
    buckets = RowBuckets.of(
        [CutFeature(0, [0, 2500, 5000], [0, 1]), CutFeature(1, [0, 9, 64], [2, -1], by_hash=True)], 3
    )
    values, offsets, weights, _ = world.lookup

    def run():
        shared = bucketize_rows(values, offsets, weights, BATCH, buckets)
        return [shared.lengths, shared.values, shared.sample_weights]

    return [], run


def interaction(_):
    first, rest = draw(BATCH, 8), draw(BATCH, 40)
    return [], lambda: [dot_interaction(first, rest, 8)]


def interaction_gradient(_):
    first, rest, gradient = draw(BATCH, 8), draw(BATCH, 40), draw(BATCH, 8 + 15)
    return [], lambda: list(dot_interaction_backward(gradient, first, rest, 8))


def checking(world):
    values, offsets, _, _ = world.lookup
    rows = torch.tensor([table.rows for table in world.tables])
    return [], lambda: [torch.tensor(lookup_fault(values, offsets, rows))]


OPERATIONS = {
    "forward": (forward, "adam"),
    "backward": (backward, "adam"),
    "backward without sample weights": (partial(backward, sample_weights=False), "adam"),
    "column-wise update": (column_sharded, "lamb"),
    "bucketize_rows": (bucketizing, "adam"),
    "dot_interaction": (interaction, "adam"),
    "dot_interaction_backward": (interaction_gradient, "adam"),
    "lookup_fault": (checking, "adam"),
    **SERVED,
}


def attempt(operation, world, threads, count, shim, expected):
    """Makes allocation number `count` fail on a thread of its own: buffers are kept from call to call."""
    outcome = {}

    def work():
        torch.set_num_threads(threads)
        kept, run = operation(world)
        before = [one.clone() for one in kept]
        core = native.library()
        shim.fail_after(ctypes.cast(core.mg_abi_version, ctypes.c_void_p), count)
        try:
            found, error = run(), None
        except MegalithError as raised:
            found, error = None, str(raised)
        finally:
            outcome["failed"] = shim.stop_failing()
        outcome["error"] = error
        if error is None:
            outcome["exact"] = all(map(torch.equal, found, expected))
        else:
            outcome["unchanged"] = all(map(torch.equal, kept, before))
            # What failed must work when there is memory again.
            outcome["recovers"] = all(map(torch.equal, run(), expected))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return outcome


def without_threads(operation, world, shim, expected):
    """All of the work by the caller, where no thread can be started."""
    _, run = operation(world)
    shim.refuse_threads(1)
    try:
        return {"exact": all(map(torch.equal, run(), expected))}
    finally:
        shim.refuse_threads(0)


def main():
    pool, threads, names = sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
    shim = ctypes.CDLL(sys.argv[1])
    shim.stop_failing.restype = ctypes.c_int64
    shim.fail_after.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    if pool != "torch":
        # Threads of its own, as with a torch that has none to offer.
        native.share_torch_threads = lambda: False
        native.library().mg_set_num_threads(threads)
        torch.set_num_threads(1)
    for name in names:
        child_process.begin(name)
        operation, kind = OPERATIONS[name]
        world = Lookup(kind)
        expected = [one.clone() for one in operation(world)[1]()]
        if pool == "refused":
            child_process.tell(name, **without_threads(operation, world, shim, expected))
            continue
        for count in itertools.count():
            outcome = attempt(operation, world, threads if pool == "torch" else 1, count, shim, expected)
            child_process.tell(name, count=count, **outcome)
            if not outcome.get("failed"):
                break


if __name__ == "__main__":
    main()
