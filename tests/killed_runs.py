"""Runs a function until it is killed inside a call, then to its end: `killed_runs(...)`.

The function is `MODULE.run(folder, *arguments)`: it begins, or goes on from what it finds in the folder, and
returns what can be written as JSON. One process under kill_at_call.so imports the module; every run is forked
from it, so that none takes seconds to start.
"""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from commands import run
from kill_points import calls_of, environment, kill_arm


def killed_runs(shim, module, folder, points, wrapper=(), places=None):
    """Of every point (call to die at, *arguments): how the run ended, the steps of the checkpoints that it
    left, how a new process ended that went on, and the trace.

    A run whose call is 0 is not killed and ends alone; with a call that never comes, -1, another goes on.
    `wrapper` is a command that runs others, `places` where the runs have their folders.
    """
    folder.mkdir()
    paths = [str(Path(__file__).parent), str(module.parent)]
    variables = {
        **environment(shim, "", folder / "none"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
    }
    given = folder / "points.json"
    given.write_text(json.dumps(points))
    command = [*wrapper, sys.executable, __file__, module.stem, folder, given, places or folder]
    done = run(command, env=variables)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    return [(answer, calls_of(folder / f"{number}.trace")) for number, answer in enumerate(answers)]


def _forked(function, folder, arguments, trace=None, at=0):
    """How a process ended: its exit code, and what the function returned."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if trace is not None:
                kill_arm(folder, trace, at)
            result = json.dumps(function(folder, *arguments)).encode()
            with os.fdopen(write, "wb") as results:
                results.write(result)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as results:
        text = results.read()
    _, status = os.waitpid(child, 0)
    return {"code": os.waitstatus_to_exitcode(status), "result": json.loads(text) if text else None}


def _main(module, folder, points, places):
    function = importlib.import_module(module).run
    answers = []
    for number, (at, *arguments) in enumerate(json.loads(Path(points).read_text())):
        place = Path(places) / str(number)
        place.mkdir()
        answer = {"first": _forked(function, place, arguments, Path(folder) / f"{number}.trace", at)}
        if at:
            steps = [int(path.name.removeprefix("step-")) for path in place.glob("**/checkpoints/step-*")]
            answer |= {"steps": steps, "second": _forked(function, place, arguments)}
        answers.append(answer)
    print(json.dumps(answers))


if __name__ == "__main__":
    _main(*sys.argv[1:])
