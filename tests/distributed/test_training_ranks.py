"""Training on several ranks against one process: the same losses, weights and reports."""

import json
import os
import signal
import threading

import pytest
import torch
from processes import on_ranks
from small_runs import losses, make_recipe, make_weighted_bags, outcome, train, weights, write_plan

from forked import PATIENCE_SECONDS
from megalith.checkpoint.store import CheckpointStore
from megalith.comm.ranks import Ranks
from megalith.core.files import read_jsonl
from megalith.data.dataset import Dataset
from megalith.sharding.plan import read_plan
from megalith.train.checkpoints import load_learner, open_learner
from megalith.train.evaluation.evaluate import evaluate
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer

NORMED = (
    "model.top={layers: [16], norm: batch}",
    "train.clip_norm=0.05",
    "dense={kind: sgd, lr: 0.1, momentum: 0.9}",
    # An eps that rounding errors of tiny gradients cannot be blown up over.
    "embeddings.optimizer={kind: adam, lr: 0.01, eps: 1.0e-4}",
    "schedule={kind: cosine, warmup_steps: 4}",
)


def close(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(
            value, other[name], rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def numbers(value):
    """Every number that a report holds, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for one in value for number in numbers(one)]
    return [value] if isinstance(value, (int, float)) else []


@pytest.mark.parametrize(
    ("world_size", "overrides"), [(2, ()), (3, ()), (3, NORMED)], ids=["2", "3", "3, normalized and clipped"]
)
def test_ranks_learn_and_report_what_one_process_does(
    tiny_recipe, tiny_data, tmp_path, world_size, overrides
):
    one = train(tiny_recipe, tmp_path / "one", 1, *overrides)
    plan = write_plan(tmp_path / "plan.json", tiny_recipe, world_size)
    many = train(tiny_recipe, tmp_path / "many", world_size, f"sharding.plan={plan}", *overrides)
    assert losses(many) == pytest.approx(losses(one), abs=1e-5)
    close(weights(many, tiny_data), weights(one, tiny_data))
    # Everything that is reported, the metrics of windows and of the whole run included.
    assert numbers(outcome(many)) == pytest.approx(numbers(outcome(one)), rel=2e-3, abs=2e-3)
    assert read_plan(many.plan) == read_plan(plan)
    assert json.loads(many.summary.read_text())["ranks"] == world_size


@pytest.mark.parametrize(
    ("shared", "dims"), [(False, {}), (True, {"a": 8, "b": 3})], ids=["plain", "shared table, mixed dims"]
)
def test_sample_weights_and_bags_count_as_in_one_process(tmp_path, shared, dims):
    data = tmp_path / "data"
    make_weighted_bags(data, shared)
    recipe = make_recipe(tmp_path / "bags.yaml", data, pooling="mean", dims=dims)
    one = train(recipe, tmp_path / "one", 1)
    exchange = "sharding.exchange={deduplicate: true}"
    plan = write_plan(tmp_path / "plan.json", recipe, 3, turn=1)
    many = train(recipe, tmp_path / "many", 3, f"sharding.plan={plan}", exchange)
    assert read_plan(many.plan).exchange.deduplicate
    assert losses(many) == pytest.approx(losses(one), abs=1e-5)
    close(weights(many, data), weights(one, data))
    assert numbers(outcome(many)) == pytest.approx(numbers(outcome(one)), rel=2e-3, abs=2e-3)


def train_in_step(recipe, folder, overrides):
    """Trains where a step and the exchange of the next batch's ids each go on only once both have begun."""
    settings = load_recipe(str(recipe), overrides)
    trainer = Trainer(settings, RunFolder(folder))
    learner, both = trainer.learner, threading.Barrier(2, timeout=PATIENCE_SECONDS)
    exchange, step, exchanges = learner.embeddings.exchange, learner.step, []

    def meet_in_exchange(*ids, **times):
        exchanges.append(ids)
        if 1 < len(exchanges) <= trainer.total_steps:
            both.wait()
        return exchange(*ids, **times)

    def meet_in_step(*arguments):
        if trainer.step + 1 < trainer.total_steps:
            both.wait()
        return step(*arguments)

    learner.embeddings.exchange, learner.step = meet_in_exchange, meet_in_step
    trainer.train()


def test_the_pipeline_changes_no_bit_and_its_trace_shows_the_overlap(tiny_recipe, tiny_data, tmp_path):
    plan = f"sharding.plan={write_plan(tmp_path / 'plan.json', tiny_recipe, 2)}"
    settings = (plan, "train.eval_every=1000")
    ahead, overrides = RunFolder(tmp_path / "ahead"), [*settings, "train.background_checkpoints=true"]
    on_ranks(2, train_in_step, tiny_recipe, ahead.folder, overrides)
    after = train(tiny_recipe, tmp_path / "after", 2, *settings, "train.pipeline=0")
    assert outcome(ahead) == outcome(after)
    other = weights(after, tiny_data)
    assert all(torch.equal(value, other[name]) for name, value in weights(ahead, tiny_data).items())
    for path in ahead.traces():
        spans = read_jsonl(path)
        exchanges = [span for span in spans if span["name"] == "exchange ids"]
        steps = [span for span in spans if span["name"] == "step"]
        assert {span["thread"] for span in exchanges} == {"megalith-pipeline_0"}
        assert len(steps) == 24
        assert all(overlap(one, other) > 0 for one, other in zip(exchanges[1:24], steps, strict=False))


def overlap(one, other):
    start = max(one["start"], other["start"])
    return min(one["start"] + one["duration"], other["start"] + other["duration"]) - start


def stop_one_rank(recipe, folder, overrides, victim, last_step):
    """Trains until `victim` is sent SIGTERM in the middle of a step."""
    settings, ranks = load_recipe(str(recipe), overrides), Ranks.all()
    trainer = Trainer(settings, RunFolder(folder))
    step = trainer.learner.step

    def step_with_signal(*arguments):
        if ranks.rank == victim and trainer.step == last_step:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(*arguments)

    trainer.learner.step = step_with_signal
    return trainer.train()


def test_a_signal_to_one_rank_stops_all_and_any_other_number_resumes(tiny_recipe, tiny_data, tmp_path):
    whole = train(tiny_recipe, tmp_path / "whole", 1)
    stopped = tmp_path / "stopped"
    for summary in on_ranks(3, stop_one_rank, tiny_recipe, stopped, [], 1, 8):
        assert summary["stopped_by"] == "SIGTERM"
        assert summary["step"] == 9
        assert not summary["finished"]
    assert CheckpointStore(stopped / "checkpoints").latest() == 9
    assert read_plan(stopped / "plan.json").world_size == 3
    resumed = train(tiny_recipe, stopped, 2)
    # Planned anew for those that went on.
    assert read_plan(resumed.plan).world_size == 2
    assert losses(resumed) == pytest.approx(losses(whole), abs=1e-5)
    close(weights(resumed, tiny_data), weights(whole, tiny_data))


def scores(recipe, overrides, run, step):
    """The full evaluation of a checkpoint under a plan, as every rank gets it."""
    settings = load_recipe(str(recipe), overrides)
    trainer = Trainer(settings, run)
    load_learner(trainer.store, step, trainer.learner)
    return evaluate(trainer.learner, trainer.dataset, "valid", settings.data, depth=1)


def test_saved_on_four_ranks_any_plan_on_one_two_or_three_scores_the_same_bits(
    tiny_recipe, tiny_data, tmp_path
):
    plan = write_plan(tmp_path / "plan.json", tiny_recipe, 4)
    run = train(tiny_recipe, tmp_path / "run", 4, f"sharding.plan={plan}", "train.epochs=1")
    expected = json.loads(run.evaluation("valid").read_text())
    step = expected.pop("step")
    learner, _ = open_learner(run, Dataset(tiny_data), step)
    recipe = load_recipe(str(tiny_recipe))
    assert evaluate(learner, Dataset(tiny_data), "valid", recipe.data) == expected
    for world_size in (2, 3):
        other = write_plan(tmp_path / "other.json", tiny_recipe, world_size, turn=1)
        for found in on_ranks(world_size, scores, tiny_recipe, [f"sharding.plan={other}"], run, step):
            assert found == expected
