"""Training on a directory that grows: files in order, each row once, whatever is killed meanwhile."""

import json
import shutil
import signal
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_recipes import outcome
from test_raw_training import write_logs
from typer.testing import CliRunner

from forked import Forked
from megalith.cli.app import app
from megalith.core.errors import CheckpointError, ConfigError, DataError
from megalith.core.files import read_jsonl
from megalith.data.growing.ledger import FileLedger
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer

FILES, ROWS = 7, 430
"""Rows of a file are no whole number of batches."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files that are to come, in the order of their names."""
    logs = write_logs(tmp_path_factory.mktemp("logs") / "all", rows=FILES * ROWS)
    table = pa.concat_tables(pq.read_table(path) for path in sorted(logs.iterdir()))
    folder = tmp_path_factory.mktemp("files")
    for number in range(FILES):
        pq.write_table(table.slice(number * ROWS, ROWS), folder / f"day-{number}.parquet", row_group_size=100)
    return sorted(folder.iterdir())


@pytest.fixture
def growing(tmp_path, files):
    """A folder with the first file, and the recipe of a run on it."""
    folder = tmp_path / "logs"
    folder.mkdir()
    come(folder, files[0])
    return folder, write_recipe(tmp_path / "recipe.yaml", folder)


def write_recipe(path, folder):
    path.write_text(
        f"""
name: growing
data:
  path: {folder}
  batch_size: 100
  threads: 2
  prefetch: 3
  shuffle_window_rows: 200
  raw: {{source: parquet, hash_buckets: 50}}
  growing: {{look_seconds: 0.01}}
model: {{kind: dlrm, dim: 4, bottom: {{layers: [8]}}, top: {{layers: [8]}}}}
train: {{steps: 1000, log_every: 5, checkpoint_every: 4, tensorboard: no}}
"""
    )
    return path


def come(folder, *paths):
    """Files appear as they should: whole."""
    for path in paths:
        shutil.copy(path, folder / f"{path.name}.tmp")
        (folder / f"{path.name}.tmp").rename(folder / path.name)


def end(folder):
    (folder / "_END").touch()


def lines(run):
    run.evaluation("valid").write_text("{}")
    return outcome(run)[0]


