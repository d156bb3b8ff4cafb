"""Ids that expire by event time on several ranks: the same ones leave as in one process, bit for bit."""

import json

import pytest
import torch
from dynamic_cases import contents, together
from processes import on_ranks
from rank_steps import own_samples
from small_runs import losses, make_recipe, train

import megalith as mg
from megalith.comm.ranks import Ranks
from megalith.core.errors import ConfigError, DataError
from megalith.core.files import read_jsonl
from megalith.core.store_spec import partition_edges
from megalith.data.synth.generate import generate
from megalith.data.synth.options import SynthOptions
from megalith.sharding.plan import Placement, Shard, ShardingPlan

BATCH, STEPS = 24, 30
IDS = {"a": 2, "b": 1, "c": 2, "d": 1}
"""Of a sample, by feature."""


def tables():
    def table(name, *, pooling="sum", **settings):
        expiry = {"seconds": 40, "interval": 3} if name != "d" else {"batches": 6, "interval": 3}
        store = {"kind": "dynamic", "bound": 200, "expiry": expiry, **settings}
        return mg.TableSpec(name=name, rows=200, dim=4, features=(name,), pooling=pooling, store=store)

    padded = table("a").model_copy(update={"padding_index": 3})
    return [padded, table("b", unknown="zeros"), table("c", pooling="none"), table("d")]


def batch(step):
    """Ids of all ranks by feature, when each sample happened, and gradients that are added up exactly."""
    generator = torch.Generator().manual_seed(step)
    ids = {
        name: (torch.rand(BATCH, count, generator=generator) ** 2 * 250).long() * -7046029254386353131
        for name, count in IDS.items()
    }
    # In no order, and the latest ones on any rank.
    times = 10 * step + torch.randint(0, 60, (BATCH,), generator=generator)
    pooled = torch.randint(-8, 9, (BATCH, 12), generator=generator) / 16
    sequence = torch.randint(-8, 9, (BATCH, IDS["c"], 4), generator=generator) / 16
    return ids, times, pooled, sequence


def part_of(step, first, last):
    """Ids, offsets and times of one rank, and the gradients of its outputs."""
    ids, times, pooled, sequence = batch(step)
    own = [values[first:last] for values in ids.values()]
    lengths = torch.cat([torch.full((last - first,), count) for count in IDS.values()])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    given = pooled[first:last], sequence[first:last].reshape(-1, 4)
    return torch.cat([values.flatten() for values in own]), offsets, times[first:last], *given


def plan_over(world_size, made):
    """Some tables are cut over all workers, one lies on the last."""
    placements = []
    for number, table in enumerate(made):
        edges = partition_edges(table.rows, world_size) if number != 1 else [0, table.rows]
        workers = range(world_size) if number != 1 else [world_size - 1]
        shards = [
            Shard(worker=worker, rows=(edges[n], edges[n + 1]), columns=(0, table.dim))
            for n, worker in enumerate(workers)
        ]
        kind = "table_wise" if number == 1 else "row_wise"
        placements.append(Placement(table=table.name, kind=kind, store="dynamic", shards=shards))
    return ShardingPlan(world_size=world_size, workers_per_node=world_size, placements=placements)


def make(world_size):
    made = tables()
    if world_size == 1:
        return mg.EmbeddingCollection(made, mg.Adam(lr=0.05), seed=3)
    return mg.ShardedEmbeddingCollection(made, plan_over(world_size, made), mg.Adam(lr=0.05), seed=3)


def trained(ahead=0, uneven=False):
    """A process's rows and counts after all steps, and which ids left in which batch."""
    world_size = Ranks.all().world_size
    embeddings, own, left = make(world_size), own_samples(BATCH), []
    if uneven:
        # The first rank has no sample at all.
        own = [0, 0] if Ranks.all().rank == 0 else [0, BATCH]
    embeddings.on_evicted(
        lambda step, names, gone: left.extend(
            (step, names[table], one)
            for table, one in zip(gone.tables.tolist(), gone.ids.tolist(), strict=True)
        )
    )
    resolved = []
    for step in range(STEPS):
        while len(resolved) <= ahead and step + len(resolved) < STEPS:
            ids, offsets, times, *_ = part_of(step + len(resolved), *own)
            if world_size == 1:
                received = embeddings.exchange(ids, offsets)
            else:
                received = embeddings.exchange(ids, offsets, event_time=times)
            resolved.append(embeddings.resolve(received, trains=True))
        _, _, times, pooled, sequence = part_of(step, *own)
        if world_size == 1:
            embeddings.event_time = times
        found = embeddings.finish_lookup(embeddings.start_lookup(resolved.pop(0)))
        torch.autograd.backward([found.pooled, found.sequences["c", "c"]], [pooled, sequence])
        if step % 7 == 6:
            with torch.no_grad():
                embeddings.lookup(*part_of(1000, *own)[:2])
    return *contents(embeddings), left


