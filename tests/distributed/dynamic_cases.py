"""Dynamic tables trained by one process and by many: which ids have a row, every number of it, and what else
the tables know."""

import itertools
from functools import reduce

import torch
from rank_steps import own_samples, take_steps

import megalith as mg
from megalith.checkpoint.store import CheckpointStore
from megalith.comm.ranks import Ranks
from megalith.core.store_spec import partition_edges
from megalith.embeddings.stores.dynamic.counts import DynamicCounts
from megalith.ops.ids.changes import LEAVING_REASONS
from megalith.sharding.plan import Placement, Shard, ShardingPlan
from stored_rows import rows_by_id

BOUNDS = {"a": 150, "b": 200, "c": 130, "d": 64, "e": 170}
POLICIES = {
    "a": {"admission": {"kind": "count", "count": 2, "counter_bytes": 8192}, "eviction": {"kind": "lfu"}},
    "b": {"eviction": {"kind": "score", "half_life": 10}, "expiry": {"batches": 7, "interval": 4}},
    "c": {"admission": {"kind": "probability", "probability": 0.4, "counter_bytes": 8192}},
    "d": {},
    "e": {"unknown": "zeros", "eviction": {"kind": "lfu", "halve_every": 5}},
}
SHAPES = {
    "a": {"dim": 16, "features": ("a",), "padding_index": 3},
    "b": {"dim": 8, "features": ("b", "e"), "dtype": "bfloat16", "pooling": "mean"},
    "c": {"dim": 16, "features": ("c",), "pooling": "none"},
    "d": {"dim": 8, "features": ("d",), "pooling": "max"},
    "e": {"dim": 4, "features": ("e",)},
}
FEATURES = ("a", "b", "e", "c", "d")
"""In the order in which tables name them."""
LENGTHS = {"a": 2, "b": 2, "c": 2, "d": 1, "e": 4}
"""Ids of a sample: powers of two, so that means are exact."""
BATCH = 24


def tables(over="dense", **bounds):
    dynamic = [
        mg.TableSpec(
            name=name,
            rows=bound,
            store={"kind": "dynamic", "bound": bound, "over": {"kind": over}, **POLICIES[name]},
            **SHAPES[name],
        )
        for name, bound in (BOUNDS | bounds).items()
    ]
    return [*dynamic, mg.TableSpec(name="whole", rows=4000, dim=2, features=("d",))]


def batch(step):
    """Feature-major ids of all ranks, and a gradient for each output: whole numbers, so sums are exact."""
    generator = torch.Generator().manual_seed(step)
    values, lengths = [], []
    for feature in FEATURES:
        count = LENGTHS[feature]
        ids = (torch.rand(BATCH * count, generator=generator) ** 2 * 600).long() + 3 * step
        if feature != "d":
            # Any 64 bits, below 0 too.
            ids = torch.where(ids % 5 == 0, ids % 7, ids * -7046029254386353131)
        values.append(ids)
        lengths += [count] * BATCH
    columns = 16 + 2 * 8 + 8 + 4 + 2
    pooled = torch.randint(-8, 9, (BATCH, columns), generator=generator) / 16
    sequence = torch.randint(-8, 9, (BATCH * LENGTHS["c"], 16), generator=generator) / 16
    return torch.cat(values), torch.tensor(lengths), pooled, sequence


def part_of(step, first, last):
    """What one rank has of a batch."""
    values, lengths, pooled, sequence = batch(step)
    edges = [0, *lengths.cumsum(0).tolist()]
    samples = [slice(number * BATCH + first, number * BATCH + last) for number in range(len(FEATURES))]
    ids = [values[edges[own.start] : edges[own.stop]] for own in samples]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), *(lengths[own] for own in samples)]).cumsum(0)
    count = LENGTHS["c"]
    return torch.cat(ids), offsets, pooled[first:last], sequence[first * count : last * count]


def plan_over(world_size, made, turn=0):
    """The last worker holds nothing dynamic; of the others some have two parts of a table, or all of one."""
    others = max(1, world_size - 1)
    placements = []
    for number, table in enumerate(made):
        workers = [(number + turn + one) % others for one in range(2 * others)]
        kind, edges = "row_wise", partition_edges(table.rows, 2 * others)
        if table.name in ("d", "whole") or (number + turn) % 5 == 2:
            kind, edges = "table_wise", [0, table.rows]
        if table.name == "whole":
            workers = [world_size - 1]
        shards = [
            Shard(worker=worker, rows=rows, columns=(0, table.dim))
            for worker, rows in zip(workers, itertools.pairwise(edges), strict=False)
        ]
        store = "dynamic" if table.is_dynamic else "dense"
        placements.append(Placement(table=table.name, kind=kind, store=store, shards=shards))
    return ShardingPlan(world_size=world_size, workers_per_node=world_size, placements=placements)


def make(ranks, turn=0, folder=None, deduplicate=False, **bounds):
    """Tables of this process; with a `folder` their rows are on disk, and not all in memory."""
    made = tables("dense" if folder is None else "tiered", **bounds)
    memory = None if folder is None else mg.TieredMemory(dram="96KiB", path=folder)
    optimizer = mg.Adam(lr=0.05)
    if ranks.world_size == 1:
        return mg.EmbeddingCollection(made, optimizer, seed=3, memory=memory, independent=True)
    plan = plan_over(ranks.world_size, made, turn)
    if deduplicate:
        exchange = plan.exchange.model_copy(update={"deduplicate": True})
        plan = plan.model_copy(update={"exchange": exchange})
    return mg.ShardedEmbeddingCollection(made, plan, optimizer, seed=3, memory=memory)


