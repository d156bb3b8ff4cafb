"""Dynamic tables are exact: like a static table while all ids have a row, like their plain twin beyond."""

import pytest
import torch
from dynamic_twin import DynamicTwin, dynamic_store
from hypothesis import given, settings
from hypothesis import strategies as st

import megalith as mg
from megalith.checkpoint.store import CheckpointStore
from megalith.core.errors import ConfigError, DataError
from megalith.core.store_spec import TieredSpec
from megalith.embeddings.optimizers import LAMB, LARS, SGD, AdaGrad, Adam, RowWiseAdaGrad, RowWiseAdam
from megalith.embeddings.row_block import RowBlock
from megalith.embeddings.stores.settings import TieredMemory
from megalith.ops.ids.policies import bound_for
from megalith.ops.stores.start_values import start_values_twin

EXTREMES = [0, -1, 1, 2**63 - 1, -(2**63), 2**31, -(2**31) - 1]
OPTIMIZERS = [
    SGD(lr=0.1),
    AdaGrad(lr=0.1),
    RowWiseAdaGrad(lr=0.1, weight_decay=0.01),
    Adam(lr=0.01),
    RowWiseAdam(lr=0.01),
    LAMB(lr=0.01),
    LARS(lr=0.1),
]


def table(name="t", features=("f",), dim=4, bound=64, pooling="sum", **settings):
    own = {key: settings.pop(key) for key in ("dtype", "padding_index", "init_scale") if key in settings}
    store = {"kind": "dynamic", "bound": bound, **settings}
    return mg.TableSpec(name=name, dim=dim, features=features, pooling=pooling, store=store, **own)