def one_lookup(*times):
    """A single step with the time of each rank, as `forward` takes it."""
    rank = Ranks.all().rank
    embeddings = make(Ranks.all().world_size)
    embeddings.event_time = times[rank]
    ids, offsets, *_ = part_of(0, *own_samples(BATCH))
    found = embeddings.lookup(ids, offsets)
    found.pooled.sum().backward()
    return contents(embeddings)


@pytest.fixture(scope="module")
def alone():
    """What one process has after all steps."""
    return trained()


def test_ids_leave_by_time_and_by_batches(alone):
    _, counts, left = alone
    assert counts.expired_by_seconds > 200
    assert counts.expired_by_batches > 20
    assert {name for _, name, _ in left} == set(IDS)


@pytest.mark.parametrize(
    ("ranks", "ahead", "uneven"),
    [
        (2, 0, False),
        (2, 2, False),
        (2, 1, True),
        (4, 1, False),
        *(pytest.param(4, ahead, False, marks=pytest.mark.slow) for ahead in (0, 2, 3)),
    ],
)
def test_ranks_expire_what_one_process_does(alone, ranks, ahead, uneven):
    if uneven:
        assert ranks == 2
    found = on_ranks(ranks, trained, ahead, uneven)
    rows, counts = together(found)
    assert rows == alone[0]
    assert counts == alone[1]
    assert sorted(one for *_, left in found for one in left) == sorted(alone[2])


def test_an_id_has_the_time_of_the_rank_that_used_it():
    found = on_ranks(2, one_lookup, 100, torch.arange(200, 200 + BATCH // 2))
    rows, _ = together(found)
    ids, *_ = batch(0)
    assert len(rows) > 60
    for (name, one), parts in rows.items():
        if name in ("a", "b", "c"):
            samples = (ids[name] == one).any(dim=1).nonzero().view(-1).tolist()
            late = [200 + sample - BATCH // 2 for sample in samples if sample >= BATCH // 2]
            assert parts["time"] == max(late, default=100)


@pytest.mark.parametrize(
    ("times", "error", "message"),
    [
        ((100, None), ConfigError, "Some ranks give event times"),
        ((torch.arange(3), torch.arange(3)), DataError, r"event_time is int64 \[3\]"),
        ((None, None), DataError, "expire by event time"),
    ],
)
def test_times_that_do_not_fit_are_refused_in_a_sentence(times, error, message):
    with pytest.raises(AssertionError, match=message) as caught:
        on_ranks(2, one_lookup, *times)
    assert error.__name__ in str(caught.value)


def test_a_recipe_on_ranks_lets_the_same_ids_go(tmp_path):
    """`train` with a plan of its own, which exchanges ids and times a few batches ahead."""
    generate(SynthOptions("criteo", train_rows=3000, valid_rows=200, days=10), tmp_path / "data")
    recipe = make_recipe(tmp_path / "timed.yaml", tmp_path / "data")
    store = {"kind": "dynamic", "bound": 8000, "expiry": {"seconds": 86_400, "interval": 3}}
    given = (
        "embeddings.stores=" + json.dumps({"*": store}),
        *("data.shuffle=false", "embeddings.log_evicted=true", "train.epochs=1", "train.pipeline=2"),
    )
    left = []
    for ranks in (1, 2):
        run = train(recipe, tmp_path / f"run-{ranks}", ranks, *given)
        lines = read_jsonl(run.evicted)
        assert {reason for line in lines for reason in line["reasons"]} == {"seconds"}
        left.append(sorted((line["step"], line["table"], id_) for line in lines for id_ in line["ids"]))
        left.append(losses(run))
    assert left[0] == left[2]
    assert len(left[0]) > 1000
    assert left[1] == pytest.approx(left[3], rel=1e-4)
