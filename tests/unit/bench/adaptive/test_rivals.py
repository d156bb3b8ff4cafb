"""Methods of `megalith bench adaptive`: each trains, fits its ratio, and is charged all that it holds."""

import math

import pytest
import torch

from megalith.bench.adaptive.methods import METHODS, MOST_TUNING
from megalith.bench.adaptive.problem import InfeasibleError, SizeProblem, share_rows
from megalith.bench.adaptive.rivals.cafe import SLOT_BYTES, HotSketch
from megalith.bench.adaptive.rivals.folded import quotient_remainder
from megalith.bench.adaptive.rivals.head import VectorHead
from megalith.bench.adaptive.rivals.narrow import mixed_dims, small_dim
from megalith.bench.adaptive.rivals.row_pool import ID_BYTES
from megalith.bench.adaptive.rivals.scored import POOL, TrainedIds
from megalith.bench.adaptive.rivals.translated import hashed
from megalith.bench.adaptive.runs import RunPoint, build_learner, bytes_of, run_point, train_learner
from megalith.comm.ranks import Ranks
from megalith.core.schema import TableSpec
from megalith.data.dataset import Dataset
from megalith.embeddings.optimizers import Adam, RowWiseAdaGrad
from megalith.train.loaders import train_loader

RIVALS = [name for name, method in METHODS.items() if method.plan is not None]


def tables(*rows, dim=8):
    return tuple(
        TableSpec(name=f"t{number}", rows=count, dim=dim, features=(f"f{number}",))
        for number, count in enumerate(rows)
    )


def problem(ratio, *rows, optimizer=None, steps=40, dim=8):
    return SizeProblem(tables(*rows, dim=dim), optimizer or Adam(), ratio, steps, seed=0)


def held_bytes(learner):
    """All tensors that a method holds, counted one by one."""
    own = learner.embeddings
    tensors = []
    for table in own.tables:
        masks = getattr(own, "_masks", {})
        if table.name in masks:
            stored = own.sparse(table.name)
            tensors += [stored.weights, *stored.states, stored.positions]
        else:
            tensors += [own.inner.weight(table.name), *own.inner.state(table.name).values()]
    if hasattr(own, "scores"):
        tensors += [own.scores, own.rows]
    if hasattr(own, "sketch"):
        tensors += [own.sketch.keys, own.sketch.scores, own.sketch.rows]
    head = learner.dense
    assert isinstance(head, VectorHead)
    for parameter in head.projections.parameters():
        state = learner.optimizer.state[parameter]
        tensors += [parameter, state["exp_avg"], state["exp_avg_sq"]]
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("name", RIVALS)
def test_a_method_learns_fits_its_ratio_and_is_charged_what_it_holds(name, tiny_recipe, tail_data):
    dataset, method = Dataset(tail_data), METHODS[name]
    point = RunPoint(method, method.settings[0], 4.0, 0)
    loader = train_loader(tiny_recipe.data, dataset, Ranks(), 0)
    learner, size = build_learner(tiny_recipe, dataset, point, 24)
    before = {table.name: learner.embeddings.inner.weight(table.name).clone() for table in learner.tables}
    train_learner(tiny_recipe, learner, loader, 24)
    assert all(
        not torch.equal(learner.embeddings.inner.weight(key), weight)
        for key, weight in before.items()
        if len(weight) > 20
    )
    charged = bytes_of(learner, size)
    assert charged["total"] == held_bytes(learner)
    assert charged["total"] <= size.budget
    # One column more or less is the coarsest step that a method can take.
    assert charged["total"] > 0.5 * size.budget
    stored = {table.name: table for table in learner.tables}
    assert size.exempt
    assert all(
        (stored[table.name].rows, stored[table.name].dim) == (table.rows, table.dim) for table in size.exempt
    )


def test_adaptive_tables_and_dense_ones_run_by_the_same_road(tiny_recipe, tail_data):
    dataset = Dataset(tail_data)
    dense = run_point(tiny_recipe, dataset, RunPoint(METHODS["none"], {}, 1.0, 0))
    assert dense["bytes"]["total"] == dense["dense_bytes"] == dense["budget_bytes"]
    settings = {"chunk": 2, "warm_up": 4, "interval": 4}
    ours = run_point(tiny_recipe, dataset, RunPoint(METHODS["adaptive"], settings, 4.0, 0))
    assert ours["bytes"]["weights"] < dense["bytes"]["weights"] / 3
    assert ours["bytes"]["utility"] > 0
    assert {"valid", "test"} == set(ours["quality"])


@pytest.mark.parametrize("name", RIVALS)
def test_a_method_says_what_it_takes_at_least_where_that_is_too_much(name):
    method = METHODS[name]
    with pytest.raises(InfeasibleError, match=r"leave|at least"):
        method.plan(problem(4000.0, 5000, 7000, 8), **method.settings[0])


def test_rows_are_infeasible_where_eight_bytes_for_every_id_are_too_much():
    optimizer = RowWiseAdaGrad()
    row_bytes = 8 * 4 + 4
    floor = row_bytes / ID_BYTES
    METHODS["rows"].plan(problem(0.9 * floor, 50_000, optimizer=optimizer))
    with pytest.raises(InfeasibleError, match="rows takes"):
        METHODS["rows"].plan(problem(1.01 * floor, 50_000, optimizer=optimizer))


