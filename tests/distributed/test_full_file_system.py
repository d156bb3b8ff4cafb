"""A real file system that fills under a run: one sentence, the last good checkpoint stays, and once there is
room the run ends where an undisturbed one does."""

import sys
from typing import NamedTuple

import pytest
from processes import as_torchrun_does, sentences
from small_disk import CannotMountError, allocated_bytes, enter, small_disk
from small_runs import make_recipe, outcome, write_plan
from small_runs import train as train_undisturbed

from megalith.checkpoint.store import CheckpointStore
from megalith.data.dataset import Dataset
from megalith.train.checkpoints import open_learner
from megalith.train.run.folder import RunFolder

ROOMY = 1 << 30


class Undisturbed(NamedTuple):
    """A run that had all the room it wanted."""

    recipe: str
    outcome: tuple
    checkpoint_bytes: int
    other_bytes: int
    """Of the files beside its checkpoints, at most: they grow to the end."""


@pytest.fixture(scope="module", params=[1, 2])
def num_ranks(request):
    return request.param


@pytest.fixture(scope="module")
def undisturbed(num_ranks, tiny_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    recipe = make_recipe(folder / "tiny.yaml", tiny_data, dim=16)
    if num_ranks > 1:
        plan = write_plan(folder / "plan.json", recipe, num_ranks)
        recipe.write_text(recipe.read_text() + f"sharding: {{plan: {plan}}}\n")
    run = train_undisturbed(recipe, folder / "run", num_ranks)
    checkpoints = CheckpointStore(run.checkpoints)
    size = allocated_bytes(checkpoints.path(checkpoints.latest()))
    others = allocated_bytes(run.folder) - allocated_bytes(run.checkpoints)
    return Undisturbed(recipe, outcome(run), size, others)


def command(disk, *words):
    """`megalith ...` where the small disk is mounted."""
    enter(disk.namespace)
    sys.argv = ["megalith", *map(str, words)]
    from megalith.cli import main

    main()


# Saving in the background or not; how many checkpoints there is room for, where a run wants three at a time;
# the steps that are left of a run that saves every fifth one.
CASES = [
    pytest.param("no", 0.5, [], id="0.5"),
    pytest.param("yes", 0.5, [], id="0.5 in background", marks=pytest.mark.slow),
    pytest.param("no", 1.5, [5], id="1.5", marks=pytest.mark.slow),
    pytest.param("yes", 1.5, [5], id="1.5 in background"),
    pytest.param("no", 2.2, [5, 10], id="2.2"),
    pytest.param("yes", 2.2, [5, 10], id="2.2 in background"),
]


@pytest.mark.parametrize(("background", "room", "kept"), CASES)
def test_a_full_file_system_is_one_sentence_and_the_run_resumes_when_there_is_room(
    num_ranks, undisturbed, tiny_data, tmp_path, background, room, kept
):
    size = undisturbed.other_bytes + int(room * undisturbed.checkpoint_bytes)
    try:
        with small_disk(tmp_path / "disk", size) as disk:
            run = RunFolder(disk.outside / "run")
            words = [undisturbed.recipe, f"train.background_checkpoints={background}", "--out"]
            full = as_torchrun_does(num_ranks, command, disk, "train", *words, disk.folder / "run")
            assert full.codes == [2] * num_ranks, full.stderr
            assert "Traceback" not in full.stderr
            assert len(sentences(full)) == 1, full.stderr
            (said,) = sentences(full)
            assert (
                f"The disk is full (or a quota or file size limit is reached) while writing {disk.folder}"
                in said
            )
            assert CheckpointStore(run.checkpoints).steps() == kept
            assert not list(run.checkpoints.glob(".*"))
            if kept:
                assert open_learner(run, Dataset(tiny_data))[1] == kept[-1]

            disk.resize(ROOMY)
            resumed = as_torchrun_does(num_ranks, command, disk, "train", disk.folder / "run")
            assert resumed.codes == [0] * num_ranks, resumed.stderr
            assert f"from step {kept[-1] if kept else 0}." in resumed.stderr
            assert outcome(run) == undisturbed.outcome
    except CannotMountError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
