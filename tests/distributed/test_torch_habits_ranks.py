"""What people do to a module in torch, on many processes: DDP, copies on ranks, sharded tables."""

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from processes import on_ranks
from sharded_cases import plan_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import megalith as mg
from megalith.core.errors import ConfigError

TABLES = [
    mg.TableSpec(name="t0", rows=40, dim=4, features=("a",), init_scale=1.0),
    mg.TableSpec(name="t1", rows=30, dim=8, features=("b",), pooling="mean", init_scale=1.0),
    mg.TableSpec(name="t2", rows=20, dim=2, features=("c",), pooling="none", init_scale=1.0),
]
BATCH = 6


class Scorer(nn.Module):
    def __init__(self, emb):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.ModuleDict({"emb": emb})
        self.layers = nn.Sequential(nn.Linear(emb.output_dim, 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, values, offsets):
        return self.layers(self.inner["emb"](values, offsets)).squeeze(1)


def batch(seed, size=BATCH):
    draw = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 20, (3 * size * 2,), generator=draw)
    weights = torch.rand(len(values), generator=draw)
    return values, torch.arange(0, len(values) + 1, 2), weights


def whole(**options):
    return mg.EmbeddingCollection(TABLES, mg.SGD(lr=0.5), seed=3, **options)


def sharded(ways=("row_wise", "table_wise", "row_wise")):
    plan = plan_of(TABLES, ways, dist.get_world_size())
    return mg.ShardedEmbeddingCollection(TABLES, plan, mg.SGD(lr=0.5), seed=3)


def held(emb):
    """The rows that are here."""
    blocks = [block for state in emb.table_states().values() for block in state.blocks(1 << 20)]
    return torch.cat([block.parts["weight"].flatten() for block in blocks]).clone()


def refuses_copies():
    values, offsets, _ = batch(dist.get_rank())
    emb = whole()
    before = emb.weight("t0").clone()
    model = DistributedDataParallel(Scorer(emb))
    with pytest.raises(ConfigError, match=r"2 processes.*ShardedEmbeddingCollection"):
        model(values, offsets)
    # The dense part alone is wrapped, and the tables would drift apart all the same.
    with pytest.raises(ConfigError, match="independent=True"):
        emb(values, offsets)
    assert torch.equal(emb.weight("t0"), before)
    # Reading is no harm, and neither are tables that stay as they are.
    with torch.no_grad():
        emb(values, offsets)
    emb.eval()(values, offsets).requires_grad_().sum().backward()
    emb.train().requires_grad_(False)(values, offsets)
    alone = whole(independent=True)
    alone(values, offsets).sum().backward()
    assert alone.num_steps == 1
    dist.barrier()


def test_copies_of_tables_on_ranks_are_refused():
    on_ranks(2, refuses_copies)


def refuses_copies_under_fsdp():
    model = Scorer(whole())
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    values, offsets, _ = batch(dist.get_rank())
    with pytest.raises(ConfigError, match="ShardedEmbeddingCollection"):
        model(values, offsets)


def test_copies_of_tables_on_ranks_are_refused_under_fsdp():
    on_ranks(2, refuses_copies_under_fsdp)


def trains_alone(accumulate):
    plain, inner = Scorer(whole(accumulate=accumulate)), Scorer(whole(accumulate=accumulate))
    wrapped = DistributedDataParallel(inner)
    for seed in range(3):
        values, offsets, _ = batch(seed)
        for model in (plain, wrapped):
            model(values, offsets).square().sum().backward()
        if accumulate:
            assert plain.inner["emb"].step()
            assert inner.inner["emb"].step()
    assert inner.inner["emb"].num_steps == 3
    assert torch.equal(plain.inner["emb"].weight("t1"), inner.inner["emb"].weight("t1"))


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_group_of_one_trains_under_ddp(accumulate):
    on_ranks(1, trains_alone, accumulate)