def test_every_method_has_as_many_settings_to_try():
    assert {len(method.settings) for method in METHODS.values()} == {MOST_TUNING}


def test_two_small_tables_tell_all_ids_apart():
    plan = quotient_remainder(problem(10.0, 3000, 100))
    made = plan.make_tables(Adam(), 0)
    translate = {feature.name: feature.translate for feature in made.features}
    ids = torch.arange(3000)
    pairs = torch.stack([translate[f"t0.{part}/f0"](ids) for part in ("quotient", "remainder")])
    assert len(pairs.unique(dim=1).T) == 3000
    rows = {table.name: table.rows for table in plan.stored}
    assert pairs[0].max() < rows["t0.quotient"]
    assert pairs[1].max() < rows["t0.remainder"]


def test_popular_tables_have_more_columns():
    dims = {table.name: table.dim for table in mixed_dims(problem(4.0, 100_000, 1000, dim=32)).stored}
    assert dims["t0"] < dims["t1"]
    narrow = small_dim(problem(4.0, 100_000, 20_000, dim=32))
    assert {table.dim for table in narrow.stored} == {8}


def test_a_hash_spreads_ids_and_depends_on_its_seed():
    ids = torch.arange(100_000)
    counts = hashed(ids, 100, 3).bincount(minlength=100)
    assert counts.min() > 800
    assert counts.max() < 1200
    assert (hashed(ids, 100, 3) == hashed(ids, 100, 4)).float().mean() < 0.02


def test_rows_go_to_the_ids_with_the_highest_scores():
    plan = METHODS["rows"].plan(problem(4.0, 400, 300), interval=1)
    made = plan.make_tables(Adam(), 0)
    count = sum(table.rows for table in plan.stored if table.name == POOL) - 1
    made.rows_of(torch.arange(700), trains=True)
    assert int((made.rows >= 0).sum()) == count
    hot = torch.arange(700 - count, 700)
    made.trained(TrainedIds(hot, torch.ones(len(hot), dtype=torch.int64), torch.ones(len(hot))))
    made.num_steps = 1
    made.begin_step()
    assert (made.rows >= 0).nonzero().view(-1).tolist() == hot.tolist()
    assert len(made.rows[hot].unique()) == count
    assert (made.rows_of(torch.arange(10), trains=False) == count).all()


def test_few_changes_leave_rows_with_their_ids():
    made = METHODS["rows"].plan(problem(4.0, 4000), interval=1).make_tables(Adam(), 0)
    made.rows_of(torch.arange(4000), trains=True)
    owners = made.rows.clone()
    made.scores[owners >= 0] = 1.0
    made.scores[3999] = 9.0
    made.num_steps = 1
    made.begin_step()
    assert torch.equal(made.rows, owners)


def test_a_sketch_keeps_ids_with_large_scores():
    sketch = HotSketch(16)
    assert sketch.nbytes == 16 * 4 * SLOT_BYTES
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        numbers = torch.cat([torch.arange(10), torch.randint(10, 5000, (20,), generator=generator).unique()])
        sketch.add(numbers, torch.where(numbers < 10, 10.0, 0.1))
    kept = sketch.keys.view(-1)[sketch.scores.view(-1).argsort(descending=True)][:10]
    assert set(kept.tolist()) == set(range(10))


def test_an_id_begins_its_own_row_as_the_shared_one():
    made = METHODS["cafe"].plan(problem(4.0, 500, 400), interval=1).make_tables(Adam(), 0)
    ids = torch.tensor([3, 7, 600])
    shared = made.rows_of(ids, trains=True)
    before = made.inner.weight(POOL)[shared].clone()
    made.trained(TrainedIds(ids, torch.ones(3, dtype=torch.int64), torch.ones(3)))
    made.num_steps = 1
    made.begin_step()
    own = made.rows_of(ids, trains=True)
    assert (own < made.hot).all()
    assert len(own.unique()) == 3
    assert torch.equal(made.inner.weight(POOL)[own], before)


def test_pruned_weights_stay_zeros(tiny_recipe, tail_data):
    dataset, point = Dataset(tail_data), RunPoint(METHODS["magnitude"], {"end": 0.5}, 8.0, 0)
    learner, size = build_learner(tiny_recipe, dataset, point, 24)
    train_learner(tiny_recipe, learner, train_loader(tiny_recipe.data, dataset, Ranks(), 0), 24)
    learner.embeddings.apply_masks()
    alive = 0
    for table in size.governed:
        weight, stored = learner.embeddings.inner.weight(table.name), learner.embeddings.sparse(table.name)
        assert int((weight != 0).sum()) <= len(stored.weights)
        alive += len(stored.weights)
    assert 12 * alive > 0.8 * size.left
    assert 12 * alive < size.left


def test_rows_are_shared_in_proportion_within_bytes():
    shares = share_rows([10_000, 1000, 3], [1, 1, 1], [12, 12, 12], 12 * 1101)
    assert sum(shares) <= 1101
    assert math.isclose(shares[0] / shares[1], 10, rel_tol=0.02)
    assert share_rows([10, 10], [5, 5], [4, 4], 39) is None
