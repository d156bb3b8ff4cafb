"""What a run publishes is what it trained, bit for bit: whatever holds its rows, whatever fails meanwhile."""

import json
import shutil

import pytest
from published_run import PublishedRun

from megalith.core.errors import ConfigError
from megalith.core.files import read_jsonl
from megalith.train.recipe import load_recipe
from megalith.train.trainer import Trainer

DYNAMIC = {
    "kind": "dynamic",
    "bound": 200,
    "admission": {"kind": "count", "count": 2, "counter_bytes": 8192},
    "eviction": {"kind": "score", "half_life": 20},
    "expiry": {"batches": 8, "interval": 5},
}
STORES = {
    "memory": (),
    "disk": ("memory.dram=600KiB",),
    "dynamic": ("embeddings.stores=" + json.dumps({"*": DYNAMIC}),),
    "adaptive": ("adaptive.ratio=4",),
}


@pytest.fixture
def begun(recipe, tmp_path):
    """A run on plain tables that has published its first version and taken three steps since."""
    run = PublishedRun(recipe, tmp_path)
    run.publisher.begin(0)
    run.publisher._settle()
    run.train(3)
    yield run
    run.close()


@pytest.mark.parametrize(
    ("store", "tables"),
    [
        ("memory", "float32"),
        ("dynamic", "int8"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("memory", "int8"), ("dynamic", "float32"))
        ),
        ("disk", "float32"),
        ("adaptive", "float32"),
        *(pytest.param(store, "int8", marks=pytest.mark.slow) for store in ("disk", "adaptive")),
    ],
)
def test_a_reader_has_the_trainer_s_rows_and_weights_at_every_version(recipe, tmp_path, store, tables):
    run = PublishedRun(recipe, tmp_path, *STORES[store], tables=tables)
    run.publisher.begin(0)
    run.publisher._settle()
    assert not run.follow()
    assert run.is_followed()
    deleted = 0
    for number in range(2, 5):
        run.train(4)
        assert not run.is_followed()
        entry = run.publish()
        assert (entry["version"], entry["kind"]) == (number, "delta")
        deleted += entry["deleted"]
        assert not run.follow()
        assert run.is_followed()
    # A row of a dynamic table that was evicted is gone at the reader too.
    assert bool(deleted) == (store == "dynamic")
    run.close()


def test_rows_of_a_version_that_could_not_be_written_are_in_the_next(begun):
    deltas = begun.uri / "deltas"
    # Not a folder: what is written below it fails, whoever writes it.
    deltas.write_text("")
    first = begun.publish()
    assert "failed" in first
    assert str(deltas) in first["failed"]
    assert "Publishing failed" in begun.told[0]
    begun.train(3)
    assert "failed" in begun.publish()
    assert len(begun.told) == 1
    deltas.unlink()
    begun.train(1)
    entry = begun.publish()
    assert (entry["version"], entry["step"]) == (2, 7)
    assert begun.told[1] == "Version 2 is published; nothing is missing."
    begun.follow()
    assert begun.is_followed()


@pytest.mark.parametrize("store", ["memory", pytest.param("disk", marks=pytest.mark.slow), "dynamic"])
def test_more_changes_than_there_is_room_for_are_sent_as_whole_tables(recipe, tmp_path, store):
    run = PublishedRun(recipe, tmp_path, *STORES[store], buffer=6000)
    run.publisher.begin(0)
    run.publisher._settle()
    for _ in range(2):
        run.train(3)
        entry = run.publish()
        assert 0 < len(entry["whole_tables"]) < 26
        run.follow()
        assert run.is_followed()
    run.close()


def test_a_failed_version_of_whole_tables_is_in_the_next(recipe, tmp_path):
    run = PublishedRun(recipe, tmp_path, buffer=6000)
    run.publisher.begin(0)
    run.publisher._settle()
    run.train(3)
    (run.uri / "deltas").write_text("")
    assert "failed" in run.publish()
    (run.uri / "deltas").unlink()
    # No step since: what is published is what was given back.
    run.train(1)
    run.publish()
    run.follow()
    assert run.is_followed()
    run.close()


def test_deltas_become_a_snapshot_and_what_nobody_needs_is_removed(recipe, tmp_path):
    run = PublishedRun(recipe, tmp_path, keep=1, snapshot_share=0.3)
    run.publisher.begin(0)
    run.publisher._settle()
    for _ in range(12):
        run.train(2)
        run.publish()
    snapshots = sorted(int(path.name) for path in (run.uri / "snapshots").iterdir())
    assert len(snapshots) == 1
    assert snapshots[0] > 1
    assert sorted(int(path.stem) for path in (run.uri / "versions").iterdir())[0] == snapshots[0]
    # Who was away begins there.
    assert not run.follow()
    assert run.is_followed()
    assert not list((tmp_path / "run" / "publishing" / "work").iterdir())
    run.close()


def test_a_trainer_that_starts_again_publishes_what_it_has_and_not_what_the_one_before_had(begun):
    begun.publish()
    begun.follow()
    # As after a kill: the model is that of a checkpoint, older than what was published.
    begun.restart()
    begun.train(1)
    begun.publisher.begin(begun.trainer.step)
    begun.publisher._settle()
    entry = read_jsonl(begun.trainer.run.published)[-1]
    assert (entry["version"], entry["kind"]) == (3, "snapshot")
    begun.train(1)
    begun.publish()
    assert not begun.follow()
    assert begun.position.number == 4
    assert begun.is_followed()


def test_a_stream_that_lost_its_newest_version_is_written_on_from_what_is_there(begun):
    begun.publish()
    begun.train(1)
    begun.publish()
    (begun.uri / "versions" / "0000000003.json").unlink()
    begun.restart()
    begun.publisher.begin(begun.trainer.step)
    begun.publisher._settle()
    assert not begun.follow()
    assert begun.position.number == 3
    assert begun.is_followed()


def test_the_versions_of_another_run_are_not_written_over(begun, recipe, tmp_path):
    begun.publish()
    other = tmp_path / "other"
    other.mkdir()
    shutil.copytree(begun.uri, other / "live")
    with pytest.raises(ConfigError, match="has the versions of another run"):
        PublishedRun(recipe, other).publisher.begin(0)


def test_training_publishes_by_itself_and_to_the_last_step(recipe, tmp_path):
    """The whole loop, ahead of itself, with a run beside it that does not publish."""
    plain = Trainer(load_recipe(recipe, ["train.steps=12"]), tmp_path / "plain").train()
    run = PublishedRun(recipe, tmp_path, "train.steps=12", "train.pipeline=2", every_steps=5)
    run.close()
    run.trainer.loader.load_state_dict(Trainer(run.trainer.recipe, tmp_path / "fresh").loader.state_dict())
    summary = run.trainer.train()
    assert summary["evaluation"] == plain["evaluation"]
    versions = [entry["step"] for entry in read_jsonl(run.trainer.run.published) if "version" in entry]
    assert versions[0] == 0
    assert versions[-1] == 12
    assert not run.follow()
    assert run.is_followed()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("publish={uri: live, every_steps: 1, tables: {C99: int8}}", "publish.tables names 'C99'"),
        ("publish={uri: live, every_steps: 1, user: [C99]}", "publish.user names 'C99'"),
        ("publish={uri: live}", "either every_seconds or every_steps"),
        ("publish={uri: 'nothing://here', every_steps: 1}", "nothing://here is no place"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(recipe, tmp_path, override, said):
    with pytest.raises(ConfigError, match=said):
        Trainer(load_recipe(recipe, [override]), tmp_path / "run")
