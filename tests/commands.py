"""Commands as a user runs them: `megalith(...)` forked from what is imported already, `run(...)` anew.

Both give what was printed and the exit code; one that hangs fails, and leaves no process behind.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

from forked import PATIENCE_SECONDS, WIDE, Forked


def megalith(*arguments, first=None):
    """`megalith ...` in a process of its own; `first` is called there before, for tests that disturb it."""
    words = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory() as folder:
        name = f"megalith {' '.join(words)}"
        with Forked(_command, words, first, name=name, output=Path(folder)) as process:
            code = process.wait()
        return subprocess.CompletedProcess(words, code, *process.printed())


def megalith_from_nothing(*arguments, **options):
    """`python -m megalith ...`: a new interpreter, for what its start may change."""
    return run([sys.executable, "-m", "megalith", *arguments], **options)


def run(command, **options):
    """Any command to its end."""
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@contextmanager
def started(command, **options):
    """A running command; what it has started ends with it when the block is left."""
    words = [str(word) for word in command]
    environment = {**options.pop("env", os.environ), "COLUMNS": WIDE}
    with subprocess.Popen(words, text=True, start_new_session=True, env=environment, **options) as process:
        try:
            yield process
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{' '.join(words)} hangs: after {PATIENCE_SECONDS} s it runs") from None
        finally:
            _end(process)


def sentence_of(done):
    """The one sentence of a command that was refused."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("megalith: ")
    return lines[0]


def unwrapped(text):
    """The words of a text, wherever its lines were broken to fit a terminal and however cells were padded."""
    return " ".join(re.sub(r"[│┃┏┓┗┛├┤┌┐└┘━─╇╈┳┻╋┼┡┢┩┪]", " ", text).split())


def _command(words, first):
    if first is not None:
        first()
    sys.argv = ["megalith", *words]
    from megalith.cli import main

    main()


def _end(process):
    """Kills what is left of a command and of all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
