"""Dynamic tables over chunks, and other adaptive ones beside them, trained by one process and by many."""

import itertools

from adaptive_cases import state_of
from dynamic_cases import BATCH, BOUNDS, POLICIES, SHAPES, part_of
from rank_steps import own_samples, take_steps

import megalith as mg
from megalith.checkpoint.store import CheckpointStore
from megalith.comm.ranks import Ranks
from megalith.core.store_spec import partition_edges, unit_edges
from megalith.sharding.plan import Placement, Shard, ShardingPlan
from stored_rows import rows_by_id

POLICY = mg.AdaptivePolicy(budget="96KiB", chunk=4, end_step=20, warm_up=4, interval=6, gamma=0.95)
OVER = {"a": "adaptive", "b": "adaptive", "c": "adaptive", "d": "adaptive", "e": "dense"}


def tables():
    made = [
        mg.TableSpec(
            name=name,
            rows=bound,
            store={"kind": "dynamic", "bound": bound, "over": {"kind": OVER[name]}, **POLICIES[name]},
            **SHAPES[name],
        )
        for name, bound in BOUNDS.items()
    ]
    plain = {"kind": "adaptive"}
    return [*made, mg.TableSpec(name="plain", rows=4000, dim=2, features=("d",), store=plain)]


def plan_over(world_size, made, turn=0):
    """Some workers have two parts of a table, or all of one; the last holds nothing dynamic."""
    others = max(1, world_size - 1) if world_size > 2 else world_size
    placements = []
    for number, table in enumerate(made):
        workers = [(number + turn + one) % others for one in range(2 * others)]
        cut_at = partition_edges if table.is_dynamic else unit_edges
        kind, edges = "row_wise", cut_at(table.rows, 2 * others)
        if table.pooling == "max" or (number + turn) % 5 == 2:
            kind, edges = "table_wise", [0, table.rows]
        if table.name == "plain":
            workers = [world_size - 1 - one % 2 for one in range(2 * others)]
        shards = [
            Shard(worker=worker, rows=rows, columns=(0, table.dim))
            for worker, rows in zip(workers, itertools.pairwise(edges), strict=False)
        ]
        store = "dynamic" if table.is_dynamic else "adaptive"
        placements.append(Placement(table=table.name, kind=kind, store=store, shards=shards))
    return ShardingPlan(world_size=world_size, workers_per_node=world_size, placements=placements)


def make(world_size, turn=0, optimizer=None):
    made, optimizer = tables(), optimizer or mg.Adam(lr=0.05)
    if world_size == 1:
        return mg.EmbeddingCollection(made, optimizer, seed=3, adaptive=POLICY)
    plan = plan_over(world_size, made, turn)
    return mg.ShardedEmbeddingCollection(made, plan, optimizer, seed=3, adaptive=POLICY)


def train(embeddings, first, last, *, ahead=0):
    for _ in take_steps(embeddings, first, last, own_samples(BATCH), part_of, ahead=ahead):
        pass


def contents(embeddings):
    """Rows and units of this process with every part of them, what all agree on, and what is counted."""
    return (
        rows_by_id(embeddings),
        embeddings.policy_state(),
        embeddings.adaptive().counts,
        embeddings.dynamic_counts(),
    )


def together(of_ranks):
    """The contents of all ranks as those of one process; no row is saved by two."""
    rows, (_, state, changes, counts) = {}, of_ranks[0]
    for number, (own, its_state, its_changes, its_counts) in enumerate(of_ranks):
        assert not rows.keys() & own.keys()
        rows |= own
        assert (its_state, its_changes) == (state, changes)
        counts = counts.plus(its_counts) if number else its_counts
    return rows, state, changes, counts._replace(map_bytes=0)


def trained(last, turn=0, ahead=0):
    """A process's contents after so many steps."""
    embeddings = make(Ranks.all().world_size, turn)
    train(embeddings, 0, last, ahead=ahead)
    return contents(embeddings)


def go_on(folder, last, turn=0):
    """Loads the newest checkpoint if there is one, trains on and saves; the contents."""
    ranks = Ranks.all()
    embeddings = make(ranks.world_size, turn)
    store = CheckpointStore(folder, ranks=ranks.with_own_group())
    step = ranks.from_first(store.latest)
    if step is not None:
        state = state_of(embeddings)
        store.load(step, state)
        embeddings.num_steps = state["num_steps"]
        embeddings.load_policy_state(state["adaptive"])
    train(embeddings, embeddings.num_steps, last)
    store.save(last, state_of(embeddings), {})
    return contents(embeddings)
