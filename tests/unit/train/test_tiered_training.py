"""Training beyond memory gives the run that unlimited memory would: bit by bit, killed or not."""

import random
import signal

import pytest
from small_recipes import outcome, train_until_call, trained, write_recipe

from forked import Forked
from megalith.core.errors import PlanError, StorageError
from megalith.core.files import read_jsonl
from megalith.data.dataset import Dataset
from megalith.embeddings.stores.tiered import TieredStore
from megalith.train.checkpoints import open_learner
from megalith.train.evaluation.evaluate import evaluate
from megalith.train.recipe import load_recipe
from megalith.train.trainer import Trainer

# The tables have 1.5 MB of rows and state. A batch of evaluation uses about 8,000 rows of 20 bytes.
TIGHT = ("memory={dram: 192KiB, engine: threads}",)


@pytest.mark.parametrize(
    ("depth", "policy", "window"),
    [(0, "lru", 0), (0, "lookahead", 3), (1, "lookahead", 8), (3, "lookahead", 1), (2, "lfu", 0)],
)
def test_every_depth_policy_and_window_gives_the_run_of_unlimited_memory(
    recipe,
    tmp_path,
    whole,
    depth,
    policy,
    window,
):
    memory = f"memory={{dram: 192KiB, policy: {policy}, window: {window}}}"
    run = trained(recipe, tmp_path / "run", memory, f"train.pipeline={depth}")
    assert outcome(run) == outcome(whole)
    tiers = [line["tiers"] for line in read_jsonl(run.metrics) if line["kind"] == "train"]
    assert sum(entry["reads"] for entry in tiers) > 10_000
    # The last batches were looked up in an earlier interval, where the pipeline is deep.
    assert all(0 < entry["hit_rate"] < 1 for entry in tiers[:-1])
    assert all(entry["memory_bytes"] < 250_000 for entry in tiers)


@pytest.mark.parametrize(("background", "calls"), [(False, 60_000), (True, 60_000)])
@pytest.mark.parametrize("seed", range(3))
def test_a_tiered_run_killed_at_any_instant_resumes_bit_identically(
    recipe,
    tmp_path,
    whole,
    background,
    calls,
    seed,
):
    folder = tmp_path / "killed"
    overrides = [f"train.background_checkpoints={background}", *TIGHT]
    wanted = random.Random(seed).randint(1, calls)
    with Forked(train_until_call, recipe, folder, overrides, wanted, "MainThread") as process:
        assert process.wait() == -signal.SIGKILL
    assert outcome(trained(recipe, folder, *overrides)) == outcome(whole)


@pytest.mark.parametrize(("before", "after"), [(TIGHT, ()), ((), TIGHT)], ids=["to dense", "to tiered"])
def test_a_run_goes_on_in_another_kind_of_store(recipe, tmp_path, whole, before, after):
    folder = tmp_path / "killed"
    with Forked(train_until_call, recipe, folder, before, 50_000, "MainThread") as process:
        assert process.wait() == -signal.SIGKILL
    resumed = trained(recipe, folder, *after)
    assert outcome(resumed) == outcome(whole)


def tree(folder):
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*") if path.is_file()
    }


def test_an_epoch_of_evaluation_writes_nothing(recipe, tmp_path):
    run = trained(recipe, tmp_path / "run", *TIGHT)
    before, settings = tree(run.folder), load_recipe(str(recipe), TIGHT)
    dataset = Dataset(settings.data.path)
    learner, _ = open_learner(run, dataset)
    evaluate(learner, dataset, "test", settings.data, depth=1)
    assert learner.embeddings.counts().reads > 0
    assert learner.embeddings.counts().written_bytes == 0
    del learner
    assert tree(run.folder) == before


def test_nothing_is_left_of_the_rows_when_a_run_is_over(recipe, tmp_path):
    for memory in ((), (f"memory.path={tmp_path / 'disk'}",)):
        run = trained(recipe, tmp_path / f"run-{len(memory)}", *TIGHT, *memory)
        learner, _ = open_learner(run, Dataset(load_recipe(str(recipe)).data.path))
        del learner
        assert not (run.folder / "rows").exists()
        assert not (tmp_path / "disk").exists()


def test_a_folder_for_rows_that_was_there_stays(recipe, tmp_path):
    (tmp_path / "disk").mkdir()
    trained(recipe, tmp_path / "run", *TIGHT, f"memory.path={tmp_path / 'disk'}")
    assert list((tmp_path / "disk").iterdir()) == []


def test_checkpoints_are_written_while_batches_wait_for_room(recipe, tmp_path, whole):
    """A cache of hardly more than a batch, three batches ahead: the pipeline waits most of the time."""
    settings = "train.pipeline=3", "data.eval_batch_size=100"
    run = trained(recipe, tmp_path / "run", "memory={dram: 72KiB, engine: threads}", *settings)
    losses = [
        [line["loss"] for line in read_jsonl(one.metrics) if line["kind"] == "train"] for one in (run, whole)
    ]
    assert losses[0] == losses[1]


def test_a_cache_that_holds_no_batch_is_refused_in_one_sentence(recipe, tmp_path):
    with pytest.raises(StorageError, match=r"raise memory\.dram, or take smaller batches"):
        trained(recipe, tmp_path / "run", "memory={dram: 16KiB, engine: threads}")


def test_a_cache_larger_than_the_machine_is_refused(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("megalith.train.learner.memory.available_bytes", lambda: 100_000)
    with pytest.raises(PlanError, match=r"KiB \(memory\.dram\) and 97\.7 KiB of memory is available"):
        Trainer(load_recipe(str(recipe), TIGHT), tmp_path / "run")


def test_small_tables_stay_in_memory_within_the_budget(recipe):
    settings = load_recipe(str(recipe), TIGHT)
    learner = Trainer(settings, "unused").learner
    stores = learner.embeddings.stores.stores
    tiered = [store for store in stores if isinstance(store, TieredStore)]
    assert 0 < len(tiered) < len(stores)
    taken = learner.embeddings.bytes()
    assert taken.weights + taken.state <= settings.memory.dram + 100


@pytest.fixture(scope="module")
def long_losses(small_data, tmp_path_factory):
    """Every loss of 2,000 steps with all rows in memory."""
    folder = tmp_path_factory.mktemp("long")
    return every_loss(write_recipe(folder / "small.yaml", small_data), folder / "run")


def every_loss(recipe, folder, *overrides):
    settings = "train.steps=2000", "train.log_every=1", "train.eval_every=1900", "data.eval_batch_size=100"
    run = trained(recipe, folder, *settings, "train.checkpoint_every=500", *overrides)
    lines = read_jsonl(run.metrics)
    return [line["loss"] for line in lines if line["kind"] == "train"], lines[-1]["log_loss"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "policy", "window"),
    [(0, "lru", 0), (1, "lookahead", 1), (2, "lookahead", 8), (4, "lfu", 0), (8, "lookahead", 32)],
)
def test_two_thousand_losses_are_those_of_unlimited_memory(
    recipe, tmp_path, long_losses, depth, policy, window
):
    """With a cache of hardly more than the rows of one batch."""
    memory = f"memory={{dram: 72KiB, policy: {policy}, window: {window}}}"
    found = every_loss(recipe, tmp_path / "run", memory, f"train.pipeline={depth}")
    assert len(found[0]) == 2000
    assert found == long_losses
