"""Every command that reads a file says one sentence about a damaged one: which it is, and what to do."""

import json
import shutil

import pytest
from command_runs import run_command

DEEP = "[" * 5000 + "]" * 5000


def damage(path, how):
    """What may have become of a file."""
    if how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "bytes":
        path.write_bytes(b"\xff\xfe\x00\x81" * 100)
    else:
        path.write_text(
            {"null": "null", "number": "17", "list": "[1, 2]", "string": '"x"', "empty": "", "deep": DEEP}[
                how
            ]
        )


JSON = ["null", "number", "list", "string", "empty", "folder", "truncated", "bytes", "deep"]
LINES = ["null", "number", "list", "string", "folder", "bytes"]
YAML = ["null", "number", "list", "string", "empty", "folder", "bytes", "deep"]
PARQUET = ["null", "empty", "folder", "truncated", "bytes"]


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def unfinished(run):
    """A run that `train` resumes: one that was killed before it wrote how it ended."""
    (run / "summary.json").unlink()
    return run


@pytest.fixture
def own_data(data, tmp_path):
    return shutil.copytree(data, tmp_path / "own")


def refused(done, path):
    """The sentence names the file itself, not another, and has a fix after the semicolon."""
    sentence = done.sentence
    assert str(path) in sentence
    assert "; " in sentence or "must hold a mapping" in sentence
    return sentence


@pytest.mark.parametrize("how", LINES)
@pytest.mark.parametrize("arguments", [["train"], ["report"]], ids=" ".join)
def test_metrics(command, unfinished, arguments, how):
    damage(unfinished / "metrics.jsonl", how)
    refused(command(*arguments, unfinished), unfinished / "metrics.jsonl")


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"kind": "train"},
        {"kind": "train", "step": "x"},
        {"kind": "train", "step": 1, "window": 3},
        {"kind": "eval", "step": 1},
        {"kind": "eval", "step": 1, "split": "valid", "ne": "low"},
    ],
)
@pytest.mark.parametrize("arguments", [["train"], ["report"]], ids=" ".join)
def test_a_line_of_metrics_without_its_keys(command, unfinished, arguments, line):
    text = (unfinished / "metrics.jsonl").read_text()
    (unfinished / "metrics.jsonl").write_text(json.dumps(line) + "\n" + text)
    sentence = refused(command(*arguments, unfinished), unfinished / "metrics.jsonl")
    assert "metrics.jsonl, line 1: " in sentence


@pytest.mark.parametrize("how", JSON)
@pytest.mark.parametrize("name", ["summary.json", "evaluation-valid.json"])
def test_what_a_report_reads(command, run, name, how):
    damage(run / name, how)
    refused(command("report", run), run / name)


@pytest.mark.parametrize("name", ["summary.json", "evaluation-valid.json"])
@pytest.mark.parametrize(
    "change", [{"step": "x"}, {"step": None}, {"machine": {}, "calibration_curve": [{}]}], ids=str
)
def test_what_a_report_reads_with_other_values(command, run, name, change):
    content = json.loads((run / name).read_text())
    (run / name).write_text(json.dumps({**content, **change}))
    refused(command("report", run), run / name)


@pytest.mark.parametrize("how", JSON)
def test_the_summary_that_names_the_best_step(command, recipe, tmp_path, how):
    stopping = "train.early_stopping={patience: 9}"
    assert command("train", recipe, stopping, "--out", tmp_path / "run").code == 0
    damage(tmp_path / "run" / "summary.json", how)
    refused(command("eval", tmp_path / "run"), tmp_path / "run" / "summary.json")


@pytest.mark.parametrize("how", YAML)
@pytest.mark.parametrize("arguments", [["train"], ["eval"], ["report"], ["plan"]], ids=" ".join)
def test_the_recipe_of_a_run(command, run, arguments, how):
    damage(run / "config.yaml", how)
    done = command(*arguments, run)
    if how == "folder":
        # Then it is no run at all.
        assert "config.yaml is missing" in done.sentence or "No recipe" in done.sentence
    else:
        refused(done, run / "config.yaml")


