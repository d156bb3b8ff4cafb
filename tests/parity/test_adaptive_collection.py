"""Adaptive tables of any shape: the same however far ahead batches are resolved, read as they are stored."""

from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import megalith as mg
from megalith.core.store_spec import TieredSpec
from megalith.embeddings.stores import make_stores
from megalith.ops.embedding.operators import embedding_forward

OPTIMIZERS = (mg.SGD(lr=0.1), mg.RowWiseAdaGrad(lr=0.1), mg.RowWiseAdam(lr=0.1), mg.LAMB(lr=0.1))


@st.composite
def cases(draw, steps=14):
    """Tables, some of them adaptive, a policy, and batches of ids of which few occur often."""
    features = [f"f{number}" for number in range(draw(st.integers(1, 3)))]
    tables, optimizers = [], {}
    for number in range(draw(st.integers(1, 3))):
        dim, chunk = draw(st.sampled_from([(4, 1), (8, 4), (12, 3), (16, 16), (64, 1)]))
        store = draw(st.sampled_from(["dense", *2 * [{"kind": "adaptive", "chunk": chunk}]]))
        rows = draw(st.integers(20, 2000))
        table = mg.TableSpec(
            name=f"t{number}",
            rows=rows,
            dim=dim,
            features=tuple(draw(st.lists(st.sampled_from(features), min_size=1, unique=True))),
            pooling=draw(st.sampled_from(["sum", "mean", "max", "none"])),
            dtype=draw(st.sampled_from(["float32", "bfloat16"])),
            padding_index=draw(st.sampled_from([None, 0, rows - 1])),
            store=store,
        )
        tables.append(table)
        optimizers[table.name] = draw(st.sampled_from(OPTIMIZERS))
    policy = mg.AdaptivePolicy(
        budget=draw(st.integers(64 << 10, 256 << 10)),
        interval=draw(st.integers(1, 5)),
        warm_up=draw(st.integers(0, 4)),
        end_step=draw(st.integers(1, 10)),
        begin_ratio=draw(st.sampled_from([1, 2])),
        first_chunks=draw(st.integers(1, 3)),
        gamma=draw(st.sampled_from([0.5, 0.9, 0.99])),
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    looked_up = list(dict.fromkeys(feature for table in tables for feature in table.features))
    most = {name: min(table.rows for table in tables if name in table.features) for name in looked_up}
    batches = []
    for _ in range(steps):
        lengths = torch.randint(0, 4, (len(looked_up), 24), generator=generator)
        ids = [
            (torch.rand(int(own.sum()), generator=generator) ** 3 * most[name]).long()
            for name, own in zip(looked_up, lengths, strict=True)
        ]
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
        batches.append((torch.cat(ids), offsets))
    return tables, optimizers, policy, batches


def collection(tables, optimizers, policy, memory=None):
    return mg.EmbeddingCollection(tables, seed=3, table_optimizers=optimizers, adaptive=policy, memory=memory)


def over_tiers(table):
    """The same table with its live chunks on disk, if it is adaptive."""
    if table.store.kind == "dense":
        return table
    return table.model_copy(update={"store": table.store.model_copy(update={"over": TieredSpec()})})


def assert_same(one, other, tables, expected, found):
    """The same outputs, decisions, weights and optimizer state, to the last bit."""
    pairs = [pair for step in zip(expected, found, strict=True) for pair in zip(*step, strict=True)]
    assert all(torch.equal(mine, its) for mine, its in pairs)
    assert one.policy_state() == other.policy_state()
    states = [each.get_extra_state() for each in (one, other)]
    for table in tables:
        assert torch.equal(*(state["weights"][table.name] for state in states))


def train(embeddings, batches, depth):
    """Outputs of all steps, with so many batches resolved ahead of the one that is computed."""
    outputs, ahead, coming = [], deque(), iter(batches)

    def resolve():
        given = next(coming, None)
        if given is not None:
            ahead.append(embeddings.resolve(embeddings.exchange(*given), trains=True))

    for _ in range(depth):
        resolve()
    for _ in batches:
        resolve()
        lookup = embeddings.finish_lookup(embeddings.start_lookup(ahead.popleft()))
        found = [lookup.pooled, *lookup.sequences.values()]
        outputs.append([each.detach().clone() for each in found])
        torch.stack([((each + 0.5) ** 2).sum() for each in found]).sum().backward()
    return outputs


@given(cases(), st.integers(1, 4))
@settings(deadline=None, max_examples=25)
def test_nothing_depends_on_how_far_ahead_batches_are_resolved(case, depth):
    tables, optimizers, policy, batches = case
    one, other = (collection(tables, optimizers, policy) for _ in range(2))
    expected, found = train(one, batches, 0), train(other, batches, depth)
    assert_same(one, other, tables, expected, found)


@given(cases(), st.integers(0, 4), st.sampled_from([12, 48, 192]), st.sampled_from(["lookahead", "lru"]))
@settings(deadline=None, max_examples=25)
def test_chunks_on_disk_are_bit_for_bit_those_in_memory(case, depth, cached, policy_of_cache):
    """However small the cache is, and however far ahead rows are read."""
    tables, optimizers, policy, batches = case
    with TemporaryDirectory() as folder, patch.object(make_stores, "LEAST_ROWS", 4):
        memory = mg.TieredMemory(dram=cached << 10, path=Path(folder) / "rows", policy=policy_of_cache)
        one = collection(tables, optimizers, policy)
        other = collection(list(map(over_tiers, tables)), optimizers, policy, memory)
        expected, found = train(one, batches, 0), train(other, batches, depth)
        assert_same(one, other, tables, expected, found)


@given(cases())
@settings(deadline=None, max_examples=25)
def test_lookups_read_what_is_stored_and_zeros_elsewhere(case):
    """Pooled outputs against plain tables with all columns, zeros where no chunk lives."""
    tables, optimizers, policy, batches = case
    tables = [table.model_copy(update={"pooling": "sum"}) for table in tables]
    embeddings = collection(tables, optimizers, policy)
    dense = [table.model_copy(update={"store": None}) for table in tables]
    plain = mg.EmbeddingCollection(dense, seed=3, table_optimizers=optimizers)
    train(embeddings, batches, 1)
    plain.load_state_dict(embeddings.state_dict())
    with torch.no_grad():
        values, offsets = batches[0]
        expected = embedding_forward(
            [plain.weight(table.name) for table in tables],
            plain.lookups.pooled_descriptors,
            *(values, offsets, None, len(plain.features)),
            *(plain.output_dim, torch.float32),
        )
        assert torch.equal(embeddings(values, offsets), expected)