def train(embeddings, first, last, *, ahead=0):
    """Steps of this process with the other ranks, if there are any; resolved `ahead` of their turn."""
    own = own_samples(BATCH)
    for step in take_steps(embeddings, first, last, own, part_of, ahead=ahead):
        if step % 6 == 5:
            evaluate(embeddings, own)


@torch.no_grad()
def evaluate(embeddings, own):
    """Looks up what nobody has seen: nothing may come of it."""
    ids, offsets, *_ = part_of(1000, *own)
    return embeddings.lookup(ids, offsets).pooled


def contents(embeddings):
    """Rows of this process by table and id with every part of them, and what is counted."""
    rows = {key: parts for key, (_, parts) in rows_by_id(embeddings).items()}
    return rows, embeddings.dynamic_counts()._replace(map_bytes=0)


def together(of_ranks):
    """The contents of all ranks as those of one process; no row is saved by two."""
    rows = {}
    for own, *_ in of_ranks:
        assert not rows.keys() & own.keys()
        rows |= own
    return rows, reduce(DynamicCounts.plus, [counts for _, counts, *_ in of_ranks])


def trained(last, turn=0, ahead=0, folder=None, deduplicate=False):
    """A process's contents after so many steps, and the ids that left, by step and table."""
    ranks = Ranks.all()
    embeddings = make(ranks, turn, folder, deduplicate)
    left = []
    embeddings.on_evicted(lambda step, names, evicted: left.extend(_left(step, names, evicted)))
    train(embeddings, 0, last, ahead=ahead)
    return *contents(embeddings), left


def _left(step, names, evicted):
    of_each = zip(evicted.tables.tolist(), evicted.ids.tolist(), evicted.reasons.tolist(), strict=True)
    return [(step, names[table], one, LEAVING_REASONS[reason]) for table, one, reason in of_each]


def go_on(folder, last, turn=0, rows=None, bounds=None):
    """Loads the newest checkpoint if there is one, trains on and saves; the contents."""
    ranks = Ranks.all()
    embeddings = make(ranks, turn, rows, **(bounds or {}))
    store = CheckpointStore(folder, ranks=ranks.with_own_group())
    step = ranks.from_first(store.latest)
    if step is not None:
        state = {"tables": embeddings.table_states(), "num_steps": 0}
        store.load(step, state)
        embeddings.num_steps = state["num_steps"]
    train(embeddings, embeddings.num_steps, last)
    store.save(last, {"tables": embeddings.table_states(), "num_steps": embeddings.num_steps}, {})
    return contents(embeddings)


def exported(embeddings, table):
    """All ids of a table with vectors and scores."""
    return {
        one: (weight, score)
        for block in embeddings.export_ids(table, 1 << 11)
        for one, weight, score in zip(
            block.ids.tolist(), block.parts["weight"].tolist(), block.parts["score"].tolist(), strict=True
        )
    }


def moved_ids(last, bound):
    """What ranks export after some steps, and what a table of another bound has after it took all of it."""
    ranks = Ranks.all()
    embeddings, other = make(ranks), make(ranks, 1, a=bound)
    train(embeddings, 0, last)
    count = other.import_ids("a", list(embeddings.export_ids("a", 1 << 11)))
    return exported(embeddings, "a"), count, exported(other, "a")


def weighted(last):
    """Trains a table whose ids have weights that want a gradient; its rows, and the weights' gradients."""
    ranks, gradients = Ranks.all(), []
    store = {"kind": "dynamic", "bound": 64, "admission": POLICIES["a"]["admission"]}
    table = mg.TableSpec(name="t", rows=64, dim=4, features=("f",), store=store)
    if ranks.world_size == 1:
        embeddings = mg.EmbeddingCollection([table], mg.SGD(lr=0.25), seed=3, independent=True)
    else:
        embeddings = mg.ShardedEmbeddingCollection([table], None, mg.SGD(lr=0.25), seed=3)
    own = slice(*(BATCH * one // ranks.world_size for one in (ranks.rank, ranks.rank + 1)))
    for step in range(last):
        generator = torch.Generator().manual_seed(step)
        ids = (torch.rand(BATCH, 2, generator=generator) ** 2 * 200).long() * -7046029254386353131
        weights = torch.randint(1, 5, (BATCH, 2), generator=generator) / 4
        gradient = torch.randint(-8, 9, (BATCH, 4), generator=generator) / 16
        given = weights[own].flatten().requires_grad_()
        found = embeddings(ids[own].flatten(), 2 * torch.arange(len(ids[own]) + 1), given)
        found.backward(gradient[own])
        gradients.append(given.grad.tolist())
    return contents(embeddings)[0], gradients


def changed_policy(folder, saves):
    """Saves a table whose ids leave by last use, or loads it as one whose scores decay."""
    ranks = Ranks.all()
    eviction = {"kind": "lfu"} if saves else {"kind": "score", "half_life": 1}
    store = {"kind": "dynamic", "bound": 200, "eviction": eviction}
    table = mg.TableSpec(name="t", rows=200, dim=2, features=("f",), store=store)
    if ranks.world_size == 1:
        embeddings = mg.EmbeddingCollection([table], seed=3, independent=True)
    else:
        embeddings = mg.ShardedEmbeddingCollection([table], None, seed=3)
    checkpoints = CheckpointStore(folder, ranks=ranks.with_own_group())
    state = {"tables": embeddings.table_states()}
    if not saves:
        checkpoints.load(1, state)
        return sorted(exported(embeddings, "t").items())
    for step in range(7):
        out = embeddings(torch.arange(60 + step), torch.arange(61 + step))
        out.backward(torch.ones_like(out))
    checkpoints.save(1, state, {})
    return sorted(exported(embeddings, "t").items())