@pytest.mark.parametrize("how", ["null", "number", "list", "string", "empty", "truncated", "bytes", "deep"])
def test_a_trace_that_cannot_be_read_is_passed_over(command, run, how):
    damage(run / "trace.jsonl", how)
    assert command("report", run, "--chrome-trace", run / "chrome.json").code == 0


@pytest.mark.parametrize("arguments", [["train"], ["report"], ["report", "--chrome-trace", "x.json"]])
def test_a_trace_that_is_a_folder(command, unfinished, arguments):
    damage(unfinished / "trace.jsonl", "folder")
    refused(command(arguments[0], unfinished, *arguments[1:]), unfinished / "trace.jsonl")


@pytest.mark.parametrize("how", JSON)
@pytest.mark.parametrize("name", ["train", "plan", "stats", "eval --data", "--vocabulary-from"])
def test_the_schema_of_a_data_set(command, recipe, run, own_data, tmp_path, name, how):
    damage(own_data / "schema.json", how)
    text = tmp_path / "rows.tsv"
    text.write_text("1\t2\n")
    prepare = ["data", "prepare", "criteo", text, "--out", tmp_path / "out"]
    arguments = {
        "train": ["train", recipe, f"data.path={own_data}"],
        "plan": ["plan", recipe, f"data.path={own_data}"],
        "stats": ["data", "stats", own_data],
        "eval --data": ["eval", run, "--data", own_data],
        "--vocabulary-from": [*prepare, "--vocabulary-from", own_data],
    }[name]
    refused(command(*arguments), own_data / "schema.json")


@pytest.mark.parametrize("how", JSON)
def test_the_statistics_of_a_data_set(command, recipe, own_data, how):
    assert command("data", "stats", own_data, "--save").code == 0
    damage(own_data / "statistics.json", how)
    refused(command("plan", recipe, f"data.path={own_data}"), own_data / "statistics.json")


@pytest.mark.parametrize("how", JSON)
@pytest.mark.parametrize("name", ["report", "plan --dry-run"])
def test_a_plan(command, recipe, tmp_path, name, how):
    plan = tmp_path / "plan.json"
    assert command("plan", recipe, "--world-size", 2, "--seconds", 0.1, "--out", plan).code == 0
    damage(plan, how)
    if name == "report":
        done = command("report", plan)
    else:
        done = command("plan", recipe, "--dry-run", "--plan", plan)
    if name == "report" and how == "folder":
        assert "is not a run" in done.sentence
    else:
        refused(done, plan)


@pytest.mark.parametrize("estimate", [{"workers": []}, {"workers": 3}, {"workers": [{}], "phases": []}])
def test_a_plan_whose_estimate_cannot_be_drawn(command, recipe, tmp_path, estimate):
    plan = tmp_path / "plan.json"
    assert command("plan", recipe, "--world-size", 2, "--seconds", 0.1, "--out", plan).code == 0
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "estimate": estimate}))
    refused(command("report", plan), plan)


@pytest.mark.parametrize("how", ["null", "number", "list", "string", "empty", "truncated", "bytes", "deep"])
def test_a_result_of_a_benchmark(command, tmp_path, how):
    result = tmp_path / "result.json"
    keys = ("time", "machine", "versions", "settings", "results")
    result.write_text(json.dumps({"suite": "train", **{key: {} for key in keys}}))
    damage(result, how)
    refused(command("report", result), result)


@pytest.mark.parametrize("suite", ["train", "data", "embedding", "other", None, []])
@pytest.mark.parametrize("value", [{}, None, [], "x", {"measured": 1, "candidates": 2, "prepare": 3}])
def test_a_result_of_a_benchmark_with_other_values(command, tmp_path, suite, value):
    result = tmp_path / "result.json"
    keys = ("time", "machine", "versions", "settings", "results")
    result.write_text(json.dumps({"suite": suite, **dict.fromkeys(keys, value)}))
    refused(command("report", result), result)