def trains_sharded_under_ddp():
    """DDP takes means over ranks, sharded tables sums: the number of ranks is the loss scale of means."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    emb = sharded()
    emb.loss_scale = ranks
    model = DistributedDataParallel(Scorer(emb))
    one = Scorer(whole(independent=True))
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (model, one)]
    for seed in range(3):
        parts = [batch(10 * seed + number) for number in range(ranks)]
        for optimizer in optimizers:
            optimizer.zero_grad()
        values, offsets, _ = parts[rank]
        model(values, offsets).square().mean().backward()
        features = [part[0].view(3, -1) for part in parts]
        values = torch.cat(features, dim=1).flatten()
        one(values, torch.arange(0, len(values) + 1, 2)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    for own, expected in zip(model.module.layers.parameters(), one.layers.parameters(), strict=True):
        torch.testing.assert_close(own, expected)
    for state, table in zip(emb.table_states().values(), TABLES, strict=True):
        for block in state.blocks(1 << 20):
            rows = one.inner["emb"].weight(table.name)[torch.as_tensor(block.ids)]
            torch.testing.assert_close(block.parts["weight"], rows[:, slice(*block.columns)])


def test_sharded_tables_train_inside_ddp():
    on_ranks(2, trains_sharded_under_ddp)


def keeps_habits(ways):
    emb = sharded(ways)
    values, offsets, weights = batch(dist.get_rank())
    weights.requires_grad_()

    def lookup():
        found = emb.lookup(values, offsets, weights)
        return found.pooled.square().sum() + found.sequences["t2", "c"].square().sum()

    def stays(act):
        before, steps = held(emb), emb.num_steps
        act()
        return torch.equal(held(emb), before) and emb.num_steps == steps

    expected = torch.autograd.grad(lookup(), weights)[0]
    loss = lookup()
    assert stays(lambda: torch.autograd.grad(loss, weights, retain_graph=True))
    emb.eval()
    assert stays(lambda: lookup().backward())
    torch.testing.assert_close(weights.grad, expected)
    nn.Sequential(emb.train()).requires_grad_(False)
    weights.grad = None
    assert stays(lambda: lookup().backward())
    torch.testing.assert_close(weights.grad, expected)
    emb.requires_grad_(True)
    late = lookup()
    assert not stays(lambda: loss.backward(retain_graph=True))
    with pytest.raises(ConfigError, match="sample weights need the rows"):
        late.backward()
    with pytest.raises(ConfigError, match=r"add the losses up and call backward\(\) once\."):
        loss.backward()
    with pytest.raises(ConfigError, match="no second derivative"):
        torch.autograd.grad(lookup(), weights, create_graph=True)
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(ConfigError, match="load a checkpoint"):
            copied(emb)
    with pytest.raises(ConfigError, match="table_states"):
        nn.Sequential(emb).state_dict()
    with pytest.raises(ConfigError, match="convert what it returns"):
        emb.double()
    before = held(emb)
    assert nn.Sequential(emb).half()[0](values, offsets).dtype == torch.float16
    assert torch.equal(held(emb), before)
    assert emb.float().output_dtype == torch.float32
    assert f"rank {dist.get_rank()} of 2; trains: backward() updates" in repr(emb)
    dist.barrier()


@pytest.mark.parametrize(
    "ways", [("row_wise", "table_wise", "row_wise"), ("data_parallel", "row_wise", "data_parallel")]
)
def test_sharded_tables_know_the_same_habits(ways):
    on_ranks(2, keeps_habits, ways)


def checkpoints():
    """All ranks look up twice and take one step."""
    emb, other = sharded(), sharded()
    layer = nn.Linear(emb.output_dim, 1)
    values, offsets, weights = batch(dist.get_rank())
    weights.requires_grad_()

    def score(tables):
        return lambda *indices: layer(tables(*indices)).square()

    for _ in range(2):
        checkpoint(score(emb), values, offsets, weights, use_reentrant=False).sum().backward()
        score(other)(values, offsets, weights).sum().backward()
    assert emb.num_steps == other.num_steps == 2
    assert torch.equal(held(emb), held(other))
    parts = [checkpoint(score(emb), values, offsets, weights, use_reentrant=False).sum() for _ in range(2)]
    with pytest.raises(ConfigError, match="outside of checkpoint"):
        sum(parts).backward()
    dist.barrier()


def test_gradient_checkpointing_of_sharded_tables_takes_one_step():
    on_ranks(2, checkpoints)


def skips_together():
    emb = sharded()
    emb.loss_scale = 4.0
    values, offsets, _ = batch(dist.get_rank())
    before = held(emb)
    out = emb(values, offsets)
    gradient = torch.ones_like(out)
    if dist.get_rank() == 1:
        gradient[0, 0] = torch.inf
    out.backward(gradient)
    assert torch.equal(held(emb), before)
    assert (emb.num_steps, emb.num_skipped_steps) == (0, 1)
    out = emb(values, offsets)
    out.backward(torch.ones_like(out))
    assert not torch.equal(held(emb), before)
    assert (emb.num_steps, emb.num_skipped_steps) == (1, 1)


def test_ranks_skip_a_step_together_when_a_gradient_of_one_is_not_finite():
    on_ranks(2, skips_together)
