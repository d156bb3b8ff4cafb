"""Tiered tables against dense ones: every output and every row, bit by bit, whatever fits into memory."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import megalith as mg
from megalith.core.errors import ConfigError, StorageError

OPTIMIZERS = (
    mg.SGD(lr=0.1),
    mg.AdaGrad(lr=0.1),
    mg.RowWiseAdaGrad(lr=0.1),
    mg.Adam(lr=0.1),
    mg.RowWiseAdam(lr=0.1),
    mg.LAMB(lr=0.1),
    mg.LARS(lr=0.1),
)


@dataclass
class Case:
    """Tables, some of them tiered, and batches for them."""

    tables: list[mg.TableSpec]
    optimizers: dict[str, mg.RowWiseAdaGrad]
    batches: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]
    policy: str

    def collection(self, memory=None, stored=True):
        tables = (
            self.tables if stored else [table.model_copy(update={"store": None}) for table in self.tables]
        )
        return mg.EmbeddingCollection(tables, seed=3, table_optimizers=self.optimizers, memory=memory)


@st.composite
def cases(draw, steps=6):
    features = [f"f{i}" for i in range(draw(st.integers(1, 3)))]
    tables, optimizers = [], {}
    # Few shapes, so that tables share pools.
    dims, dtypes = (
        draw(st.lists(st.sampled_from([1, 3, 8, 17]), min_size=1, max_size=2)),
        ("float32", "bfloat16"),
    )
    for number in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(1, 2000))
        table = mg.TableSpec(
            name=f"t{number}",
            rows=rows,
            dim=draw(st.sampled_from(dims)),
            features=tuple(draw(st.lists(st.sampled_from(features), min_size=1, unique=True))),
            pooling=draw(st.sampled_from(["sum", "mean", "max", "none"])),
            dtype=draw(st.sampled_from(dtypes)),
            padding_index=draw(st.sampled_from([None, 0, rows - 1])),
            store=draw(st.sampled_from(["tiered", "tiered", "dense"])),
        )
        tables.append(table)
        optimizers[table.name] = draw(st.sampled_from(OPTIMIZERS))
    looked_up = list(dict.fromkeys(feature for table in tables for feature in table.features))
    most = {f: min(table.rows for table in tables if f in table.features) for f in looked_up}
    weighted = draw(st.booleans()) and all(table.pooling in ("sum", "mean") for table in tables)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    batches = []
    for _ in range(steps):
        size = draw(st.integers(0, 5))
        lengths = torch.randint(0, 4, (len(looked_up), size), generator=generator)
        values = torch.cat(
            [
                torch.randint(0, most[f], (int(own.sum()),), generator=generator)
                for f, own in zip(looked_up, lengths, strict=True)
            ]
        )
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
        weights = torch.rand(len(values), generator=generator) if weighted else None
        batches.append((values, offsets, weights))
    return Case(tables, optimizers, batches, draw(st.sampled_from(["lookahead", "lru", "lfu"])))


def trained(collection, batch, *, resolved=None):
    """One step; all outputs and the gradient of the sample weights."""
    values, offsets, weights = batch
    weights = None if weights is None else weights.clone().requires_grad_()
    if resolved is None:
        found = collection.lookup(values, offsets, weights)
    else:
        found = collection.finish_lookup(collection.start_lookup(resolved))
    outputs = [found.pooled, *found.sequences.values()]
    loss = sum((output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum() for output in outputs)
    loss.backward()
    return [*(output.detach() for output in outputs), *([] if weights is None else [weights.grad])]


def looked_at(collection, batch):
    with torch.no_grad():
        found = collection.lookup(*batch)
    return [found.pooled, *found.sequences.values()]


def same(found, expected):
    return len(found) == len(expected) and all(
        torch.equal(one, other) for one, other in zip(found, expected, strict=True)
    )


@given(cases())
@settings(deadline=None, max_examples=60)
def test_every_step_gives_the_bits_of_dense_tables(case):
    with TemporaryDirectory() as folder:
        # A batch fits, the tables do not.
        memory = mg.TieredMemory(dram="48KiB", path=Path(folder), policy=case.policy, engine="threads")
        tiered, dense = case.collection(memory), case.collection(stored=False)
        for batch in case.batches:
            assert same(trained(tiered, batch), trained(dense, batch))
            assert same(looked_at(tiered, case.batches[0]), looked_at(dense, case.batches[0]))


@given(cases(steps=8), st.integers(0, 3), st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_batches_resolved_ahead_give_the_same_bits(case, depth, window):
    """As a pipeline does it: ids known a window ahead, rows resolved some batches ahead."""
    batches = [(values, offsets, None) for values, offsets, _ in case.batches]
    with TemporaryDirectory() as folder:
        memory = mg.TieredMemory(dram="64KiB", path=Path(folder), policy=case.policy, engine="threads")
        tiered, dense = case.collection(memory), case.collection(stored=False)
        ids = [tiered.exchange(*batch) for batch in batches]
        ahead = []
        for number, batch in enumerate(batches):
            for later in ids[number + len(ahead) : number + depth + 1]:
                for far in range(1, window + 1):
                    if number + depth + far < len(ids):
                        tiered.expect(ids[number + depth + far], far)
                ahead.append(tiered.resolve(later, trains=True))
            assert same(trained(tiered, batch, resolved=ahead.pop(0)), trained(dense, batch))


def one_table(tmp_path, rows=1000, dim=4, dram="64KiB", **settings):
    table = mg.TableSpec(name="t", rows=rows, dim=dim, features=("f",), store="tiered", **settings)
    memory = mg.TieredMemory(dram=dram, path=tmp_path / "rows", engine="threads")
    return mg.EmbeddingCollection([table], mg.RowWiseAdaGrad(lr=0.1), seed=1, memory=memory)


def test_a_batch_that_does_not_fit_is_refused_and_the_table_goes_on(tmp_path):
    tiered = one_table(tmp_path, rows=100_000, dim=256, dram="80KiB")
    values = torch.arange(5000)
    with pytest.raises(StorageError, match="rows of one batch do not fit into the cache"):
        tiered(values, torch.arange(5001))
    assert tiered(torch.tensor([3, 4]), torch.tensor([0, 1, 2])).shape == (2, 256)


def test_rows_of_lookups_that_are_dropped_may_leave(tmp_path):
    """Whoever never calls backward pins nothing for ever."""
    tiered = one_table(tmp_path, rows=100_000, dim=256, dram="80KiB")
    for start in range(0, 100_000, 50):
        tiered(torch.arange(start, start + 50), torch.arange(51))


def test_a_second_backward_pass_is_refused(tmp_path):
    out = one_table(tmp_path)(torch.tensor([1]), torch.tensor([0, 1]))
    out.sum().backward(retain_graph=True)
    with pytest.raises(ConfigError, match="took their step"):
        out.sum().backward()


def test_two_collections_do_not_share_a_folder(tmp_path):
    first, second = one_table(tmp_path), one_table(tmp_path)
    lookup = torch.tensor([1]), torch.tensor([0, 1])
    first(*lookup)
    with pytest.raises(StorageError, match="holds rows of tables that are used by"):
        second(*lookup)
    del first
    assert second(*lookup).shape == (1, 4)


def test_tiered_tables_ask_for_memory():
    table = mg.TableSpec(name="t", rows=10, dim=4, features=("f",), store="tiered")
    with pytest.raises(ConfigError, match="'t' is tiered: say how much memory"):
        mg.EmbeddingCollection([table])


def test_a_table_of_a_billion_rows_is_made_at_once(tmp_path):
    tiered = one_table(tmp_path, rows=10**9 * 3, dim=64, dram="1MiB")
    values = torch.tensor([0, 2**31 + 5, 10**9 * 3 - 1])
    before = tiered(values, torch.arange(4))
    before.sum().backward()
    after = tiered(values, torch.arange(4))
    assert bool((after < before).all())


def test_reading_never_writes(tmp_path):
    tiered = one_table(tmp_path, rows=10_000, dim=64)
    with torch.no_grad():
        for start in range(0, 10_000, 100):
            tiered(torch.arange(start, start + 100), torch.arange(101))
    assert tiered.stores.counts().written_bytes == 0
    assert tiered.stores.counts().new_rows == 10_000


@pytest.mark.parametrize("policy", ["lookahead", "lru", "lfu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cache_as_small_as_one_batch_gives_the_same_bits(tmp_path, policy, dtype):
    rows, dim, size, steps = 3000, 32, 32, 200
    names = ("a", "b")
    tables = [
        mg.TableSpec(name=n, rows=rows, dim=dim, features=(n,), dtype=dtype, store="tiered") for n in names
    ]
    row_bytes = dim * (4 if dtype == "float32" else 2) + 4
    memory = mg.TieredMemory(dram=2 * size * row_bytes, path=tmp_path, policy=policy, engine="threads")
    tiered = mg.EmbeddingCollection(tables, mg.RowWiseAdaGrad(lr=0.1), seed=1, memory=memory)
    dense = mg.EmbeddingCollection(
        [table.model_copy(update={"store": None}) for table in tables], mg.RowWiseAdaGrad(lr=0.1), seed=1
    )
    generator = torch.Generator().manual_seed(2)
    offsets = torch.arange(2 * size + 1)
    for _ in range(steps):
        # Squared, so that small ids are frequent.
        values = (torch.rand(2 * size, generator=generator) ** 2 * rows).long()
        assert same(trained(tiered, (values, offsets, None)), trained(dense, (values, offsets, None)))
    counts = tiered.stores.counts()
    assert counts.reads > steps
    assert counts.written_rows > steps


@given(cases())
@settings(deadline=None, max_examples=20)
def test_a_state_dict_loads_into_either_kind_of_store(case):
    with TemporaryDirectory() as folder:
        memory = mg.TieredMemory(dram="64KiB", path=Path(folder) / "one", engine="threads")
        other = mg.TieredMemory(dram="64KiB", path=Path(folder) / "other", engine="threads")
        collections = case.collection(memory), case.collection(stored=False)
        first, second = case.batches[:3], case.batches[3:]
        for batch in first:
            for collection in collections:
                trained(collection, batch)
        for saved in collections:
            for target in (case.collection(other), case.collection(stored=False)):
                # Rows that it has learnt meanwhile are forgotten.
                trained(target, case.batches[-1])
                target.load_state_dict(saved.state_dict())
                for batch in case.batches:
                    assert same(looked_at(target, batch), looked_at(collections[1], batch))
        del target
        restored = case.collection(other)
        restored.load_state_dict(collections[1].state_dict())
        for batch in second:
            assert same(trained(restored, batch), trained(collections[0], batch))


def test_ids_of_a_dense_table_beside_a_tiered_one_keep_their_64_bits(tmp_path):
    """Slots have 32 bits; ids that are their own rows may have more."""
    huge = mg.TableSpec(name="huge", rows=2**31 + 10, dim=1, features=("a",), store="tiered")
    small = mg.TableSpec(name="small", rows=10, dim=1, features=("b",))
    memory = mg.TieredMemory(dram="64KiB", path=tmp_path, engine="threads")
    mixed = mg.EmbeddingCollection([huge, small], seed=1, memory=memory)
    indices = mixed.exchange(torch.tensor([2**31 + 3, 7]), torch.arange(3))
    # Only the dense half passes through; what it would be in a table of more rows than 32 bits count.
    wide = indices[0].clone()
    wide[1] = 2**31 + 7
    resolved = mixed.stores.resolve((wide, *indices[1:]), trains=False)
    assert resolved.values.tolist()[1] == 2**31 + 7


def test_every_shape_of_rows_has_room_on_a_bounded_disk(tmp_path):
    """A shape that is whole in memory gets little of it, and yet a checkpoint writes its rows."""
    tables = [
        mg.TableSpec(name="wide", rows=100_000, dim=64, features=("a",), store="tiered"),
        mg.TableSpec(name="narrow", rows=100, dim=1, features=("b",), store="tiered"),
    ]
    memory = mg.TieredMemory(dram="1MiB", path=tmp_path, disk="100MiB", engine="threads")
    tiered = mg.EmbeddingCollection(tables, mg.SGD(lr=0.1), seed=1, memory=memory)
    tiered(torch.tensor([3, 5]), torch.arange(3)).sum().backward()
    state = tiered.state_dict()["_extra_state"]
    assert {name: ids.tolist() for name, ids in state["ids"].items()} == {"wide": [3], "narrow": [5]}