@pytest.mark.parametrize("how", YAML)
@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "FILE"],
        ["plan", "FILE"],
        ["plan", "--tables", "FILE"],
        ["plan", "--tables", "neo-a", "--hardware", "FILE"],
        ["explore", "predict", "FILE"],
        ["explore", "search", "FILE"],
        ["explore", "compare", "gpt3-175b", "FILE"],
        ["explore", "predict", "gpt3-175b", "--hardware", "FILE"],
        ["explore", "catalog", "--hardware", "FILE"],
    ],
    ids=" ".join,
)
def test_a_yaml_file(command, tmp_path, arguments, how):
    file = tmp_path / "given.yaml"
    file.write_text("a: 1\n")
    damage(file, how)
    refused(command(*(file if word == "FILE" else word for word in arguments)), file)


@pytest.mark.parametrize("how", JSON)
def test_a_hugging_face_config(command, tmp_path, how):
    file = tmp_path / "config.json"
    file.write_text('{"hidden_size": 1}')
    damage(file, how)
    refused(command("explore", "predict", "gpt3-175b", f"model={file}"), file)


@pytest.mark.parametrize("how", ["null", "empty", "folder", "bytes"])
def test_measurements_of_ones_own(command, tmp_path, how):
    file = tmp_path / "mine.csv"
    file.write_text("a,b\n1,2\n")
    damage(file, how)
    assert str(file) in command("explore", "validate", file).sentence


@pytest.fixture(scope="session")
def counted(tmp_path_factory):
    """Criteo text and what was prepared from it, vocabulary and all."""
    folder = tmp_path_factory.mktemp("counted")
    sizes = ["--rows", 300, "--valid-rows", 0, "--test-rows", 0, "--threads", 1]
    run_command("data", "synth", "criteo", *sizes, "--format", "text", "--out", folder / "text")
    (file,) = (folder / "text").glob("*train*")
    arguments = ["--min-count", 1, "--threads", 1, "--out", folder / "first"]
    assert run_command("data", "prepare", "criteo", file, *arguments).code == 0
    return file, folder / "first"


@pytest.mark.parametrize("how", [*PARQUET, "other", "missing"])
def test_a_damaged_vocabulary_is_named_and_not_the_output(command, counted, tmp_path, how):
    file, first = counted
    first = shutil.copytree(first, tmp_path / "first")
    vocabulary = first / "vocabulary" / "C3.parquet"
    if how == "other":
        shutil.copyfile(first / "vocabulary" / "C9.parquet", vocabulary)
    elif how == "missing":
        vocabulary.unlink()
    else:
        damage(vocabulary, how)
    out = tmp_path / "second"
    done = command("data", "prepare", "criteo", file, "--out", out, "--vocabulary-from", first)
    sentence = refused(done, vocabulary)
    assert str(out) not in sentence
    assert not out.exists()


@pytest.mark.parametrize("name", ["../x.parquet", "/etc/passwd", "train/../../x", "", "a\0b"])
def test_a_schema_names_no_file_outside_its_folder(command, own_data, name):
    schema = json.loads((own_data / "schema.json").read_text())
    schema["splits"]["train"]["files"] = [name]
    (own_data / "schema.json").write_text(json.dumps(schema))
    sentence = refused(command("data", "stats", own_data), own_data / "schema.json")
    assert "not the name of a file inside" in sentence


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a\nb"])
def test_a_split_has_a_name_that_files_can_have(command, own_data, name):
    schema = json.loads((own_data / "schema.json").read_text())
    schema["splits"][name] = schema["splits"]["valid"]
    (own_data / "schema.json").write_text(json.dumps(schema))
    assert "cannot be the name of a split" in command("data", "stats", own_data).sentence