def batch_of(generator, ids, features, size, longest=3):
    """Values and offsets of random bags, some of them empty."""
    lengths = torch.randint(0, longest + 1, (features * size,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return ids[torch.randint(len(ids), (int(offsets[-1]),), generator=generator)], offsets


def step(collection, values, offsets, weights=None):
    """Outputs of a batch and the gradient of its weights, after a step that gradients of 1, 2, 3... take."""
    own = None if weights is None else weights.clone().requires_grad_()
    pooled, sequences = collection.lookup(values, offsets, own)
    outputs = [pooled, *sequences.values()]
    total = sum((out * torch.arange(1.0, out.numel() + 1).view(out.shape)).sum() for out in outputs)
    total.backward()
    return [out.detach() for out in outputs], None if own is None else own.grad


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: each.kind)
@pytest.mark.parametrize("pooling", ["sum", "mean", "max", "none"])
def test_ids_that_all_have_a_row_train_like_a_static_table(optimizer, pooling):
    generator = torch.Generator().manual_seed(1)
    ids = torch.cat([torch.tensor(EXTREMES), torch.randint(-(2**62), 2**62, (60,), generator=generator)])
    ids = ids.unique()
    dynamic = mg.EmbeddingCollection(
        [table(features=("f", "g"), bound=bound_for(len(ids)), pooling=pooling)], optimizer, 3
    )
    static = mg.EmbeddingCollection(
        [mg.TableSpec(name="t", rows=len(ids), dim=4, features=("f", "g"), pooling=pooling)], optimizer, 3
    )
    static.weight("t").copy_(start_values_twin(dynamic_store(dynamic).starts[0], ids))
    for number in range(12):
        values, offsets = batch_of(generator, ids, 2, 16)
        weights = torch.rand(len(values), generator=generator) if number % 2 and pooling != "none" else None
        own, gradient = step(dynamic, values, offsets, weights)
        rows, expected = step(static, torch.searchsorted(ids, values), offsets, weights)
        assert all(torch.equal(*each) for each in zip(own, rows, strict=True))
        assert weights is None or torch.equal(gradient, expected)


def test_half_precision_rows_do_not_depend_on_their_numbers():
    """Ids that come in another order have other rows, and round alike."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(-(2**63), 2**63 - 1, (50,), generator=generator)
    both = []
    for first in (ids[:20], ids[30:]):
        emb = mg.EmbeddingCollection([table(dtype="bfloat16", bound=600)], SGD(lr=0.01), 3)
        # Makes rows in another order, with no gradient to train on.
        emb(first, torch.arange(len(first) + 1)).mul(0.0).sum().backward()
        own = torch.Generator().manual_seed(5)
        for _ in range(10):
            values, offsets = batch_of(own, ids, 1, 32)
            step(emb, values, offsets)
        with torch.no_grad():
            both.append(emb(ids, torch.arange(len(ids) + 1)))
    assert torch.equal(*both)


@st.composite
def tables(draw):
    some = []
    for number in range(draw(st.integers(1, 3))):
        features = draw(st.lists(st.sampled_from("fgh"), min_size=1, max_size=2, unique=True))
        admission = draw(
            st.sampled_from(
                [
                    {},
                    {"kind": "count", "count": 2, "counter_bytes": 4096},
                    {"kind": "probability", "probability": 0.5, "counter_bytes": 4096},
                ]
            )
        )
        eviction = draw(
            st.sampled_from([{}, {"kind": "lfu", "halve_every": 2}, {"kind": "score", "half_life": 3}])
        )
        expiry = draw(st.sampled_from([{}, {"batches": 2, "interval": 1}, {"score": 1.5, "interval": 2}]))
        some.append(
            table(
                f"t{number}",
                tuple(features),
                draw(st.integers(1, 5)),
                draw(st.integers(64, 70)),
                draw(st.sampled_from(["sum", "mean", "max", "none"])),
                admission=admission,
                eviction=eviction,
                expiry=expiry,
                unknown=draw(st.sampled_from(["shared", "zeros"])),
                padding_index=draw(st.sampled_from([None, 0, 3])),
            )
        )
    return some


@settings(max_examples=20, deadline=None)
@given(tables(), st.sampled_from(OPTIMIZERS), st.integers(0, 2**32), st.booleans())
def test_tables_train_like_their_plain_twin(some, optimizer, seed, weighted):
    generator = torch.Generator().manual_seed(seed)
    emb, twin = mg.EmbeddingCollection(some, optimizer, 5), DynamicTwin(some, optimizer, 5)
    ids = torch.cat([torch.tensor(EXTREMES), torch.randint(-200, 200, (120,), generator=generator)])
    weighted &= all(each.pooling not in ("none", "max") for each in some)
    for _ in range(6):
        values, offsets = batch_of(generator, ids, len(emb.features), 20)
        weights = torch.rand(len(values), generator=generator) if weighted else None
        rows, row_offsets = twin.rows(values, offsets, trains=True)
        own, _ = step(emb, values, offsets, weights)
        expected, _ = step(
            twin.inner, rows, row_offsets, None if weights is None else twin.weights(weights, offsets)
        )
        assert all(torch.equal(*each) for each in zip(own, expected, strict=True))
        values, offsets = batch_of(generator, ids, len(emb.features), 5)
        with torch.no_grad():
            read = emb(values, offsets)
            again = twin.inner(*twin.rows(values, offsets, trains=False))
        assert torch.equal(read, again)
    assert dynamic_store(emb).ids.statistics(0).ids <= emb.tables[0].rows


def test_an_evaluation_changes_nothing():
    emb = mg.EmbeddingCollection([table(admission={"kind": "count", "count": 2})], seed=1)
    values, offsets = torch.tensor([5, -7, 5]), torch.arange(4)
    step(emb, values, offsets)
    store = dynamic_store(emb)
    before = list(store.ids.scan(0)), store.ids.counter(0), store.ids.statistics(0)
    with torch.no_grad():
        for _ in range(3):
            emb(values, offsets)
    after = list(store.ids.scan(0)), store.ids.counter(0), store.ids.statistics(0)
    assert all(torch.equal(*each) for each in zip(before[0][0], after[0][0], strict=True))
    assert torch.equal(before[1], after[1])
    assert before[2] == after[2]


def test_an_id_reads_what_was_written_whatever_the_order_of_others():
    """Every admitted id reads its own value while thousands come and go."""
    emb = mg.EmbeddingCollection([table(bound=512, dim=1, init_scale=0.0)], SGD(lr=1.0), 0)
    generator = torch.Generator().manual_seed(0)
    expected = {}
    for _ in range(60):
        ids = torch.randint(-(10**4), 10**4, (100,), generator=generator).unique()
        out = emb(ids, torch.arange(len(ids) + 1))
        left = {int(i) for block in dynamic_store(emb).ids.scan(0) for i in block.ids}
        expected = {id_: value for id_, value in expected.items() if id_ in left}
        known = torch.tensor([id_ in left for id_ in ids.tolist()])
        wanted = torch.tensor([expected.get(id_, 0.0) for id_ in ids.tolist()])
        assert torch.equal(out.detach()[known, 0], wanted[known])
        # A step of minus the gradient writes id / 2 ** 20 into each row.
        (out * (out.detach() - (ids / 2**20)[:, None])).sum().backward()
        expected |= {id_: id_ / 2**20 for id_, kept in zip(ids.tolist(), known.tolist(), strict=True) if kept}
        assert len(left) <= 512


def test_start_values_do_not_depend_on_the_bound():
    both = []
    for bound in (64, 5000):
        emb = mg.EmbeddingCollection([table(bound=bound, dim=16)], seed=9)
        with torch.no_grad():
            unknown = emb(torch.tensor([4]), torch.tensor([0, 1]))
        both.append((emb(torch.tensor([-4, 7]), torch.arange(3)).detach(), unknown))
    assert torch.equal(both[0][0], both[1][0])
    assert torch.equal(both[0][1], both[1][1])
    assert 0 < both[0][0].abs().max() <= 1 / 64


def test_unknown_ids_read_the_row_they_share_or_zeros_by_name():
    shared = mg.EmbeddingCollection([table(unknown="shared")], seed=1)
    zeros = mg.EmbeddingCollection([table(unknown="zeros")], seed=1)
    ids, offsets = torch.tensor([1, 2]), torch.arange(3)
    with torch.no_grad():
        one, two = shared(ids, offsets)
        assert torch.equal(one, two)
        assert one.abs().sum() > 0
        assert zeros(ids, offsets).abs().sum() == 0


def test_bytes_bound_the_rows():
    given = mg.TableSpec(name="t", dim=16, features=("f",), store={"kind": "dynamic", "bound_bytes": "1MiB"})
    emb = mg.EmbeddingCollection([given])
    rows = emb.tables[0].rows
    # 64 bytes of weights, 4 of state and 27 of the map a row, and what 64 partitions take in any case.
    assert 10_000 < rows < (1 << 20) // 91
    for ids in (torch.arange(3 * rows) * 7919).split(rows // 8):
        emb(ids, torch.arange(len(ids) + 1)).sum().backward()
        scratch = dynamic_store(emb).ids.bytes()["scratch"]
        assert emb.bytes().memory - scratch <= 1 << 20
    assert dynamic_store(emb).ids.statistics(0).evicted > rows


def test_a_bound_in_bytes_that_fits_no_table_is_one_sentence():
    tiny = mg.TableSpec(name="t", dim=16, features=("f",), store={"kind": "dynamic", "bound_bytes": 5000})
    with pytest.raises(ConfigError, match=r"table 't' has bound_bytes .*64 rows, the fewest, take"):
        mg.EmbeddingCollection([tiny])


def test_a_table_without_rows_names_the_feature_and_the_fix():
    with pytest.raises(ConfigError, match="'clicks' are raw 64-bit values; give it a dynamic store"):
        mg.EmbeddingCollection([mg.TableSpec(name="t", dim=2, features=("clicks",))])


def test_a_static_table_of_the_same_feature_still_refuses_ids_outside_of_it():
    emb = mg.EmbeddingCollection([table(), mg.TableSpec(name="s", rows=9, dim=2, features=("f",))])
    emb(torch.tensor([8]), torch.tensor([0, 1]))
    with pytest.raises(DataError, match="Index -5 of feature 'f' in sample 0 is outside table 's' of 9 rows"):
        emb(torch.tensor([-5]), torch.tensor([0, 1]))


def test_event_times_that_are_missing_are_one_sentence():
    emb = mg.EmbeddingCollection([table(expiry={"seconds": 60})])
    with pytest.raises(DataError, match="table 't' expire by event time"):
        emb(torch.tensor([8]), torch.tensor([0, 1]))


def test_an_id_has_the_latest_time_of_its_samples():
    """Also in features of several ids, beside padding, and where two tables look a feature up."""
    timed = {"expiry": {"seconds": 60, "interval": 1}, "padding_index": 3}
    emb = mg.EmbeddingCollection([table("t", ("f", "g"), **timed), table("u", ("g",), **timed)])
    # Samples of f: [8, 9], [], [8]; of g: [5], [9, 3], [7].
    values, offsets = torch.tensor([8, 9, 8, 5, 9, 3, 7]), torch.tensor([0, 2, 2, 3, 4, 6, 7])
    emb.event_time = torch.tensor([100, 200, 50])
    emb(values, offsets)
    known = {
        name: dict(zip(block.ids.tolist(), block.parts["time"].tolist(), strict=True))
        for name in ("t", "u")
        for block in emb.table_states()[name].blocks(1 << 20)
    }
    assert known == {"t": {8: 100, 9: 200, 5: 100, 7: 50}, "u": {5: 100, 9: 200, 7: 50}}
    # Now is the latest of all: 265 - 200 > 60.
    emb.event_time = torch.tensor([10, 265, 20])
    emb(torch.tensor([1, 2, 4, 1, 2, 4]), torch.arange(7))
    (block,) = emb.table_states()["u"].blocks(1 << 20)
    assert block.ids.tolist() == [1, 2, 4]
    emb.event_time = torch.tensor([300, 301])
    with pytest.raises(DataError, match=r"event_time is int64 \[2\]; pass one number .* int64 \[3\]"):
        emb(torch.tensor([1, 2, 4, 1, 2, 4]), torch.arange(7))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tiers_underneath_change_nothing(tmp_path, dtype):
    """Rows on disk under a cache of 100 rows, batches resolved ahead: what rows in memory give."""
    some = [
        table(f"t{n}", (f"f{n}",), 4, 400, admission={"kind": "count", "count": 2}, dtype=dtype)
        for n in (0, 1)
    ]
    tiered = [
        each.model_copy(update={"store": each.store.model_copy(update={"over": TieredSpec()})})
        for each in some
    ]
    memory = TieredMemory(dram=300 * 20, path=tmp_path / "rows", engine="threads")
    dense, under = mg.EmbeddingCollection(some, seed=1), mg.EmbeddingCollection(tiered, seed=1, memory=memory)
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(-1000, 1000, (900,), generator=generator)
    batches = [batch_of(generator, ids, 2, 16) for _ in range(60)]
    ahead = []
    for number, batch in enumerate(batches):
        while len(ahead) < 3 and number + len(ahead) < len(batches):
            coming = under.exchange(*batches[number + len(ahead)])
            under.expect(coming, len(ahead))
            ahead.append(under.resolve(coming, trains=True))
        ready = under.finish_lookup(under.start_lookup(ahead.pop(0))).pooled
        expected = dense(*batch)
        assert torch.equal(ready, expected)
        for out in (ready, expected):
            (out * torch.arange(1.0, out.numel() + 1).view(out.shape)).sum().backward()
    for name in ("t0", "t1", "t0.unknown", "t1.counter"):
        both = [
            torch.cat(rows)
            for rows in zip(*(sorted_rows(each, name) for each in (dense, under)), strict=True)
        ]
        assert all(torch.equal(*part.chunk(2)) for part in both)
    assert under.counts().reads > 100


def sorted_rows(collection, state):
    """All parts of a state in the order of ids."""
    blocks = list(collection.table_states()[state].blocks(1000))
    ids = torch.cat([torch.as_tensor(block.ids) for block in blocks])
    order = ids.argsort()
    parts = [torch.cat([block.parts[name] for block in blocks])[order] for name in blocks[0].parts]
    return [ids[order], *parts]


def test_a_state_dict_brings_ids_rows_and_counters_back():
    some = [
        table("t", ("f",), 4, 64, admission={"kind": "count", "count": 2}),
        mg.TableSpec(name="s", rows=10, dim=2, features=("g",)),
    ]
    generator = torch.Generator().manual_seed(7)
    first, second = (mg.EmbeddingCollection(some, Adam(lr=0.1), seed=1) for _ in range(2))
    ids = torch.arange(-100, 100)

    def train(collections):
        values, offsets = batch_of(generator, ids, 1, 30)
        more, edges = batch_of(generator, torch.arange(10), 1, 30)
        both = torch.cat([values, more]), torch.cat([offsets, edges[1:] + len(values)])
        return [step(collection, *both)[0][0] for collection in collections]

    for _ in range(8):
        train([first])
    train([second])
    second.load_state_dict(first.state_dict())
    for _ in range(8):
        assert torch.equal(*train([first, second]))


def test_ids_with_vectors_and_scores_go_from_one_table_to_another():
    some = [table("t", ("f",), 4, 64, eviction={"kind": "lfu"})]
    first, second = (mg.EmbeddingCollection(some, Adam(lr=0.1), seed=seed) for seed in (1, 2))
    generator = torch.Generator().manual_seed(7)
    ids = torch.cat([torch.tensor(EXTREMES), torch.arange(50)]).unique()
    for _ in range(5):
        step(first, *batch_of(generator, ids, 1, 30))
    blocks = list(first.export_ids("t", max_bytes=500))
    assert len(blocks) > 1
    counted = sum(len(block.ids) for block in blocks)
    assert second.import_ids("t", blocks) == counted == dynamic_store(first).ids.statistics(0).ids
    for block in blocks:
        with torch.no_grad():
            assert torch.equal(second(block.ids, torch.arange(len(block.ids) + 1)), block.parts["weight"])
    again = list(second.export_ids("t", max_bytes=1 << 20))
    assert sorted(torch.cat([b.parts["score"] for b in again]).tolist()) == sorted(
        torch.cat([b.parts["score"] for b in blocks]).tolist()
    )
    # Ids used more often stay where there is no room.
    small = mg.EmbeddingCollection([table("t", ("f",), 4, 64, eviction={"kind": "lfu"})], Adam(lr=0.1))
    many = RowBlock(
        torch.arange(1000), (0, 4), {"weight": torch.rand(1000, 4), "score": torch.arange(1000.0)}
    )
    assert small.import_ids("t", [many]) == 64
    (kept,) = small.export_ids("t")
    assert kept.ids.min() > 500


def test_imports_that_do_not_fit_are_one_sentence():
    emb = mg.EmbeddingCollection([table(), mg.TableSpec(name="s", rows=9, dim=2, features=("g",))])
    with pytest.raises(ConfigError, match="Table 's' is not dynamic"):
        emb.import_ids("s", [])
    with pytest.raises(DataError, match="table 't' need a `weight` of 4 columns"):
        emb.import_ids("t", [RowBlock(torch.arange(3), (0, 4), {"weight": torch.rand(3, 2)})])
    with pytest.raises(DataError, match="Id 7 is imported into table 't' twice"):
        emb.import_ids("t", [RowBlock(torch.tensor([7, 7]), (0, 4), {"weight": torch.rand(2, 4)})])


def test_a_checkpoint_brings_ids_back_that_span_all_64_bits(tmp_path):
    some = [table("t", ("f",), 4, 64)]
    first, second = (mg.EmbeddingCollection(some, Adam(lr=0.1), seed=1) for _ in range(2))
    step(first, torch.tensor(EXTREMES), torch.arange(len(EXTREMES) + 1))
    store = CheckpointStore(tmp_path)
    store.save(1, {"tables": first.table_states()}, {})
    store.load(1, {"tables": second.table_states()})
    ours, theirs = (sorted_rows(each, "t") for each in (first, second))
    assert ours[0].tolist() == sorted(EXTREMES)
    assert all(torch.equal(*both) for both in zip(ours, theirs, strict=True))
