"""A run is killed inside rankings, growth, compaction and eviction, and goes on to the same bits.

Native calls are made one instruction at a time (kill_at_instruction.c), so that a kill falls in their middle.
The trace proves where: a call that was entered and not left, the instruction in the core, rows given so far.
"""

import json
import signal
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from killed_changes import calls_of, compile_stepper, train_traced

from forked import Forked, Raised
from kill_points import spread
from megalith.data.prepare import PrepareOptions, prepare

STORES = {
    **{name: {"kind": "adaptive", "chunk": 2} for name in ("a", "b")},
    "u": {"kind": "dynamic", "bound": 64, "eviction": {"kind": "score", "half_life": 9}},
    "v": {"kind": "dynamic", "bound": 64, "expiry": {"batches": 2, "interval": 9}},
}
SETTINGS = (
    "embeddings.stores=" + json.dumps(STORES),
    "adaptive={ratio: 5, interval: 4, warm_up: 4, end: 0.4, gamma: 0.95, exempt_rows: 0}",
    "train.pipeline=0",
)
LONG = {"ranking": 6, "growth": 4, "compaction": 3, "eviction": 6, "expiry": 3}
SHORT = {"ranking": 1, "growth": 1, "compaction": 1, "eviction": 1, "expiry": 1}


@pytest.fixture(scope="module")
def stepper(tmp_path_factory):
    library = compile_stepper(tmp_path_factory.mktemp("stepper"))
    if library is None:
        pytest.skip("stepping wants a C compiler and Linux on x86-64")
    return library


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Two features of a vocabulary, two of raw ids that come and go."""
    folder, draw, rows = tmp_path_factory.mktemp("changes"), np.random.default_rng(5), 2560
    drawn = {
        name: np.where(draw.random(rows) < 0.5, draw.zipf(1.3, rows) % 100, draw.integers(0, 9000, rows))
        for name in ("a", "b")
    }
    came = {name: draw.zipf(1.2, rows) % 900 + np.arange(rows) // 200 * 100 for name in ("u", "v")}
    labels = (drawn["a"] + came["u"]) % 3 == 0
    log = pa.table(
        {
            "label": pa.array(labels.astype(np.float32)),
            "x": pa.array(draw.normal(size=rows).astype(np.float32)),
            **drawn,
            **came,
        }
    )
    pq.write_table(log, folder / "log.parquet")
    prepare(
        PrepareOptions(
            source="parquet",
            files=(folder / "log.parquet",),
            out=folder / "data",
            raw=("u", "v"),
            min_count=1,
            valid_fraction=0.1,
            threads=1,
        )
    )
    (folder / "recipe.yaml").write_text(
        f"""
name: changes
data: {{path: {folder / "data"}, batch_size: 64, eval_batch_size: 500, threads: 1, prefetch: 1, shuffle: no}}
model: {{kind: dlrm, dim: 8, bottom: {{layers: [8]}}, top: {{layers: [8]}}}}
train: {{epochs: 1, log_every: 3, eval_every: 16, checkpoint_every: 7, tensorboard: no}}
"""
    )
    return folder / "recipe.yaml"


def run(stepper, trace, steps, recipe, folder):
    """How a process ended that trained, and what it returned."""
    with Forked(train_traced, stepper, trace, steps, recipe, folder, SETTINGS) as process:
        result = process.result()
        code = process.wait()
    assert code or not isinstance(result, Raised), result.text
    return code, result


@pytest.fixture(scope="module")
def undisturbed(stepper, recipe, tmp_path_factory):
    """The result of a run that nothing stopped, and its calls."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code, result = run(stepper, folder / "trace", [], recipe, folder / "run")
    assert code == 0
    calls, killed = calls_of(folder / "trace")
    assert killed is None
    return result, calls


def chosen(calls, wanted):
    """Calls of every kind, spread over the run, of as many functions as there are."""
    points = []
    for kind, count in wanted.items():
        by_function = {}
        for call in calls:
            if call.kind == kind and _changes(call):
                by_function.setdefault(call.function, []).append(call)
        each = -(-count // len(by_function))
        points += [call for same in by_function.values() for call in spread(same, each)][:count]
    return points


def _changes(call):
    """Whether rows begin in it; of eviction, whether every id that gets a row takes that of another."""
    if call.kind == "eviction":
        return call.changed == call.begun >= 4
    return call.changed >= (4 if call.kind == "expiry" else 1)


def lengths_of(stepper, points, recipe, folder, expected):
    """Instructions of each of these calls, the first 30,000, from a run that makes them step by step."""
    steps = [(call.function, call.number) for call in points if call.kind != "eviction"]
    code, result = run(stepper, folder / "lengths", steps, recipe, folder / "stepped")
    assert (code, result) == (0, expected)
    calls, _ = calls_of(folder / "lengths")
    return {(call.function, call.number): call.instructions for call in calls}


def killed_and_resumed(stepper, recipe, folder, undisturbed, wanted):
    """Kills a run in each of the chosen calls, proves where, and lets it go on; how often in which kind."""
    expected, calls = undisturbed
    points = chosen(calls, wanted)
    lengths = lengths_of(stepper, points, recipe, folder, expected)
    killed_in = Counter()
    for number, call in enumerate(points):
        length = lengths[call.function, call.number]
        # Evictions die when some of the ids that are to get a row have one, all others a part of the way.
        evicts = call.kind == "eviction"
        at = (0, 1 + call.begun // 3) if evicts else (length * (1 + number % 3) // 4, 0)
        trace, place = folder / f"{number}.trace", folder / str(number)
        code, _ = run(stepper, trace, [(call.function, call.number, *at)], recipe, place)
        assert code == -signal.SIGKILL, call
        seen, (instructions, _, lacking, lacked) = calls_of(trace)
        last = seen[-1]
        assert (last.function, last.number, last.is_over) == (call.function, call.number, False)
        assert all(other.is_over for other in seen[:-1])
        if evicts:
            # As many ids have lost their row to others as these got some, and the rest is to come.
            assert 0 < lacked - lacking < call.begun
        else:
            assert 0 < instructions < length, call
        code, result = run(stepper, None, [], recipe, place)
        assert (code, result) == (0, expected), (call, instructions, length)
        killed_in[call.kind] += 1
    return killed_in


def test_a_run_killed_inside_changes_of_its_tables_ends_in_the_same_bits(
    stepper, recipe, tmp_path, undisturbed
):
    assert killed_and_resumed(stepper, recipe, tmp_path, undisturbed, SHORT) == SHORT


@pytest.mark.slow
def test_twenty_two_kills_inside_changes_end_in_the_same_bits(stepper, recipe, tmp_path, undisturbed):
    assert sum(LONG.values()) >= 20
    assert killed_and_resumed(stepper, recipe, tmp_path, undisturbed, LONG) == LONG


def test_tables_of_the_run_change_all_the_time(undisturbed):
    """What is killed in happens: chunks are ranked and change places, ids leave for others and expire."""
    _, calls = undisturbed
    assert all(call.is_over for call in calls)
    kinds = Counter(call.kind for call in calls)
    assert min(kinds[kind] for kind in LONG) >= 4
    assert sum(call.changed for call in calls if call.kind == "eviction") > 300
    assert sum(call.changed for call in calls if call.kind == "expiry") > 20
