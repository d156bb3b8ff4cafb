"""`megalith train`: resumes bit by bit, stops cleanly, stops early, learns."""

import json
import random
import signal
from functools import partial

import pytest
import torch
from small_recipes import outcome, train_until_call, trained

from commands import megalith
from forked import Forked, signalled_at_call
from megalith.checkpoint.store import CheckpointStore
from megalith.core.files import read_jsonl
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.schedule import ScheduleConfig, lr_factor
from megalith.train.trainer import Trainer


def test_two_runs_of_one_recipe_are_bit_identical(recipe, tmp_path, whole):
    assert outcome(trained(recipe, tmp_path / "run")) == outcome(whole)


def test_another_seed_gives_another_run(recipe, tmp_path, whole):
    assert outcome(trained(recipe, tmp_path / "run", "train.seed=1")) != outcome(whole)


# A run calls some 300,000 functions, 80,000 of them for its steps and 20,000 for each checkpoint.
IN_STEPS = (False, "MainThread", 60_000)
IN_CHECKPOINTS = (True, "megalith-checkpoint_0", 30_000)


@pytest.mark.parametrize(("background", "thread", "calls"), [IN_STEPS, IN_CHECKPOINTS])
@pytest.mark.parametrize("seed", range(3))
def test_a_run_killed_at_any_instant_resumes_bit_identically(
    recipe, tmp_path, whole, background, thread, calls, seed
):
    folder, overrides = tmp_path / "killed", [f"train.background_checkpoints={background}"]
    wanted = random.Random(seed).randint(1, calls)
    with Forked(train_until_call, recipe, folder, overrides, wanted, thread) as process:
        assert process.wait() == -signal.SIGKILL
    assert outcome(trained(recipe, folder)) == outcome(whole)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_stops_cleanly_and_the_run_resumes(recipe, tmp_path, whole, sent, code):
    folder = tmp_path / "stopped"
    signalled = partial(signalled_at_call, sent, 3, function=Trainer.save)
    stopped = megalith("train", recipe, "--out", folder, "--json", first=signalled)
    assert stopped.returncode == code, stopped.stderr
    summary = json.loads(stopped.stdout)
    assert not summary["finished"]
    assert summary["stopped_by"] == sent.name
    assert 0 < summary["step"] < summary["total_steps"]
    assert CheckpointStore(folder / "checkpoints").latest() == summary["step"]
    resumed = megalith("train", folder)
    assert resumed.returncode == 0, resumed.stderr
    assert outcome(RunFolder(folder)) == outcome(whole)


def test_early_stopping_goes_back_to_the_best_step(recipe, tmp_path):
    # A learning rate that soon ruins the model: the best evaluation comes early.
    run = trained(
        recipe,
        tmp_path / "run",
        "train.epochs=30",
        "train.eval_every=5",
        "train.early_stopping={patience: 2, metric: ne}",
        "dense={kind: sgd, lr: 2.0}",
        "embeddings.optimizer={kind: sgd, lr: 30.0}",
    )
    summary = json.loads(run.summary.read_text())
    evaluations = [line for line in read_jsonl(run.metrics) if line["kind"] == "eval"]
    best = min(evaluations, key=lambda line: line["ne"])
    assert summary["stopped_by"] == "early stopping"
    assert summary["step"] < summary["total_steps"]
    assert summary["best_step"] == best["step"]
    assert summary["evaluation"]["ne"] == best["ne"]
    steps = [line["step"] for line in evaluations]
    assert steps == sorted(set(steps)), "no step is evaluated twice"


def test_clipping_bounds_the_dense_gradient(recipe, tmp_path):
    trainer = Trainer(load_recipe(str(recipe), ["train.clip_norm=0.01"]), RunFolder(tmp_path))
    trainer.learner.step(next(iter(trainer.loader)), 1.0)
    norms = [parameter.grad.norm() for parameter in trainer.learner.dense.parameters()]
    assert torch.stack(norms).norm() <= 0.01 + 1e-6


@pytest.mark.parametrize("dense", ["sgd", "adagrad", "adam", "adamw"])
@pytest.mark.parametrize("rows", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_every_optimizer_lowers_the_loss_and_survives_a_checkpoint(recipe, tmp_path, dense, rows):
    overrides = [f"dense={{kind: {dense}, lr: 0.01}}", f"embeddings.optimizer={{kind: {rows}, lr: 0.01}}"]
    if dense == "sgd":
        overrides.append("dense.momentum=0.9")
    settings = load_recipe(str(recipe), [*overrides, "train.epochs=null", "train.steps=24"])
    trainer = Trainer(settings, RunFolder(tmp_path))
    batches = trainer.loader.stream()
    losses = [float(trainer.learner.step(next(batches), 1.0)[0]) for _ in range(12)]
    trainer.store.save(12, trainer.state_dict(), {})
    losses += [float(trainer.learner.step(next(batches), 1.0)[0]) for _ in range(12)]
    assert sum(losses[-6:]) < sum(losses[:6])
    again = Trainer(settings, RunFolder(tmp_path))
    again.resume()
    batches = again.loader.stream()
    assert [float(again.learner.step(next(batches), 1.0)[0]) for _ in range(12)] == losses[12:]


@pytest.mark.parametrize("model", ["dcnv2", "deepfm", "wide_deep"])
def test_every_model_trains(recipe, tmp_path, model):
    run = trained(recipe, tmp_path / "run", f"model={{kind: {model}, dim: 4}}", "train.epochs=1")
    losses = [line["loss"] for line in read_jsonl(run.metrics) if line["kind"] == "train"]
    assert losses[-1] < losses[0]


def test_tensorboard_gets_the_same_numbers(recipe, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = trained(recipe, tmp_path / "run", "train.tensorboard=true", "train.epochs=1")
    events = EventAccumulator(str(run.tensorboard)).Reload()
    written = [event.value for event in events.Scalars("train/loss")]
    expected = [line["loss"] for line in read_jsonl(run.metrics) if line["kind"] == "train"]
    assert written == pytest.approx(expected)
    assert {"train/window/ne", "train/overall/auc", "eval/calibration"} <= set(events.Tags()["scalars"])


def test_the_schedule_warms_up_and_falls():
    config = ScheduleConfig(kind="cosine", warmup_steps=10, end_factor=0.1)
    factors = [lr_factor(config, step, 110) for step in range(111)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[10] == 1.0
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[110] == pytest.approx(0.1)
    assert lr_factor(ScheduleConfig(kind="linear"), 5, 10) == 0.5
    assert lr_factor(ScheduleConfig(), 5, 10) == 1.0