def train(recipe, folder, *overrides):
    run = RunFolder(folder)
    trainer = Trainer(load_recipe(recipe, list(overrides)), run, resumes=run.config.exists())
    if run.config.exists():
        trainer.resume()
    return run, trainer.train()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, files):
    """The run where all files were there from the beginning."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "logs").mkdir()
    come(folder / "logs", *files)
    end(folder / "logs")
    run, summary = train(write_recipe(folder / "recipe.yaml", folder / "logs"), folder / "run")
    # 3,010 rows; the last 10 fill no batch.
    assert (summary["step"], summary["finished"], summary["stopped_by"]) == (30, True, "the end of the data")
    return lines(run)


def test_files_that_come_while_it_trains_give_the_run_of_those_that_were_there(
    growing, files, undisturbed, tmp_path
):
    folder, recipe = growing
    trainer = Trainer(load_recipe(recipe, []), tmp_path / "run")
    left, waits = list(files[1:]), threading.Event()
    interrupted = trainer.loader._interrupted
    wait = interrupted.wait

    def come_when_it_waits(seconds):
        # Only then: every file is waited for.
        if left:
            come(folder, left.pop(0))
        else:
            end(folder)
            waits.set()
        return wait(seconds)

    interrupted.wait = come_when_it_waits
    trainer.train()
    assert waits.is_set()
    assert lines(trainer.run) == undisturbed
    taken = [entry["index"]["name"] for entry in read_jsonl(trainer.run.taken_files)]
    assert taken == [str(folder / path.name) for path in files]


@pytest.mark.parametrize("step", [1, 5, 14, pytest.param(23, marks=pytest.mark.slow)])
def test_a_run_that_was_killed_takes_every_row_once_and_in_the_same_order(
    growing, files, undisturbed, tmp_path, step
):
    folder, recipe = growing
    come(folder, *files[1:])
    run = RunFolder(tmp_path / "run")
    with Forked(killed_at_step, recipe, run.folder, step) as process:
        assert process.wait() == -signal.SIGKILL
    end(folder)
    run, summary = train(recipe, run.folder)
    assert summary["step"] == 30
    assert lines(run) == undisturbed


def killed_at_step(recipe, folder, step):
    trainer = Trainer(load_recipe(recipe, []), folder)
    trainer.create()
    take = trainer.learner.step

    def until(*arguments):
        if trainer.step == step:
            signal.raise_signal(signal.SIGKILL)
        return take(*arguments)

    trainer.learner.step = until
    trainer.train()


def test_a_run_that_ended_goes_on_when_the_marker_is_gone(growing, files, undisturbed, tmp_path):
    folder, recipe = growing
    come(folder, *files[1:3])
    end(folder)
    run, summary = train(recipe, tmp_path / "run")
    assert (summary["step"], summary["stopped_by"]) == (12, "the end of the data")
    assert run.finished() == summary
    done = CliRunner().invoke(app, ["train", str(run.folder), "--json"])
    assert json.loads(done.stdout)["step"] == 12
    (folder / "_END").unlink()
    # What was read is not needed any more, but for the rows that filled no batch.
    (folder / files[0].name).unlink()
    (folder / files[1].name).unlink()
    come(folder, *files[3:])
    assert run.finished() is None
    end(folder)
    run.summary.unlink()
    _, summary = train(recipe, run.folder)
    assert summary["step"] == 30
    assert [one for one in lines(run) if one["step"] % 5 == 0] == [
        one for one in undisturbed if one["step"] % 5 == 0
    ]


def test_a_file_that_comes_late_is_taken_when_it_comes_and_again_so_by_who_goes_on(growing, files, tmp_path):
    folder, recipe = growing
    (folder / files[0].name).unlink()
    come(folder, *files[2:4])
    run, _ = train(recipe, tmp_path / "run", "train.steps=5")
    come(folder, files[0])
    end(folder)
    run.write_recipe(load_recipe(recipe, []))
    run.summary.unlink()
    _, summary = train(recipe, run.folder)
    assert summary["step"] == 12
    taken = [entry["index"]["name"] for entry in read_jsonl(run.taken_files)]
    assert taken == [str(folder / files[number].name) for number in (2, 3, 0)]


def test_it_ends_after_its_steps_and_at_a_signal_while_it_waits(growing, files, tmp_path):
    _, recipe = growing
    _, summary = train(recipe, tmp_path / "steps", "train.steps=3")
    assert (summary["step"], summary["stopped_by"]) == (3, None)
    with Forked(waits_for_files, recipe, tmp_path / "waits") as process:
        assert process.wait() == 0
    summary = json.loads(RunFolder(tmp_path / "waits").summary.read_text())
    assert (summary["step"], summary["stopped_by"], summary["finished"]) == (4, "SIGTERM", False)


def waits_for_files(recipe, folder):
    trainer = Trainer(load_recipe(recipe, []), folder)
    peek = trainer._growth.has_batch

    def has_batch(pipeline, stop, meanwhile):
        def signalled():
            if trainer.step == 4:
                signal.raise_signal(signal.SIGTERM)
            meanwhile()

        return peek(pipeline, stop, signalled)

    trainer._growth.has_batch = has_batch
    trainer.train()


def test_what_is_published_is_there_while_it_waits_for_files(growing, files, tmp_path):
    """The rows of the last step before a pause are not kept until the next file comes."""
    folder, recipe = growing
    publish = f"publish={{uri: {tmp_path / 'live'}, every_seconds: 0.001, tables: float32}}"
    trainer = Trainer(load_recipe(recipe, [publish]), tmp_path / "run")
    interrupted = trainer.loader._interrupted
    wait = interrupted.wait
    steps = []

    def ends_when_published(seconds):
        published = [one["step"] for one in read_jsonl(trainer.run.published) if "version" in one]
        if published and published[-1] == 4:
            steps.extend(published)
            end(folder)
        return wait(seconds)

    interrupted.wait = ends_when_published
    trainer.train()
    assert steps[-1] == 4


def test_a_file_that_changes_or_goes_while_it_is_read_is_named(growing, files, tmp_path):
    folder, recipe = growing
    run, _ = train(recipe, tmp_path / "run", "train.steps=3")
    shutil.copy(files[1], folder / files[0].name)
    with pytest.raises(DataError, match=r"day-0.parquet has changed while the run reads it"):
        resumed(recipe, run)
    (folder / files[0].name).unlink()
    come(folder, files[1])
    with pytest.raises(DataError, match=r"day-0.parquet was being read and is not there"):
        resumed(recipe, run)
    run.taken_files.unlink()
    with pytest.raises(CheckpointError, match=r"taken-files.jsonl does not say that file 0 was"):
        resumed(recipe, run)


def resumed(recipe, run):
    run.summary.unlink(missing_ok=True)
    run.write_recipe(load_recipe(recipe, ["train.steps=9"]))
    trainer = Trainer(run.recipe(), run, resumes=True)
    trainer.resume()
    trainer.train()


def test_a_line_that_a_kill_cut_short_is_not_in_the_list_of_files(tmp_path, growing, files):
    folder, recipe = growing
    come(folder, *files[1:])
    end(folder)
    run, _ = train(recipe, tmp_path / "run", "train.steps=6")
    whole = run.taken_files.read_bytes()
    run.taken_files.write_bytes(whole + whole[:40])
    ledger = FileLedger(run.taken_files)
    number = ledger.next_number
    assert run.taken_files.read_bytes() == whole
    ledger.add(ledger.find(0))
    assert FileLedger(run.taken_files).next_number == number + 1


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.epochs=1", "data.growing has no epochs: give train.steps"),
        ("data.raw=null", "growing is for raw files"),
        ("data.growing.look_second=1", "did you mean 'look_seconds'"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(growing, override, said):
    _, recipe = growing
    with pytest.raises(ConfigError, match=said):
        load_recipe(recipe, [override])
