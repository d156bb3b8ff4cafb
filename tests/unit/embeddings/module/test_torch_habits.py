"""What people do to a module in torch, done to tables that take their step in backward()."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch_worlds import Scorer, batch, collection, vectors_of

import megalith as mg
from megalith.core.errors import ConfigError, MegalithError


def is_changed_by(emb, act):
    before = vectors_of(emb), emb.num_steps
    act()
    same = torch.equal(before[0], vectors_of(emb))
    assert same == (emb.num_steps == before[1])
    return not same


def one_sentence(error):
    text = str(error.value)
    return text.endswith(".") and "\n" not in text


@pytest.mark.parametrize(
    "freeze",
    [
        lambda model, on: model.emb.requires_grad_(on),
        lambda model, on: model.requires_grad_(on),
        lambda model, on: [each.requires_grad_(on) for each in model.parameters()],
    ],
    ids=["module", "model around it", "parameter by parameter"],
)
def test_freezing_keeps_rows_and_unfreezing_trains_them(freeze):
    model = Scorer(collection())
    values, offsets, weights = batch()
    freeze(model, False)
    assert model.emb.is_frozen
    assert not model.emb(values, offsets).requires_grad
    weights.requires_grad_()
    assert not is_changed_by(model.emb, lambda: model(values, offsets, weights).sum().backward())
    assert weights.grad.abs().sum() > 0
    freeze(model, True)
    assert is_changed_by(model.emb, lambda: model(values, offsets).sum().backward())


@pytest.mark.parametrize("store", ["dense", "adaptive", "dynamic"])
def test_a_backward_pass_in_eval_changes_no_row_and_gives_gradients(store):
    emb = collection(store)
    values, offsets, weights = batch()
    emb(values, offsets).square().sum().backward()
    emb.eval()
    out = emb(values, offsets, weights.requires_grad_())
    out.retain_grad()
    assert not is_changed_by(emb, lambda: out.square().sum().backward())
    torch.testing.assert_close(out.grad, 2 * out.detach())
    assert weights.grad.abs().sum() > 0
    emb.train()
    assert is_changed_by(emb, lambda: emb(values, offsets).square().sum().backward())


def test_a_lookup_of_eval_stays_one_when_training_goes_on():
    emb = collection()
    values, offsets, _ = batch()
    out = emb.eval()(values, offsets)
    emb.train()
    assert not is_changed_by(emb, lambda: out.sum().backward())


def test_freezing_between_the_passes_keeps_rows():
    """So does a parameter of torch: what does not want a gradient gets none."""
    emb = collection()
    values, offsets, _ = batch()
    out = emb(values, offsets)
    emb.requires_grad_(False)
    assert not is_changed_by(emb, lambda: out.sum().backward())


@pytest.mark.parametrize("quiet", [torch.no_grad, torch.inference_mode])
def test_lookups_without_gradients_build_no_graph(quiet):
    emb = collection()
    values, offsets, weights = batch()
    with quiet():
        out = emb(values, offsets, weights)
    assert not out.requires_grad
    assert torch.equal(out.clone(), emb(values, offsets, weights).detach())


def test_tensors_and_collections_of_inference_mode_train():
    with torch.inference_mode():
        values, offsets, weights = batch()
        emb = collection()
    other = collection()
    for own, indices in ((emb, (values, offsets, weights)), (other, batch())):
        own(*indices).square().sum().backward()
    assert emb.num_steps == 1
    assert torch.equal(vectors_of(emb), vectors_of(other))


def test_autograd_grad_changes_no_row():
    model = Scorer(collection())
    values, offsets, weights = batch()
    weights.requires_grad_()
    out = model(values, offsets, weights)
    found = []
    assert not is_changed_by(
        model.emb, lambda: found.extend(torch.autograd.grad(out.sum(), weights, retain_graph=True))
    )
    # Of all parameters, the tables' stand-in among them.
    parameters = list(model.parameters())
    assert not is_changed_by(model.emb, lambda: torch.autograd.grad(out.sum(), parameters, retain_graph=True))
    dense = list(model.layers.parameters())
    assert not is_changed_by(
        model.emb, lambda: out.sum().backward(inputs=[*dense, weights], retain_graph=True)
    )
    weights.grad = None
    assert is_changed_by(model.emb, lambda: out.sum().backward())
    assert torch.equal(weights.grad, found[0])


def test_a_second_backward_pass_of_a_lookup_is_refused():
    emb = collection()
    values, offsets, _ = batch()
    out = emb(values, offsets)
    out.sum().backward(retain_graph=True)

    def again():
        with pytest.raises(ConfigError, match=r"add the losses up and call backward\(\) once") as error:
            out.sum().backward(retain_graph=True)
        assert one_sentence(error)

    assert not is_changed_by(emb, again)


def test_two_losses_of_one_lookup_are_refused_one_by_one_and_right_together():
    emb, other = collection(), collection()
    values, offsets, _ = batch()
    out = emb(values, offsets)
    out[:, :2].sum().backward(retain_graph=True)
    with pytest.raises(ConfigError, match="accumulate=True"):
        out[:, 2:].sum().backward()
    together = other(values, offsets)
    assert is_changed_by(other, lambda: (together[:, :2].sum() + together[:, 2:].sum()).backward())


def test_gradients_that_need_rows_which_are_gone_are_refused():
    emb = collection()
    values, offsets, weights = batch()
    first = emb(values, offsets, weights.requires_grad_())
    plain = emb(values, offsets)
    emb(values, offsets).sum().backward()
    with pytest.raises(ConfigError, match="gradients of sample weights need the rows that it read") as error:
        first.sum().backward()
    assert one_sentence(error)
    assert weights.grad is None
    # Sums need no row.
    assert is_changed_by(emb, lambda: plain.sum().backward())
    table = mg.TableSpec(name="t", rows=9, dim=2, features=("f",), pooling="max")
    largest = mg.EmbeddingCollection([table])
    out, other = (largest(torch.tensor([1, 2]), torch.tensor([0, 2])) for _ in range(2))
    out.sum().backward()
    with pytest.raises(ConfigError, match="largest values of table 't'"):
        other.sum().backward()


def test_a_double_backward_is_refused():
    emb = collection()
    values, offsets, weights = batch()

    def twice():
        out = emb(values, offsets, weights.requires_grad_())
        with pytest.raises(ConfigError, match="no second derivative") as error:
            torch.autograd.grad(out.square().sum(), weights, create_graph=True)
        assert one_sentence(error)

    assert not is_changed_by(emb, twice)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("store", ["dense", "tiered"])
def test_gradient_checkpointing_takes_one_step(reentrant, store, tmp_path):
    models = [Scorer(collection(store, path=tmp_path / str(n))) for n in range(2)]
    values, offsets, weights = batch()
    gradients = []
    for model, saves in zip(models, (True, False), strict=True):
        own = weights.clone().requires_grad_()
        for _ in range(3):
            if saves:
                out = checkpoint(model, values, offsets, own, use_reentrant=reentrant)
            else:
                out = model(values, offsets, own)
            out.square().sum().backward()
        gradients.append(own.grad)
        assert model.emb.num_steps == 3
    assert torch.equal(vectors_of(models[0].emb), vectors_of(models[1].emb))
    assert torch.equal(*gradients)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_after_an_update_in_the_same_pass_is_refused(reentrant):
    model = Scorer(collection())
    values, offsets, weights = batch()
    weights.requires_grad_()
    parts = [checkpoint(model, values, offsets, weights, use_reentrant=reentrant) for _ in range(2)]
    with pytest.raises(ConfigError, match="outside of checkpoint") as error:
        sum(part.square().sum() for part in parts).backward()
    assert one_sentence(error)


@pytest.mark.parametrize("store", ["adaptive", "dynamic"])
def test_checkpointing_of_tables_that_count_ids_is_refused(store):
    model = Scorer(collection(store))
    values, offsets, weights = batch()
    out = checkpoint(model, values, offsets, weights.requires_grad_(), use_reentrant=False)
    with pytest.raises(ConfigError, match="count every id twice"):
        out.sum().backward()


def test_ids_offsets_and_weights_may_change_after_the_forward_pass():
    emb, other = collection(), collection()
    values, offsets, weights = batch()
    out = emb(values, offsets, weights)
    values.fill_(3)
    offsets.zero_()
    weights.fill_(9.0)
    out.square().sum().backward()
    other(*batch()).square().sum().backward()
    assert torch.equal(vectors_of(emb), vectors_of(other))


CASTS = {
    "half": (lambda model: model.half(), torch.float16),
    "bfloat16": (lambda model: model.bfloat16(), torch.bfloat16),
    "to(dtype)": (lambda model: model.to(torch.bfloat16), torch.bfloat16),
    "to(tensor)": (lambda model: model.to(torch.zeros(1, dtype=torch.float16)), torch.float16),
    "float": (lambda model: model.half().float(), torch.float32),
    "type": (lambda model: model.type(torch.bfloat16), torch.bfloat16),
    "to(cpu)": (lambda model: model.to("cpu"), torch.float32),
    "to_empty": (lambda model: model.to_empty(device="cpu"), torch.float32),
}


@pytest.mark.parametrize(("cast", "dtype"), CASTS.values(), ids=CASTS)
def test_casts_change_the_vectors_and_never_the_rows(cast, dtype):
    model = Scorer(collection())
    rows = {name: model.emb.weight(name).clone() for name in "ab"}
    cast(model)
    assert all(torch.equal(model.emb.weight(name), rows[name]) for name in "ab")
    assert f"vectors: {str(dtype).removeprefix('torch.')};" in repr(model)
    assert "(a): 50 x 4 float32, dense" in repr(model)
    values, offsets, _ = batch()
    out = model(values, offsets)
    assert out.dtype == dtype
    with torch.no_grad():
        model.layers[0].weight.fill_(0.5)
        model.layers[2].weight.fill_(0.5)
    assert is_changed_by(model.emb, lambda: model(values, offsets).sum().backward())


@pytest.mark.parametrize(
    ("move", "fix"),
    [
        (lambda model: model.double(), "convert what it returns"),
        (lambda model: model.to(torch.float64), "convert what it returns"),
        (lambda model: model.to("meta"), "one by one"),
        (lambda model: model.to_empty(device="meta"), "one by one"),
        (lambda model: model.share_memory(), "ShardedEmbeddingCollection"),
    ],
    ids=["double", "to(float64)", "to(meta)", "to_empty(meta)", "share_memory"],
)
def test_what_tables_cannot_become_is_refused(move, fix):
    model = nn.Sequential(collection())
    before = vectors_of(model[0])
    with pytest.raises(ConfigError, match=fix) as error:
        move(model)
    assert one_sentence(error)
    assert torch.equal(vectors_of(model[0]), before)
    assert model[0].output_dtype == torch.float32


def test_vmap_and_torch_func_are_refused():
    emb = collection()
    values, offsets, weights = batch()
    with pytest.raises(ConfigError, match="look up outside"):
        torch.func.vmap(lambda ids: emb(ids, torch.tensor([0, 1, 1])))(torch.tensor([[1], [2]]))
    with pytest.raises(ConfigError, match="look up outside"):
        torch.func.grad(lambda factors: emb(values, offsets, factors).sum())(weights)


def test_copies_of_data_parallel_are_refused():
    """Torch makes them for every GPU, and for none where there is none."""
    with pytest.raises(ConfigError, match="ShardedEmbeddingCollection"):
        collection()._replicate_for_data_parallel()


def test_functional_call_trains():
    model = Scorer(collection())
    values, offsets, _ = batch()
    parameters = dict(model.named_parameters())
    assert is_changed_by(
        model.emb,
        lambda: torch.func.functional_call(model, parameters, (values, offsets)).sum().backward(),
    )


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_trains_as_it_does_without():
    plain, other = Scorer(collection()), Scorer(collection())
    compiled = torch.compile(other, backend="aot_eager")
    for seed in range(3):
        values, offsets, _ = batch(seed)
        losses = [model(values, offsets).square().sum() for model in (plain, compiled)]
        torch.testing.assert_close(*losses)
        for loss in losses:
            loss.backward()
    torch.testing.assert_close(vectors_of(plain.emb), vectors_of(other.emb))


def test_gradients_of_autocast_train():
    model = Scorer(collection())
    values, offsets, _ = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(values, offsets).float().square().sum()
    assert is_changed_by(model.emb, loss.backward)
    half = collection(output_dtype=torch.bfloat16)
    assert is_changed_by(half, lambda: half(values, offsets).float().sum().backward())


def test_parameters_buffers_and_keys_say_what_there_is():
    model = Scorer(collection())
    assert [name for name, _ in model.named_buffers()] == []
    assert sum(each.numel() for each in model.emb.parameters()) == 0
    assert [name for name, _ in model.emb.named_parameters()] == ["anchor"]
    assert [key for key in model.state_dict() if key.startswith("emb.")] == ["emb._extra_state"]


def test_repr_lists_tables_memory_and_what_backward_does():
    emb = collection()
    text = repr(emb)
    assert "(a): 50 x 4 float32, dense, sum, adagrad(lr=0.1)" in text
    assert "(b): 40 x 8 float32, dense, mean, adagrad(lr=0.1)" in text
    assert "memory: 4.1 KiB" in text
    assert "backward() updates" in text
    assert "frozen: backward() changes nothing" in repr(emb.requires_grad_(False))
    assert "eval(): backward() changes nothing" in repr(emb.requires_grad_(True).eval())
    assert "step() updates" in repr(collection(accumulate=True))
    assert "adaptive" in repr(collection("adaptive"))


def test_other_optimizers_pass_the_tables_over():
    model = Scorer(collection())
    values, offsets, _ = batch()
    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        optimizer = make(model.parameters(), lr=0.1, weight_decay=0.5)
        before = vectors_of(model.emb)
        optimizer.step()
        assert torch.equal(before, vectors_of(model.emb))
        model(values, offsets).sum().backward()
        assert torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) > 0
        after = vectors_of(model.emb)
        optimizer.step()
        optimizer.zero_grad()
        assert torch.equal(after, vectors_of(model.emb))


def test_an_average_of_weights_is_refused_until_it_has_the_tables_themselves():
    model = Scorer(collection())
    average = AveragedModel(model)
    values, offsets, _ = batch()
    average(values, offsets)
    model(values, offsets).sum().backward()
    average.update_parameters(model)
    with pytest.raises(ConfigError, match=r"average\.module\.emb = model\.emb") as error:
        average(values, offsets)
    assert one_sentence(error)
    average.module.emb = model.emb
    with torch.no_grad():
        average.eval()(values, offsets)
    # By hand, and the other way out: the copy takes the rows as they are now.
    ema = copy.deepcopy(model)
    with torch.no_grad():
        for slow, fast in zip(ema.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast, 0.1)
    with pytest.raises(MegalithError, match="AveragedModel"):
        ema(values, offsets)
    ema.emb.load_state_dict(model.emb.state_dict())
    assert torch.equal(vectors_of(ema.emb), vectors_of(model.emb))


def test_a_nan_reaches_only_the_rows_that_were_looked_up():
    emb = mg.EmbeddingCollection([mg.TableSpec(name="t", rows=5, dim=2, features=("f",))], mg.SGD(lr=0.1))
    out = emb(torch.tensor([1, 3]), torch.tensor([0, 1, 2]))
    out.backward(torch.full_like(out, torch.nan))
    assert emb.weight("t").isnan().any(dim=1).tolist() == [False, True, False, True, False]
