"""Adaptive tables trained by one process and by many: every number of their rows, sketches and budget."""

import itertools
from functools import reduce

import torch
import torch.distributed as dist
from rank_steps import own_samples, take_steps

import megalith as mg
from megalith.checkpoint.state import OptionalValues
from megalith.checkpoint.store import CheckpointStore
from megalith.comm.ranks import Ranks
from megalith.core.store_spec import unit_edges
from megalith.embeddings.stores.adaptive.figures import AdaptiveFigures
from megalith.sharding.plan import Placement, Shard, ShardingPlan
from stored_rows import rows_by_id

CHUNKED = {"kind": "adaptive", "chunk": 4}
TABLES = [
    mg.TableSpec(name="a", rows=1000, dim=16, features=("a",), store=CHUNKED, padding_index=700),
    mg.TableSpec(name="b", rows=301, dim=8, features=("b",), store=CHUNKED, dtype="bfloat16"),
    mg.TableSpec(name="c", rows=500, dim=16, features=("c",), store=CHUNKED, pooling="none"),
    mg.TableSpec(name="d", rows=40, dim=8, features=("d",), store=CHUNKED, pooling="max"),
    mg.TableSpec(name="whole", rows=40, dim=2, features=("d",)),
]
LENGTHS = {"a": 1, "b": 3, "c": 2, "d": 2}
"""Ids of a sample."""
BATCH = 24
POLICY = mg.AdaptivePolicy(budget="40KiB", end_step=20, warm_up=4, interval=6, gamma=0.95)
CHANGES = 30, 150
"""The steps from which on other ids are popular."""


def batch(step):
    """Feature-major ids of all ranks, and a gradient for each output: whole numbers, so sums are exact."""
    generator = torch.Generator().manual_seed(step)
    values, lengths = [], []
    for table in TABLES[:4]:
        count = LENGTHS[table.name]
        ids = (torch.rand(BATCH * count, generator=generator) ** 3 * table.rows).long()
        popular = sum(step >= change for change in CHANGES)
        values.append([ids, table.rows - 1 - ids, (ids + table.rows // 2) % table.rows][popular])
        lengths += [count] * BATCH
    columns = sum(table.dim for table in TABLES if table.pooling != "none")
    pooled = torch.randint(-8, 9, (BATCH, columns), generator=generator) / 16
    sequence = torch.randint(-8, 9, (BATCH * LENGTHS["c"], 16), generator=generator) / 16
    return torch.cat(values), torch.tensor(lengths), pooled, sequence


def part_of(step, first, last):
    """What one rank has of a batch."""
    values, lengths, pooled, sequence = batch(step)
    edges = [0, *lengths.cumsum(0).tolist()]
    samples = [slice(feature * BATCH + first, feature * BATCH + last) for feature in range(4)]
    ids = [values[edges[own.start] : edges[own.stop]] for own in samples]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), *(lengths[own] for own in samples)]).cumsum(0)
    count = LENGTHS["c"]
    return torch.cat(ids), offsets, pooled[first:last], sequence[first * count : last * count]


def plan_over(world_size, turn=0):
    """The last worker holds nothing adaptive; each of the others has two parts of tables that are cut."""
    others = max(1, world_size - 1)
    placements = []
    for number, table in enumerate(TABLES):
        workers = [(number + turn + one) % others for one in range(2 * others)]
        edges = unit_edges(table.rows, 2 * others)
        kind = "row_wise"
        if table.name in ("d", "whole") or (number + turn) % 3 == 2:
            kind, edges = "table_wise", [0, table.rows]
        if table.name == "whole":
            workers = [world_size - 1]
        shards = [
            Shard(worker=worker, rows=rows, columns=(0, table.dim))
            for worker, rows in zip(workers, itertools.pairwise(edges), strict=False)
        ]
        placements.append(Placement(table=table.name, kind=kind, shards=shards))
    return ShardingPlan(world_size=world_size, workers_per_node=world_size, placements=placements)


def make(plan, optimizer=None):
    optimizer = optimizer or mg.RowWiseAdaGrad(lr=0.05)
    if plan is None:
        return mg.EmbeddingCollection(TABLES, optimizer, seed=3, adaptive=POLICY, independent=True)
    return mg.ShardedEmbeddingCollection(TABLES, plan, optimizer, seed=3, adaptive=POLICY)


def train(embeddings, first, last, *, ahead=0):
    """Steps of this process with the other ranks, if there are any; resolved `ahead` of their turn."""
    for _ in take_steps(embeddings, first, last, own_samples(BATCH), part_of, ahead=ahead):
        pass


def contents(embeddings):
    """Rows and units of this process by table and id, every part of them, and what all agree on."""
    return rows_by_id(embeddings), embeddings.policy_state(), embeddings.adaptive()


def together(of_ranks):
    """The contents of all ranks as those of one process; no row lies on two."""
    rows, (_, state, figures) = {}, of_ranks[0]
    for own, its_state, its_figures in of_ranks:
        assert not rows.keys() & own.keys()
        rows |= own
        assert its_state == state
        assert its_figures.counts == figures.counts
    return rows, state, reduce(AdaptiveFigures.plus, [own for *_, own in of_ranks])


def trained(last, turn=0, ahead=0):
    """A rank's contents after so many steps."""
    embeddings = make(plan_over(dist.get_world_size(), turn))
    train(embeddings, 0, last, ahead=ahead)
    return contents(embeddings)


def state_of(embeddings):
    return {
        "tables": embeddings.table_states(),
        "num_steps": embeddings.num_steps,
        "adaptive": OptionalValues(embeddings.policy_state()),
    }


def go_on(folder, last, turn=0):
    """Loads the newest checkpoint if there is one, trains on and saves; the contents."""
    ranks = Ranks.all()
    embeddings = make(None if ranks.world_size == 1 else plan_over(ranks.world_size, turn))
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
