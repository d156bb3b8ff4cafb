"""What every command shares: its version, its help, and errors that people and machines can read."""

import json
import subprocess
import sys

import pytest

from megalith import __version__


def test_the_version_is_printed(command):
    assert command("--version") == (0, f"megalith {__version__}\n", "")


@pytest.mark.parametrize("words", [(), ("train",), ("data", "prepare"), ("explore", "search")])
def test_h_is_short_for_help(command, words):
    short, long = command(*words, "-h"), command(*words, "--help")
    assert short == long
    assert short.code == 0
    assert "Usage: " in short.out


def test_shells_are_offered_completion(command):
    assert "--install-completion" in command("--help").out


def test_who_asks_for_json_gets_errors_as_json(command, tmp_path):
    done = command("eval", tmp_path, "--json")
    assert done.code == 2
    assert done.err == f"megalith: {json.loads(done.out)['error']}\n"
    assert "is not a run" in done.err


def test_a_word_that_no_command_knows_is_json_too(command):
    done = command("eval", "--jsn", "--json")
    assert done.code == 2
    assert "No such option" in json.loads(done.out)["error"]
    assert "Usage: " in done.err


def test_a_command_without_its_argument_prints_nothing_on_standard_output(command):
    done = command("eval")
    assert (done.code, done.out) == (2, "")
    assert "Missing argument" in done.err


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
sys.argv = ["megalith", "train", "criteo-dlrm", "--out", sys.argv[1]]
from megalith.cli import main
main()
"""


def test_a_folder_that_holds_a_run_is_refused_before_torch_is_imported(tmp_path):
    (tmp_path / "config.yaml").touch()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"megalith: {tmp_path} holds a run already")
