"""A run with adaptive and dynamic tables whose native calls are traced, one of them to be killed in.

    enter TAB function TAB number                      written before the call
    leave TAB function TAB number TAB instructions TAB what it changed TAB ids that got a row
    killed TAB ...                                     see kill_at_instruction.c

A call with an `enter` and no `leave` was not over when the process died.
"""

import ctypes
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import torch
from small_recipes import outcome

from megalith.ops import native
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer

SOURCE = Path(__file__).parents[2] / "kill_at_instruction.c"
TRACED = (
    *("mg_ranking_sums", "mg_ranking_score", "mg_ranking_histogram", "mg_ranking_changes"),
    *("mg_ranking_apply", "mg_chunks_resolve", "mg_chunks_compact", "mg_ids_resolve", "mg_ids_expire"),
)
KINDS = {
    "mg_ranking_apply": "growth",
    "mg_chunks_resolve": "growth",
    "mg_chunks_compact": "compaction",
    "mg_ids_resolve": "eviction",
    "mg_ids_expire": "expiry",
}
_ROWS, _VALUES, _TRAINS = 10, 5, 9
"""Of the arguments of mg_ids_resolve: the rows that it writes, how many, whether it trains."""
_BEGUN = 7
"""Of those of mg_chunks_resolve: the chunks that new rows begin with, and the bytes that these may take."""


class Stepping(NamedTuple):
    """Which call is made one instruction at a time."""

    function: str
    number: int
    at: int = 0
    """The instruction to die at, 0 for none."""
    given: int = 0
    """mg_ids_resolve: the number of values that have got a row in the call when it dies, 0 for none."""


class TracedCall(NamedTuple):
    """A call of the trace."""

    function: str
    number: int
    is_over: bool
    instructions: int = 0
    changed: int = 0
    """Ids that lost their row, bytes of rows that began; 1 of other functions."""
    begun: int = 0
    """Ids that got a row."""

    @property
    def kind(self):
        """What it does to the tables."""
        return KINDS.get(self.function, "ranking")


def compile_stepper(folder):
    """The library; None where there is no compiler, or another processor."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or os.uname().machine != "x86_64" or os.uname().sysname != "Linux":
        return None
    library = folder / "kill_at_instruction.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
    return library


def calls_of(trace):
    """The calls of a trace, and the line of a kill."""
    calls, killed = {}, None
    for line in trace.read_text().splitlines():
        kind, *fields = line.split("\t")
        if kind == "killed":
            killed = [int(field, 16) if at == 1 else int(field) for at, field in enumerate(fields)]
        else:
            function, number, *rest = fields
            calls[function, int(number)] = TracedCall(
                function, int(number), kind == "leave", *(int(each) for each in rest)
            )
    return list(calls.values()), killed


def train_traced(library, trace, steps, recipe, folder, overrides):
    """Trains from the last checkpoint, or the start, to the end; a digest of all that came of it."""
    torch.set_num_threads(1)
    if trace is not None:
        _trace(library, trace, [Stepping(*step) for step in steps])
    trainer = Trainer(load_recipe(str(recipe), overrides), RunFolder(Path(folder)))
    if trainer.run.config.exists():
        trainer.resume()
    trainer.train()
    return _digest(trainer)


def _digest(trainer):
    """Losses and scores, and of each table its ids with their columns and every byte of their rows."""
    tables = {}
    for name, state in trainer.learner.embeddings.table_states().items():
        rows = []
        for block in state.blocks(1 << 20):
            parts = {part: block.parts[part].contiguous() for part in sorted(block.parts)}
            for at, id_ in enumerate(torch.as_tensor(block.ids).tolist()):
                content = b"".join(
                    part[at].reshape(-1).view(torch.uint8).numpy().tobytes() for part in parts.values()
                )
                rows.append((id_, *block.columns, content))
        rows.sort()
        ids = [(id_, right) for id_, _, right, _ in rows]
        tables[name] = {
            "ids and live columns": hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
            "rows": hashlib.sha256(b"".join(content for *_, content in rows)).hexdigest(),
            "count": len(rows),
        }
    policy = json.dumps(trainer.learner.embeddings.policy_state(), default=str)
    return json.loads(json.dumps({"outcome": outcome(trainer.run), "tables": tables, "policy": policy}))


def _trace(library, trace, steps):
    core, stepper = native.library(), ctypes.CDLL(str(library))
    stepper.call_stepped.restype = ctypes.c_long
    lines = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    bounds = _bounds(core._name)
    for name in TRACED:
        setattr(
            core, name, _Traced(core, name, stepper, lines, bounds, [s for s in steps if s.function == name])
        )


def _bounds(path):
    """Where the instructions of the core lie in memory."""
    parts = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ((edges, *_),) = [part for part in parts if part[-1] == os.path.realpath(path) and "x" in part[1]]
    return [int(edge, 16) for edge in edges.split("-")]


def _number(argument):
    """An argument of a native function as the 64 bits that are passed."""
    if argument is None:
        return 0
    return ctypes.addressof(argument) if isinstance(argument, ctypes.Array) else int(argument)


class _Traced:
    """A function of the core that writes down when it is called and when it is over."""

    def __init__(self, core, name, stepper, lines, bounds, steps):
        self._function, self._stepper, self._lines, self._bounds = getattr(core, name), stepper, lines, bounds
        self._name, self._steps, self._calls = name, {step.number: step for step in steps}, 0

    def __call__(self, *given):
        if self._name == "mg_ids_resolve" and not given[_TRAINS]:
            # It only looks ids up.
            self._function(*given)
            return
        self._calls += 1
        number, instructions = self._calls, 0
        room = given[_BEGUN][1] if self._name == "mg_chunks_resolve" else 0
        self._note("enter", number)
        if number in self._steps:
            instructions = self._stepped(given, self._steps[number])
        else:
            self._function(*given)
        changed, begun = 1, 0
        if self._name in ("mg_ids_resolve", "mg_ids_expire"):
            begun, changed, _ = (ctypes.c_int64 * 3).from_address(given[-1])
        elif self._name == "mg_chunks_resolve":
            changed = room - given[_BEGUN][1] if given[_BEGUN][0] else 0
        self._note("leave", number, instructions, changed, begun)

    def _stepped(self, given, step):
        numbers = [_number(each) for each in given]
        watches = step.given > 0
        result = ctypes.c_long()
        count = self._stepper.call_stepped(
            ctypes.cast(self._function, ctypes.c_void_p),
            (ctypes.c_long * 12)(*numbers),
            *(ctypes.c_size_t(edge) for edge in self._bounds),
            ctypes.c_long(step.at),
            ctypes.c_void_p(numbers[_ROWS] if watches else 0),
            ctypes.c_long(numbers[_VALUES] if watches else 0),
            ctypes.c_long(step.given),
            self._lines,
            ctypes.byref(result),
        )
        assert ctypes.c_int32(result.value).value == 0
        return count

    def _note(self, kind, *fields):
        os.write(self._lines, "\t".join([kind, self._name, *map(str, fields)]).encode() + b"\n")
