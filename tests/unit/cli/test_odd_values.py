"""Values that are out of all bounds, or of another kind than the key, get one sentence that names the key."""

import os

import pytest


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("train.seed=99999999999999999999999", "key 'train.seed'"),
        ("train.seed=-1", "key 'train.seed'"),
        ("data.prefetch=99999999999", "key 'data.prefetch'"),
        ("data.threads=99999999999", "key 'data.threads'"),
        ("train.trace_bytes=1", "key 'train.trace_bytes'"),
        ("dense={kind: adam, betas: [2, 2]}", "key 'dense.betas.0'"),
        ("embeddings.optimizer={kind: adam, betas: [0.9, 1]}", "betas.1'"),
        ("model.init_scale=.inf", "finite number"),
        ("dense={kind: sgd, lr: .nan}", "key 'dense.lr'"),
        ("dense.lr=0.1", "key 'dense.kind' is missing; add it"),
        ("model={kind: custom, file: [1], config: X}", "key 'model.file'"),
        ("model={kind: custom, file: ~no-such-user/x.py, config: X}", "model.file"),
        ('model={kind: custom, file: "a\\0b", config: X}', "model.file"),
        ("sharding.plan=[1]", "key 'sharding.plan"),
        ('data.path="a\\0b"', "is not a prepared data set"),
    ],
)
def test_a_recipe(command, recipe, tmp_path, override, named):
    assert named in command("train", recipe, override, "--out", tmp_path / "run").sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", ["5", "[5]", "{a: b}"])
def test_the_hardware_of_a_job(command, value):
    done = command("explore", "predict", "gpt3-175b", f"hardware={value}")
    assert "key 'hardware' must be a list of YAML files" in done.sentence


@pytest.mark.parametrize(
    "row", ["1,2,3", "a,b,no-gpu" + ",1" * 19, "x,y,a100-80g" + ",0" * 19, "x,y,a100-80g" + ",z" * 19]
)
def test_a_row_of_measurements(command, tmp_path, row):
    from megalith.explore.validation.measurements import FOLDER

    head = (FOLDER / "llm_training.csv").read_text().splitlines()[0]
    file = tmp_path / "mine.csv"
    file.write_text(f"{head}\n{row}\n")
    assert f"{file}, row 1" in command("explore", "validate", file).sentence


def test_a_name_that_is_no_utf_8(command, tmp_path):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/a\xffb")
    done = command("data", "synth", "criteo", "--rows", 100, "--threads", 1, "--out", odd)
    assert "a\\xffb" in done.sentence
    assert list(tmp_path.iterdir()) == []


def test_a_plan_file_has_no_spans_to_draw(command, recipe, tmp_path):
    plan = tmp_path / "plan.json"
    assert command("plan", recipe, "--world-size", 2, "--seconds", 0.1, "--out", plan).code == 0
    assert "--chrome-trace" in command("report", plan, "--chrome-trace", tmp_path / "x.json").sentence
