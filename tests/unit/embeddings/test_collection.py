"""`EmbeddingCollection`: lookups and exact updates against plain autograd and torch's own optimizers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import megalith as mg
from megalith.core.errors import ConfigError, DataError
from megalith.embeddings.initial_values import TableWindow

BATCH = 3


@st.composite
def worlds(draw):
    """Tables of odd dims that share features, and a batch with empty bags and duplicates."""
    features = ["a", "b", "c"][: draw(st.integers(1, 3))]
    tables = []
    for position in range(draw(st.integers(1, 3))):
        chosen = draw(st.lists(st.sampled_from(features), min_size=1, unique=True))
        tables.append(
            mg.TableSpec(
                name=f"t{position}",
                rows=draw(st.integers(6, 9)),
                dim=draw(st.sampled_from([1, 2, 3, 5, 8])),
                features=tuple(chosen),
                pooling=draw(st.sampled_from(["sum", "mean", "max", "none"])),
                init_scale=1.0,
            )
        )
    collection = mg.EmbeddingCollection(tables, mg.SGD(lr=0.5), seed=draw(st.integers(0, 99)))
    lengths = [draw(st.integers(0, 4)) for _ in range(len(collection.features) * BATCH)]
    values = torch.tensor([draw(st.integers(0, 5)) for _ in range(sum(lengths))], dtype=torch.int64)
    return collection, values, torch.tensor([0, *lengths]).cumsum(0)


def bags_of(collection, feature, values, offsets):
    start = collection.features.index(feature) * BATCH
    return [values[offsets[start + b] : offsets[start + b + 1]] for b in range(BATCH)]


def plain(collection, weights, values, offsets):
    """The same lookup, bag by bag, in operations that autograd knows."""
    pool = {
        "sum": lambda rows: rows.sum(0),
        "mean": lambda rows: rows.mean(0),
        "max": lambda rows: rows.amax(0),
    }
    columns, sequences = [], {}
    for table in collection.tables:
        weight = weights[table.name]
        for feature in table.features:
            bags = bags_of(collection, feature, values, offsets)
            if table.pooling == "none":
                sequences[table.name, feature] = weight[torch.cat(bags)]
            else:
                zero = weight.sum(0) * 0
                pooled = [pool[table.pooling](weight[bag]) if len(bag) else zero for bag in bags]
                columns.append(torch.stack(pooled))
    return torch.cat(columns, dim=1) if columns else torch.zeros(BATCH, 0), sequences


@given(worlds())
@settings(deadline=None)
def test_lookup_and_sgd_step_match_plain_autograd(world):
    collection, values, offsets = world
    weights = {t.name: collection.weight(t.name).clone().requires_grad_() for t in collection.tables}
    expected, expected_sequences = plain(collection, weights, values, offsets)
    found = collection.lookup(values, offsets)
    torch.testing.assert_close(found.pooled, expected.detach(), rtol=1e-6, atol=1e-6)
    scale = torch.linspace(0.5, 1.5, max(1, expected.numel()))[: expected.numel()].view_as(expected)
    assert found.sequences.keys() == expected_sequences.keys()
    for out, sequences in ((found.pooled, found.sequences), (expected, expected_sequences)):
        loss = (out * scale).sum() + sum(one.sum() for one in sequences.values())
        if loss.requires_grad:
            loss.backward()
    for name, weight in weights.items():
        gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
        torch.testing.assert_close(
            collection.weight(name), weight.detach() - 0.5 * gradient, rtol=1e-5, atol=1e-6
        )


OPTIMIZERS = [
    (mg.SGD(lr=0.1, weight_decay=0.1), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.1)),
    (mg.AdaGrad(lr=0.1, eps=1e-8), lambda p: torch.optim.Adagrad(p, 0.1, eps=1e-8)),
    (mg.Adam(lr=0.1), lambda p: torch.optim.Adam(p, 0.1)),
    (mg.Adam(lr=0.1, weight_decay=0.2), lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.2)),
]


@pytest.mark.parametrize(("ours", "theirs"), OPTIMIZERS, ids=lambda one: getattr(one, "kind", ""))
def test_optimizers_match_torch_when_every_row_is_touched(ours, theirs):
    table = mg.TableSpec(name="t", rows=4, dim=3, features=("f",), init_scale=1.0)
    collection = mg.EmbeddingCollection([table], ours, seed=1)
    weight = collection.weight("t").clone().requires_grad_()
    optimizer = theirs([weight])
    values, offsets = torch.tensor([3, 0, 1, 2, 0, 3]), torch.arange(7)
    for step in range(5):
        target = torch.randn(6, 3, generator=torch.Generator().manual_seed(step))
        F.mse_loss(collection(values, offsets), target).backward()
        optimizer.zero_grad()
        F.mse_loss(weight[values], target).backward()
        optimizer.step()
        torch.testing.assert_close(collection.weight("t"), weight.detach(), rtol=1e-5, atol=1e-6)


def test_row_wise_adagrad_is_adagrad_on_the_mean_square_of_a_row():
    table = mg.TableSpec(name="t", rows=3, dim=2, features=("f",), init_scale=0.0)
    collection = mg.EmbeddingCollection([table], mg.RowWiseAdaGrad(lr=1.0, eps=1e-8))
    collection(torch.tensor([1]), torch.tensor([0, 1])).backward(torch.tensor([[3.0, 4.0]]))
    assert collection.state("t")["first"].tolist() == [0.0, 12.5, 0.0]
    torch.testing.assert_close(collection.weight("t")[1], -torch.tensor([3.0, 4.0]) / 12.5**0.5)


def test_rows_that_a_step_does_not_touch_stay_bit_for_bit():
    table = mg.TableSpec(name="t", rows=100, dim=4, features=("f",))
    collection = mg.EmbeddingCollection([table], mg.Adam(lr=1.0))
    before = collection.weight("t").clone()
    collection(torch.tensor([7, 7, 9]), torch.tensor([0, 3])).sum().backward()
    changed = (collection.weight("t") != before).any(dim=1).nonzero().flatten().tolist()
    assert changed == [7, 9]


def test_the_learning_rate_can_change_at_every_step():
    table = mg.TableSpec(name="t", rows=2, dim=1, features=("f",), init_scale=0.0)
    collection = mg.EmbeddingCollection([table], mg.SGD(lr=1.0))
    for factor in (1.0, 0.5):
        collection.lr_factor = factor
        collection(torch.tensor([0]), torch.tensor([0, 1])).sum().backward()
    assert collection.weight("t")[0].item() == -1.5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_tables_compute_in_float32(dtype):
    table = mg.TableSpec(name="t", rows=4, dim=3, features=("f",), dtype=dtype, init_scale=1.0)
    collection = mg.EmbeddingCollection([table], mg.SGD(lr=0.25), stochastic_rounding=False)
    before = collection.weight("t").clone()
    out = collection(torch.tensor([1, 2]), torch.tensor([0, 2]))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out[0], before[1].float() + before[2].float(), rtol=0, atol=0)
    out.sum().backward()
    assert torch.equal(collection.weight("t")[1], (before[1].float() - 0.25).to(before.dtype))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_are_the_same_bit_for_bit_for_any_number_of_threads(threads):
    def run():
        table = mg.TableSpec(name="t", rows=1000, dim=7, features=("f",), pooling="mean")
        collection = mg.EmbeddingCollection([table], mg.RowWiseAdaGrad(lr=0.1))
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            values = torch.randint(0, 1000, (60_000,), generator=generator)
            out = collection(values, torch.arange(0, 60_001, 3))
            out.backward(torch.randn(out.shape, generator=generator))
        return collection.weight("t")

    before = torch.get_num_threads()
    expected = run()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(run(), expected)
    finally:
        torch.set_num_threads(before)


def test_start_values_depend_on_seed_and_name_alone():
    one = mg.TableSpec(name="one", rows=5, dim=2, features=("f",))
    two = mg.TableSpec(name="two", rows=5, dim=2, features=("f",))
    both, alone = mg.EmbeddingCollection([one, two], seed=3), mg.EmbeddingCollection([two], seed=3)
    assert torch.equal(both.weight("two"), alone.weight("two"))
    assert not torch.equal(both.weight("one"), both.weight("two"))
    assert not torch.equal(alone.weight("two"), mg.EmbeddingCollection([two], seed=4).weight("two"))


def test_a_window_begins_with_the_values_of_the_table_it_is_cut_from():
    table = mg.TableSpec(name="t", rows=(1 << 20) + 70_000, dim=3, features=("f",))
    whole = mg.EmbeddingCollection([table], seed=5).weight("t")
    for rows, columns in (
        ((0, 9), (1, 3)),
        ((1_000_000, 1_100_000), (0, 2)),
        ((1 << 20, table.rows), (2, 3)),
    ):
        part = mg.TableSpec(name="p", rows=rows[1] - rows[0], dim=columns[1] - columns[0], features=("f",))
        windows = {"p": TableWindow(table, rows, columns)}
        held = mg.EmbeddingCollection([part], seed=5, windows=windows).weight("p")
        assert torch.equal(held, whole[rows[0] : rows[1], columns[0] : columns[1]])


def test_a_state_reads_back():
    table = mg.TableSpec(name="t", rows=5, dim=2, features=("f",))
    trained, fresh = (mg.EmbeddingCollection([table], mg.Adam(), seed=s) for s in (0, 1))
    trained(torch.tensor([1]), torch.tensor([0, 1])).sum().backward()
    fresh.load_state_dict(trained.state_dict())
    assert fresh.num_steps == 1
    assert torch.equal(fresh.weight("t"), trained.weight("t"))
    assert torch.equal(fresh.state("t")["second"], trained.state("t")["second"])


def test_evaluation_builds_no_graph():
    collection = mg.EmbeddingCollection([mg.TableSpec(name="t", rows=5, dim=2, features=("f",))])
    with torch.no_grad():
        assert not collection(torch.tensor([1]), torch.tensor([0, 1])).requires_grad


def test_an_index_out_of_range_names_table_feature_sample_and_value():
    tables = [
        mg.TableSpec(name="wide", rows=9, dim=2, features=("f", "g")),
        mg.TableSpec(name="narrow", rows=4, dim=2, features=("g",)),
    ]
    collection = mg.EmbeddingCollection(tables)
    before = collection.weight("narrow").clone()
    with pytest.raises(
        DataError, match="Index 5 of feature 'g' in sample 1 is outside table 'narrow' of 4 rows"
    ):
        collection(torch.tensor([8, 0, 3, 5]), torch.arange(5))
    with pytest.raises(DataError, match="Index -1 of feature 'f' in sample 0"):
        collection(torch.tensor([-1, 0, 3, 3]), torch.arange(5))
    assert torch.equal(collection.weight("narrow"), before)


@pytest.mark.parametrize("offsets", [[0, 1, 2], [0, 2, 1, 2, 3], [1, 1, 2, 2, 3], [0, 1, 2, 2, 2]])
def test_offsets_that_do_not_fit_are_refused(offsets):
    tables = [mg.TableSpec(name="t", rows=9, dim=2, features=("f", "g"))]
    with pytest.raises(DataError, match="offsets"):
        mg.EmbeddingCollection(tables)(torch.tensor([0, 1, 2]), torch.tensor(offsets))


def test_a_table_named_twice_is_refused():
    table = mg.TableSpec(name="t", rows=9, dim=2, features=("f",))
    with pytest.raises(ConfigError, match="named twice"):
        mg.EmbeddingCollection([table, table])


def test_an_empty_batch_is_no_error():
    collection = mg.EmbeddingCollection([mg.TableSpec(name="t", rows=9, dim=2, features=("f",))])
    out = collection(torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    assert out.shape == (0, 2)
    out.sum().backward()


def test_weights_and_offsets_may_be_views_of_another_type():
    table = mg.TableSpec(name="t", rows=5, dim=3, features=("f",))
    collection = mg.EmbeddingCollection([table], seed=0)
    values, offsets = torch.tensor([0, 3, 4]), torch.tensor([0, 2, 3])
    weights = torch.tensor([0.5, 2.0, -1.0])
    wanted = collection(values, offsets, weights)
    spread = torch.stack([weights.double(), torch.zeros(3).double()], dim=1)[:, 0]
    bounds = torch.stack([offsets, offsets], dim=1)[:, 0]
    assert torch.equal(collection(values, bounds, spread), wanted)
