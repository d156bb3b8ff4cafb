"""Copies, pickles and state dictionaries of collections, whatever holds their rows."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch_worlds import Scorer, batch, collection, tables, vectors_of

import megalith as mg
from megalith.core.errors import ConfigError


def train(emb, steps, first=0):
    for seed in range(first, first + steps):
        values, offsets, _ = batch(seed)
        emb(values, offsets).square().sum().backward()
    return emb


def through_pickle(emb):
    return pickle.loads(pickle.dumps(emb))


def through_torch_save(emb):
    file = io.BytesIO()
    torch.save(emb, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_torch_save])
@pytest.mark.parametrize("store", ["dense", "adaptive", "dynamic"])
def test_a_copy_has_rows_of_its_own_and_goes_on_alike(copied, store):
    emb = train(collection(store), 3)
    other = copied(emb)
    assert torch.equal(vectors_of(emb), vectors_of(other))
    before = vectors_of(other)
    train(emb, 2, first=3)
    assert torch.equal(vectors_of(other), before)
    train(other, 2, first=3)
    assert torch.equal(vectors_of(emb), vectors_of(other))
    assert emb.num_steps == other.num_steps == 5


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
def test_a_copy_keeps_settings(copied):
    emb = collection(accumulate=True)
    emb.half().requires_grad_(False).eval()
    emb.lr_factor, emb.loss_scale = 0.25, 8.0
    other = copied(emb)
    assert (other.lr_factor, other.loss_scale, other.accumulate) == (0.25, 8.0, True)
    assert other.is_frozen
    assert not other.training
    assert other.output_dtype == torch.float16
    assert repr(other) == repr(emb)


def test_a_copied_model_is_whole():
    model = Scorer(collection())
    values, offsets, _ = batch()
    other = copy.deepcopy(model)
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    assert torch.equal(model(values, offsets), other(values, offsets))
    other(values, offsets).sum().backward()
    optimizer.step()
    assert not torch.equal(vectors_of(model.emb), vectors_of(other.emb))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_copies_of_tiered_tables_are_refused_and_a_state_does_it(copied, tmp_path):
    emb = train(collection("tiered", path=tmp_path / "one"), 3)
    with pytest.raises(ConfigError, match=r"'a' keeps its rows in a folder.*memory\.path of its own"):
        copied(emb)
    other = collection("tiered", path=tmp_path / "two", seed=5)
    other.load_state_dict(emb.state_dict())
    ids = batch(2)[0].unique()
    bags = torch.arange(2 * len(ids) + 1)
    with torch.no_grad():
        assert torch.equal(emb(ids.repeat(2), bags), other(ids.repeat(2), bags))


def test_gradients_that_wait_are_not_copied():
    emb = train(collection(accumulate=True), 1)
    with pytest.raises(ConfigError, match="before you copy"):
        copy.deepcopy(emb)


@pytest.mark.parametrize("store", ["dense", "adaptive", "dynamic"])
@pytest.mark.parametrize("assign", [False, True])
def test_a_saved_state_loads_without_running_code(store, assign, tmp_path):
    model = Scorer(train(collection(store), 3))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = Scorer(collection(store, seed=9), seed=9)
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert other.load_state_dict(state, assign=assign).missing_keys == []
    assert torch.equal(vectors_of(model.emb), vectors_of(other.emb))
    # Rows were copied: training goes on without a word to the file's tensors.
    train(other.emb, 1)
    assert not torch.equal(vectors_of(model.emb), vectors_of(other.emb))
    assert other.emb.num_steps == 4


ADAGRAD = mg.AdaGrad(lr=0.1)


@pytest.mark.parametrize(
    ("optimizer", "fault"),
    [
        (
            mg.Adam(),
            r"Table 'a' was saved with the optimizer adagrad, and this one has adam.*'first' \[50, 4\]",
        ),
        (mg.RowWiseAdaGrad(), "Table 'a' was saved with the optimizer adagrad"),
        (mg.LARS(), "Table 'a' was saved with the optimizer adagrad, and this one has lars"),
        (mg.SGD(), "Table 'a' was saved with the optimizer adagrad"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_the_state_of_another_optimizer_is_refused(optimizer, fault, strict):
    emb = train(collection(optimizer=optimizer), 1)
    before = vectors_of(emb)
    with pytest.raises(ConfigError, match=fault):
        emb.load_state_dict(train(collection(), 2).state_dict(), strict=strict)
    assert torch.equal(vectors_of(emb), before)
    assert emb.num_steps == 1


def test_a_state_without_names_of_optimizers_is_held_against_the_parts():
    state = collection().state_dict()
    state["_extra_state"].pop("optimizers")
    with pytest.raises(ConfigError, match=r"adam of table 'a' keeps 'second' as \[50, 4\].*lacks it"):
        collection(optimizer=mg.Adam()).load_state_dict(state)
    with pytest.raises(ConfigError, match=r"rowwise_adagrad of table 'a' keeps 'first' as \[50\].*\[50, 4\]"):
        collection(optimizer=mg.RowWiseAdaGrad()).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"name": "c"}, "The saved tables are 'a', 'b' and those of this collection 'b', 'c'"),
        ({"rows": 51}, "Table 'a' has 51 rows of 4 columns, and the saved 'weight' has 50 of 4"),
        ({"dim": 8}, "Table 'a' has 50 rows of 8 columns, and the saved 'weight' has 50 of 4"),
    ],
)
def test_the_state_of_other_tables_is_refused(change, fault):
    first, second = tables()
    other = mg.EmbeddingCollection([first.model_copy(update=change), second], ADAGRAD)
    before = {table.name: other.weight(table.name).clone() for table in other.tables}
    with pytest.raises(ConfigError, match=fault):
        other.load_state_dict(collection().state_dict())
    assert all(torch.equal(other.weight(name), weight) for name, weight in before.items())


def test_a_state_without_tables_is_named_by_torch():
    model = Scorer(collection())
    state = {key: value for key, value in model.state_dict().items() if not key.startswith("emb.")}
    with pytest.raises(RuntimeError, match=r"emb\._extra_state"):
        model.load_state_dict(state)
    assert model.load_state_dict(state, strict=False).missing_keys == ["emb._extra_state"]
    with pytest.raises(ConfigError, match="has no 'num_steps'"):
        model.emb.load_state_dict({"_extra_state": {}})


def test_a_state_of_a_frozen_half_model_is_that_of_the_rows():
    model = nn.Sequential(train(collection(), 2))
    before = model.state_dict()["0._extra_state"]["weights"]["a"].clone()
    model.requires_grad_(False).half()
    assert torch.equal(model.state_dict()["0._extra_state"]["weights"]["a"], before)
