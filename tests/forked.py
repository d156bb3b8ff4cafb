"""Real processes that need not import anything: a server that has imported torch and Megalith forks each.

A process takes a tenth of a second to start, not three, and begins as a fresh one does: without a process
group, random numbers drawn or native state. `run_forked(function, ...)` gives its result; `Forked` is for
tests that send signals. Ranks (distributed/processes.py) and commands (commands.py) are made of it.
"""

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
import traceback
from multiprocessing import forkserver
from pathlib import Path

PATIENCE_SECONDS = 900
"""Only a process that hangs takes as long, on however busy a machine; what waits for it then fails."""

WIDE = "1000"
"""Columns of the terminal that processes think they have, more than any path: where lines break is for the
tests of the printing itself."""

# Not megalith.cli: it looks at the environment when it is imported.
_PRELOADED = [
    "hypothesis",
    "megalith.checkpoint.store",
    "megalith.data.synth.generate",
    "megalith.sharding.planner.planner",
    "megalith.train.session",
    "megalith.train.trainer",
    "plotly.graph_objects",
    "pyarrow.parquet",
    "pytest",
    "typer",
]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(_PRELOADED)
_DIE_WITH_PARENT = 1


class Raised:
    """What came instead of a result."""

    def __init__(self, text):
        self.text = text


class Forked:
    """A process that runs `function(*arguments)` in this folder and environment, until the block is left."""

    def __init__(self, function, *arguments, name="the process", output=None):
        """`output` is a folder for its stdout and stderr; without one they go where those of the tests go."""
        self.name, self._output = name, output
        self.results, theirs = _CONTEXT.Pipe(duplex=False)
        # Plain bytes: tensors would travel as shared memory, one descriptor each.
        work = pickle.dumps((function, arguments))
        surroundings = Path.cwd(), {**os.environ, "COLUMNS": WIDE}, output
        self._process = _CONTEXT.Process(target=_run, args=(theirs, work, surroundings, list(sys.path)))
        self._process.start()
        theirs.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Asked first: the number of a process that has ended may be another's by now.
        if self._process.exitcode is None:
            self._process.kill()
        self._process.join()
        self.results.close()

    def send_signal(self, number):
        os.kill(self._process.pid, number)

    def wait(self):
        """Its exit code once it has ended: negative by a signal."""
        self._process.join(PATIENCE_SECONDS)
        if self._process.exitcode is None:
            raise AssertionError(f"{self.name} hangs: after {PATIENCE_SECONDS} s it has not ended")
        return self._process.exitcode

    def result(self, patience_seconds=PATIENCE_SECONDS):
        """What the function returned, or a `Raised`."""
        if not self.results.poll(patience_seconds):
            return Raised(f"{self.name} hangs: after {PATIENCE_SECONDS} s it has no result")
        try:
            return pickle.loads(self.results.recv_bytes())
        except EOFError:
            return Raised(f"{self.name} ended without a result, with exit code {self.wait()}")

    def printed(self):
        """Its stdout and stderr, once it has ended."""
        return tuple((self._output / name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))


def run_forked(function, *arguments):
    """The result of a function in a process of its own."""
    with Forked(function, *arguments) as process:
        result = process.result()
    assert not isinstance(result, Raised), result.text
    return result


def results_of(processes):
    """The results of all, in order, as they come; it is a hang when none comes for long."""
    pending = {process.results: number for number, process in enumerate(processes)}
    results = [None] * len(pending)
    while pending:
        ready = multiprocessing.connection.wait(list(pending), PATIENCE_SECONDS)
        for pipe in ready or list(pending):
            number = pending.pop(pipe)
            results[number] = processes[number].result(0 if not ready else PATIENCE_SECONDS)
    return results


def signalled_at_call(number, wanted, thread="MainThread", function=None):
    """Sends a signal to this process when `thread` has called so many functions, or `function` so often."""
    calls = 0

    def count(frame, event, _):
        nonlocal calls
        if event == "call" and threading.current_thread().name == thread:
            is_one = function is None or frame.f_code is function.__code__
            calls += is_one
            if is_one and calls == wanted:
                os.kill(os.getpid(), number)

    threading.setprofile(count)
    sys.setprofile(count)


def _run(pipe, work, surroundings, path):
    # Nothing is left of tests that were killed: the server ends when nobody is left to ask it for more,
    # of whom this process need not be one, and this ends with the server.
    os.close(forkserver._forkserver._forkserver_alive_fd)
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    folder, environment, output = surroundings
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    if output is not None:
        for number, name in ((1, "stdout"), (2, "stderr")):
            with (output / name).open("wb") as file:
                os.dup2(file.fileno(), number)
    import torch

    torch.set_num_threads(1)
    try:
        function, arguments = pickle.loads(work)
        result = function(*arguments)
    except SystemExit:
        raise
    except BaseException:
        if output is not None:
            raise
        result = Raised(traceback.format_exc())
    pipe.send_bytes(pickle.dumps(result))
