"""Gradients of several backward passes in one step, scaled losses, and clipping with the dense part."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_worlds import Scorer, batch, collection, vectors_of

import megalith as mg
from megalith.core.errors import ConfigError, DataError
from megalith.embeddings.module.gradient_norm import GradientNorms

TABLES = [
    mg.TableSpec(name="sum", rows=20, dim=4, features=("f", "g"), init_scale=1.0),
    mg.TableSpec(name="mean", rows=20, dim=3, features=("g",), pooling="mean", init_scale=1.0),
    mg.TableSpec(name="max", rows=20, dim=2, features=("f",), pooling="max", init_scale=1.0),
    mg.TableSpec(name="none", rows=20, dim=5, features=("f",), pooling="none", init_scale=1.0),
]


def together(batches):
    """Batches of two features as one, feature by feature."""
    values, lengths, weights = [], [], []
    for feature in range(2):
        for ids, offsets, factors in batches:
            size = (len(offsets) - 1) // 2
            edges = offsets[feature * size : (feature + 1) * size + 1]
            values.append(ids[edges[0] : edges[-1]])
            weights.append(factors[edges[0] : edges[-1]])
            lengths.append(edges.diff())
    ends = torch.cat(lengths).cumsum(0)
    return torch.cat(values), torch.cat([ends.new_zeros(1), ends]), torch.cat(weights)


def loss_of(emb, values, offsets, weights=None):
    pooled, sequences = emb.lookup(values, offsets, weights)
    return pooled.square().sum() + sum(one.square().sum() for one in sequences.values())


OPTIMIZERS = [mg.SGD(lr=0.1), mg.RowWiseAdaGrad(lr=0.1), mg.Adam(lr=0.1), mg.LAMB(lr=0.1)]


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    weighted=st.booleans(),
    optimizer=st.sampled_from(OPTIMIZERS),
)
def test_passes_that_accumulate_are_one_pass_over_all_samples_bit_for_bit(sizes, seed, weighted, optimizer):
    collected = mg.EmbeddingCollection(TABLES, optimizer, seed=1, accumulate=True)
    whole = mg.EmbeddingCollection(TABLES, optimizer, seed=1)
    for step in range(2):
        batches = [batch(seed + 10 * step + n, size) for n, size in enumerate(sizes)]
        for values, offsets, weights in batches:
            loss_of(collected, values, offsets, weights if weighted else None).backward()
        assert collected.num_steps == step
        assert collected.step()
        values, offsets, weights = together(batches)
        loss_of(whole, values, offsets, weights if weighted else None).backward()
        assert collected.num_steps == whole.num_steps
        for table in TABLES:
            assert torch.equal(collected.weight(table.name), whole.weight(table.name))
            for name, part in whole.state(table.name).items():
                assert torch.equal(collected.state(table.name)[name], part)


@pytest.mark.parametrize("store", ["tiered", "adaptive", "dynamic"])
def test_every_store_accumulates(store, tmp_path):
    collected = collection(store, path=tmp_path / "collected", accumulate=True)
    whole = collection()
    if store == "dynamic":
        # Rows of ids begin with values of their own.
        whole = collection(store)
    for step in range(3):
        batches = [batch(10 * step + n, size) for n, size in enumerate((6, 3, 4))]
        for values, offsets, _ in batches:
            collected(values, offsets).square().sum().backward()
        assert collected.step()
        values, offsets, _ = together(batches)
        whole(values, offsets).square().sum().backward()
    assert torch.equal(vectors_of(collected), vectors_of(whole))


def test_accumulation_matches_plain_torch():
    table = mg.TableSpec(name="t", rows=9, dim=4, features=("f",), init_scale=1.0)
    emb = mg.EmbeddingCollection([table], mg.AdaGrad(lr=0.1, eps=1e-8), seed=1, accumulate=True)
    plain = nn.EmbeddingBag(9, 4, mode="sum", _weight=emb.weight("t").clone())
    optimizer = torch.optim.Adagrad(plain.parameters(), 0.1, eps=1e-8)
    draw = torch.Generator().manual_seed(0)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(4):
            values = torch.randint(0, 9, (8,), generator=draw)
            emb(values, torch.arange(0, 9, 2)).square().sum().backward()
            plain(values.view(4, 2)).square().sum().backward()
        torch.testing.assert_close(emb.gradient_norm(), plain.weight.grad.norm())
        emb.step()
        optimizer.step()
        torch.testing.assert_close(emb.weight("t"), plain.weight.detach())


def test_two_losses_of_one_lookup_add_up():
    emb, other = collection(accumulate=True), collection()
    values, offsets, _ = batch()
    out = emb(values, offsets)
    out[:, :3].square().sum().backward(retain_graph=True)
    out[:, 3:].square().sum().backward()
    emb.step()
    other(values, offsets).square().sum().backward()
    torch.testing.assert_close(vectors_of(emb), vectors_of(other))


@pytest.mark.parametrize("zero", ["optimizer", "model", "collection"])
def test_zero_grad_drops_what_was_collected(zero):
    model = Scorer(collection(accumulate=True))
    optimizer = torch.optim.Adam(model.parameters())
    before = vectors_of(model.emb)
    values, offsets, _ = batch()
    model(values, offsets).sum().backward()
    assert model.emb.has_gradients
    {"optimizer": optimizer, "model": model, "collection": model.emb}[zero].zero_grad()
    assert not model.emb.has_gradients
    assert not model.emb.step()
    assert torch.equal(before, vectors_of(model.emb))
    assert model.emb.num_steps == 0


def test_two_lookups_in_one_graph_are_one_step():
    emb, whole = collection(accumulate=True), collection()
    batches = [batch(0), batch(1)]
    sum(emb(values, offsets).square().sum() for values, offsets, _ in batches).backward()
    emb.step()
    values, offsets, _ = together(batches)
    whole(values, offsets).square().sum().backward()
    # Autograd reaches the last lookup first.
    torch.testing.assert_close(vectors_of(emb), vectors_of(whole))
    assert emb.num_steps == 1


def test_weights_for_some_lookups_alone_are_refused():
    emb = collection(accumulate=True)
    values, offsets, weights = batch()
    emb(values, offsets).sum().backward()
    emb(values, offsets, weights).sum().backward()
    with pytest.raises(DataError, match="give them to all, or to none"):
        emb.step()


def test_dynamic_rows_on_disk_take_one_lookup_a_step(tmp_path):
    store = {"kind": "dynamic", "bound": 4096, "over": {"kind": "tiered"}}
    tables = [mg.TableSpec(name="t", dim=4, features=("f", "g"), store=store)]
    memory = mg.TieredMemory(dram="64KiB", path=tmp_path / "rows")
    emb = mg.EmbeddingCollection(tables, mg.SGD(lr=0.1), memory=memory, accumulate=True)
    values, offsets, _ = batch()
    emb(values, offsets).sum().backward()
    assert emb.step()
    for seed in range(2):
        values, offsets, _ = batch(seed)
        emb(values, offsets).sum().backward()
    with pytest.raises(ConfigError, match="take a step for each lookup"):
        emb.step()


def test_a_loss_scale_that_is_none_is_refused():
    emb = collection()
    emb.loss_scale = 0.0
    values, offsets, _ = batch()
    with pytest.raises(ConfigError, match="a number above 0"):
        emb(values, offsets).sum().backward()
    assert emb.num_steps == 0


def test_a_step_of_a_collection_that_does_not_accumulate_is_refused():
    with pytest.raises(ConfigError, match="accumulate=True to call step"):
        collection().step()


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("scale", [1024.0, 3.0])
def test_gradients_of_a_scaled_loss_are_those_of_the_loss(accumulate, scale):
    emb, other = collection(accumulate=accumulate), collection()
    emb.loss_scale = scale
    values, offsets, weights = batch()
    own = weights.clone().requires_grad_()
    (emb(values, offsets, own).square().sum() * scale).backward()
    if accumulate:
        emb.step()
    other(values, offsets, weights.requires_grad_()).square().sum().backward()
    torch.testing.assert_close(vectors_of(emb), vectors_of(other), rtol=1e-6, atol=1e-6)
    # What is outside of the tables is unscaled by whoever owns it.
    torch.testing.assert_close(own.grad, scale * weights.grad)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_a_step_that_is_not_finite_is_skipped_under_a_loss_scale(accumulate, bad):
    emb = collection(accumulate=accumulate)
    emb.loss_scale = 1.0
    before = vectors_of(emb)
    values, offsets, _ = batch()
    out = emb(values, offsets)
    gradient = torch.ones_like(out)
    gradient[1, 2] = bad
    out.backward(gradient)
    if accumulate:
        assert not emb.step()
    assert (emb.num_skipped_steps, emb.num_steps) == (1, 0)
    assert torch.equal(before, vectors_of(emb))


def test_a_grad_scaler_trains_as_without_and_skips_what_overflows():
    scaled, plain = Scorer(collection()), Scorer(collection())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
    scaled.emb.loss_scale = scaler
    optimizers = [torch.optim.SGD(model.layers.parameters(), 0.1) for model in (scaled, plain)]
    for step in range(5):
        values, offsets, _ = batch(step)
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(scaled(values, offsets).square().sum()).backward()
        scaler.step(optimizers[0])
        scaler.update()
        plain(values, offsets).square().sum().backward()
        optimizers[1].step()
    assert scaler.get_scale() > 2.0**8
    torch.testing.assert_close(vectors_of(scaled.emb), vectors_of(plain.emb))
    before, scale = vectors_of(scaled.emb), scaler.get_scale()
    scaler.scale(scaled(values, offsets).sum() * torch.inf).backward()
    scaler.step(optimizers[0])
    scaler.update()
    assert scaled.emb.num_skipped_steps == 1
    assert scaler.get_scale() == scale / 2
    assert torch.equal(before, vectors_of(scaled.emb))


def test_a_grad_scaler_unscales_accumulates_and_clips():
    model, plain = (Scorer(collection(accumulate=True)) for _ in range(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    model.emb.loss_scale = scaler
    optimizers = [torch.optim.Adam(each.parameters(), fused=True) for each in (model, plain)]
    for step in range(3):
        for seed in (2 * step, 2 * step + 1):
            values, offsets, _ = batch(seed)
            scaler.scale(model(values, offsets).square().sum()).backward()
            plain(values, offsets).square().sum().backward()
        scaler.unscale_(optimizers[0])
        norms = [mg.clip_grad_norm_(each.parameters(), [each.emb], 0.5) for each in (model, plain)]
        torch.testing.assert_close(*norms)
        scaler.step(optimizers[0])
        scaler.update()
        optimizers[1].step()
        for each, optimizer in zip((model, plain), optimizers, strict=True):
            assert each.emb.step()
            optimizer.zero_grad()
    torch.testing.assert_close(vectors_of(model.emb), vectors_of(plain.emb))


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping_counts_tables_and_dense_part_together(max_norm):
    model = Scorer(collection(optimizer=mg.SGD(lr=0.1), accumulate=True))
    start = {name: model.emb.weight(name).clone().requires_grad_() for name in "ab"}
    layers = [(each.clone(), each) for each in model.layers.parameters()]
    batches = [batch(0), batch(1)]
    total = torch.zeros(())
    for values, offsets, _ in batches:
        model(values, offsets).square().sum().backward()
        total = total + _plain_loss(start, model.layers, values, offsets)
    gradients = torch.autograd.grad(total, [*start.values(), *model.layers.parameters()])
    norm = torch.stack([each.norm() for each in gradients]).norm()
    found = mg.clip_grad_norm_(model.parameters(), [model.emb], max_norm)
    torch.testing.assert_close(found, norm)
    factor = min(1.0, max_norm / (float(norm) + 1e-6))
    for (_, parameter), gradient in zip(layers, gradients[2:], strict=True):
        torch.testing.assert_close(parameter.grad, factor * gradient, rtol=1e-4, atol=1e-6)
    model.emb.step()
    for (name, weight), gradient in zip(start.items(), gradients, strict=False):
        torch.testing.assert_close(
            model.emb.weight(name), weight.detach() - 0.1 * factor * gradient, rtol=1e-4, atol=1e-6
        )


def _plain_loss(weights, layers, values, offsets):
    """The scorer's loss by operations that autograd knows."""
    size = (len(offsets) - 1) // 2
    columns = []
    for name, feature, mode in (("a", 0, "sum"), ("a", 1, "sum"), ("b", 1, "mean")):
        edges = offsets[feature * size : (feature + 1) * size + 1]
        bags = [weights[name][values[edges[n] : edges[n + 1]]] for n in range(size)]
        pooled = [bag.sum(0) / (max(1, len(bag)) if mode == "mean" else 1) for bag in bags]
        columns.append(torch.stack(pooled))
    return layers(torch.cat(columns, dim=1)).square().sum()


