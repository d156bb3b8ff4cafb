"""Ids that expire by the event times of a data set: at every depth, after a resume, and refused without."""

import json
import signal

import pytest
import torch
from small_recipes import outcome, train_until_call, trained, write_recipe

from forked import Forked
from megalith.core.errors import ConfigError
from megalith.core.files import read_jsonl
from megalith.data.dataset import Dataset
from megalith.data.synth.generate import generate
from megalith.data.synth.options import SynthOptions
from megalith.train.recipe import load_recipe
from megalith.train.trainer import Trainer

DAY = 86_400


def stores(seconds=DAY):
    expiry = {"seconds": seconds, "interval": 4}
    return "embeddings.stores=" + json.dumps({"*": {"kind": "dynamic", "bound": 16_000, "expiry": expiry}})


TIMED = (stores(), "data.shuffle=false", "embeddings.log_evicted=true", "train.epochs=1")


@pytest.fixture(scope="module")
def timed_recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("timed")
    generate(SynthOptions("criteo", train_rows=8000, valid_rows=1000, days=10), folder / "data")
    return write_recipe(folder / "small.yaml", folder / "data")


@pytest.fixture(scope="module")
def whole_timed(timed_recipe, tmp_path_factory):
    return trained(timed_recipe, tmp_path_factory.mktemp("whole") / "run", *TIMED, "train.pipeline=0")


def test_ids_leave_when_their_last_sample_is_too_old(timed_recipe, whole_timed):
    """Checked against the data itself: which ids a look must let go of."""
    left = {}
    for line in read_jsonl(whole_timed.evicted):
        for id_, reason in zip(line["ids"], line["reasons"], strict=True):
            if reason == "seconds":
                left.setdefault((line["step"], line["table"]), set()).add(id_)
    trainer = Trainer(load_recipe(str(timed_recipe), TIMED), whole_timed)
    schema = Dataset(trainer.recipe.data.path).schema
    tables = [table.name for table in trainer.learner.tables]
    assert tables == list(schema.feature_names)
    latest, checked = [{} for _ in tables], 0
    for number, batch in enumerate(trainer.loader, start=1):
        now = int(batch.event_times.max())
        if number % 4 == 0:
            for table, times in zip(tables, latest, strict=True):
                old = {id_ for id_, time in times.items() if now - time > DAY}
                assert left.get((number, table), set()) == old
                checked += len(old)
                for id_ in old:
                    del times[id_]
        for own, ids in zip(latest, batch.values.view(len(tables), -1).tolist(), strict=True):
            for id_, time in zip(ids, batch.event_times.tolist(), strict=True):
                own[id_] = max(own.get(id_, 0), time)
    evicted = sum(len(line["ids"]) for line in read_jsonl(whole_timed.evicted))
    assert checked == evicted > 1000


@pytest.mark.parametrize(
    "depth", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 3]
)
def test_every_depth_gives_the_same_run(timed_recipe, tmp_path, whole_timed, depth):
    run = trained(timed_recipe, tmp_path / "run", *TIMED, f"train.pipeline={depth}")
    assert outcome(run) == outcome(whole_timed)
    assert read_jsonl(run.evicted) == read_jsonl(whole_timed.evicted)


def test_a_run_that_was_killed_goes_on_to_the_same_end(timed_recipe, tmp_path, whole_timed):
    folder = tmp_path / "killed"
    with Forked(train_until_call, timed_recipe, folder, TIMED, 14_000, "MainThread") as process:
        assert process.wait() == -signal.SIGKILL
    run = trained(timed_recipe, folder, *TIMED)
    assert outcome(run) == outcome(whole_timed)
    assert read_jsonl(run.evicted) == read_jsonl(whole_timed.evicted)


def test_data_without_event_time_is_refused(recipe, tmp_path):
    with pytest.raises(ConfigError, match=r"'C1' expire by event time .* prepare it with --event-time"):
        Trainer(load_recipe(str(recipe), [stores()]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_shuffled_run_takes_the_latest_time_of_each_batch(timed_recipe, tmp_path):
    """Samples of ten days in one batch: now is the latest, and an id has the latest of its own."""
    trainer = Trainer(load_recipe(str(timed_recipe), [stores(20 * DAY), "train.steps=3"]), tmp_path / "run")
    batches = [batch for _, batch in zip(range(3), trainer.loader, strict=False)]
    trainer.loader.set_epoch(0)
    trainer.train()
    table = trainer.learner.tables[2].name
    known = {}
    for batch in batches:
        for id_, time in zip(batch.values.view(26, -1)[2].tolist(), batch.event_times.tolist(), strict=True):
            known[id_] = max(known.get(id_, 0), time)
    found = {}
    for block in trainer.learner.embeddings.table_states()[table].blocks(1 << 20):
        found |= dict(zip(block.ids.tolist(), block.parts["time"].tolist(), strict=True))
    assert found == known
    assert torch.tensor(list(known.values())).unique().numel() > 100
