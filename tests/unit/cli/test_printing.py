"""Paths and names are printed as they are: never markup, never wrapped, whatever the terminal's width."""

import json
import os
import signal
import subprocess
import sys

import pytest

import commands
from megalith.cli.output import note, print_table, say, text_column

ODD = "br[/x]ack [bold]:smile: {task} 100%"

STOPPED_ONCE = """
import os, signal
from pathlib import Path
from megalith.models.dlrm.config import DLRMConfig
from megalith.models.dlrm.model import DLRM

class Stopped(DLRM):
    def forward(self, dense, embedded):
        self.calls = getattr(self, "calls", 0) + 1
        marker = Path("once.stopped")
        if self.calls == 3 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGTERM)
        return super().forward(dense, embedded)

class StoppedConfig(DLRMConfig):
    def build(self, inputs):
        return Stopped(self, inputs)
"""


def test_lines_are_printed_as_they_are(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    say(f"Wrote {ODD}", (ODD, "bold"))
    note(f"Wrote {ODD}")
    printed = capsys.readouterr()
    assert printed.out == f"Wrote {ODD}{ODD}\n"
    assert printed.err == f"Wrote {ODD}\n"


def test_titles_and_cells_of_tables_are_printed_as_they_are(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    print_table(f"Title {ODD}", [f"Head {ODD}", "n"], [[f"Cell {ODD}" * 5, 1]])
    title, _, head, _, cell, _ = capsys.readouterr().out.splitlines()
    assert title == f"Title {ODD}"
    assert f"Head {ODD}" in head
    assert f"Cell {ODD}" * 5 in cell


def test_control_characters_are_written_out(capsys):
    say("a\x1b[31m\rb")
    print_table("a\x07", ["b\tc"], [["d\ne"]])
    out = capsys.readouterr().out
    assert out.startswith("a\\x1b[31m\\rb\n")
    assert all(text in out for text in ("a\\x07", "b\\tc", "d\\ne"))


def test_columns_of_progress_bars_take_text_as_it_is():
    class Task:
        description = ODD

    assert text_column("{task.description}").render(Task()).plain == ODD


def test_a_run_in_a_folder_with_brackets_is_stopped_resumed_scored_and_reported(
    command, recipe_text, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    run = "br[/x]ack"
    (tmp_path / "stopped.py").write_text(STOPPED_ONCE)
    custom = "kind: custom, file: stopped.py, config: StoppedConfig, options: {dim: 4, top: {layers: [8]}}}"
    lines = [f"model: {{{custom}" if line.startswith("model") else line for line in recipe_text.splitlines()]
    (tmp_path / "small.yaml").write_text("\n".join(lines))
    # A process of its own: the signal is for it alone.
    first = commands.megalith("train", "small.yaml", "--out", run)
    assert first.returncode == 143, first.stderr
    assert f"Stopped by SIGTERM; resume with: megalith train '{run}'\n" in first.stdout
    second = command("train", run)
    assert second.code == 0, second.err
    assert f"Resuming {run} from step 3.\n" in second.err
    assert f"Run: {run}    report: megalith report '{run}'\n" in second.out
    assert command("eval", run, "--split", "test").code == 0
    drawn = command("report", run, "--out", "re[/b].html", "--chrome-trace", "tr[/b].json")
    assert drawn.out.startswith("Wrote re[/b].html (")
    assert json.loads((tmp_path / "tr[" / "b].json").read_text())["traceEvents"]


def test_other_commands_write_to_names_with_brackets(command, recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = command("data", "synth", "avazu", "--rows", 300, "--threads", 1, "--out", "da[/b]ta")
    assert made.out.startswith("da[/b]ta: 360 rows")
    text = ["data", "synth", "criteo", "--rows", 300, "--format", "text", "--out", "te[/b]xt"]
    assert command(*text).out.startswith("te[/b]xt: 360 rows")
    stats = command("data", "stats", "da[/b]ta", "--save")
    assert stats.out.startswith("da[/b]ta, train: 300 rows")
    assert "Wrote da[/b]ta/statistics.json\n" in stats.err
    (file,) = (tmp_path / "te[" / "b]xt").glob("*train*")
    prepared = command("data", "prepare", "criteo", file, "--out", "pr[/b]ep", "--min-count", 1)
    assert prepared.out.startswith("pr[/b]ep: 300 rows")
    plan = command("plan", recipe, "--world-size", 2, "--seconds", 0.1, "--out", "pl[/b].json")
    assert "Wrote pl[/b].json; `megalith report 'pl[/b].json'` draws it.\n" in plan.out
    assert command("report", "pl[/b].json").out.startswith("Wrote pl[/b].html (")
    predicted = command("explore", "predict", "gpt3-175b", "--trace", "a[/b]", "--report", "c[/b]")
    assert predicted.out.endswith("Wrote a[/b].\nWrote c[/b].\n")


def test_errors_name_paths_as_they_are(command, tmp_path):
    odd = tmp_path / "no[/b]thing\nhere"
    assert str(odd).replace("\n", "\\n") in command("eval", odd).sentence


def megalith(*arguments, **options):
    return subprocess.Popen([sys.executable, "-m", "megalith", *arguments], text=True, **options)


@pytest.mark.parametrize("arguments", [["doctor"], ["explore", "catalog"], ["explore", "catalog", "--json"]])
def test_a_reader_that_went_away_is_no_error(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    process = megalith(*arguments, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert process.communicate()[1] == ""
    assert process.returncode == 0


def test_output_that_cannot_be_written_is_one_sentence():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        process = megalith("explore", "catalog", "--json", stdout=full, stderr=subprocess.PIPE)
    said = process.communicate()[1]
    assert process.returncode == 2
    assert said == "megalith: Standard output cannot be written because its disk is full; free space there.\n"


def test_ctrl_c_leaves_without_a_traceback(tmp_path):
    pipe = tmp_path / "job.yaml"
    os.mkfifo(pipe)
    process = megalith("explore", "predict", str(pipe), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # Opening returns when the command reads the job, so it is inside by then.
    with pipe.open("w"):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "")