def test_norms_of_every_pooling_and_type_match_the_gradients_of_a_step():
    """A step of SGD from rows of zeros is the gradient."""
    for dtype in ("float32", "float16", "bfloat16"):
        tables = [table.model_copy(update={"dtype": dtype}) for table in TABLES]
        emb = mg.EmbeddingCollection(tables, mg.Adam(lr=0.1), seed=1, accumulate=True)
        full = mg.EmbeddingCollection(TABLES, mg.SGD(lr=1.0), seed=1)
        for table in TABLES:
            full.weight(table.name).copy_(emb.weight(table.name))
        before = {table.name: full.weight(table.name).clone() for table in TABLES}
        values, offsets, _ = batch(3)
        loss_of(emb, values, offsets).backward()
        loss_of(full, values, offsets).backward()
        steps = [before[table.name] - full.weight(table.name) for table in TABLES]
        expected = torch.cat([step.flatten() for step in steps]).norm()
        torch.testing.assert_close(emb.gradient_norm(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_native_norms_match_their_plain_twin(seed):
    emb = mg.EmbeddingCollection(TABLES, mg.SGD(lr=0.1), seed=seed, accumulate=True)
    values, offsets, weights = batch(seed)
    loss_of(emb, values, offsets, weights).backward()
    found, whole = emb.gradient_norm(), emb._whole()
    twin = GradientNorms([emb.weight(table.name) for table in TABLES], emb.lookups.descriptors)
    twin._native = None
    torch.testing.assert_close(found, twin(whole.resolved.batch, whole.gradients))


def test_norms_of_adaptive_tables_are_refused():
    emb = collection("adaptive", accumulate=True)
    values, offsets, _ = batch()
    emb(values, offsets).sum().backward()
    with pytest.raises(ConfigError, match="max_gradient"):
        mg.clip_grad_norm_([], [emb], 1.0)


def test_a_norm_that_is_no_bound_is_refused():
    with pytest.raises(ConfigError, match="max_norm"):
        mg.clip_grad_norm_([], [], 0.0)
