"""How quick the Explorer is: one prediction, a whole search for 100,000 GPUs, and the start of the command.

Searches and start-ups run as processes of their own, as a user starts them: their time includes imports
and their memory is theirs alone.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from megalith.bench.runner import result, run_process
from megalith.core.errors import MegalithError
from megalith.explore.job import Job
from megalith.explore.load import load_job, resolve_cluster
from megalith.explore.predict import predict
from megalith.explore.search.bounds.lower_bounds import LowerBounds
from megalith.explore.search.space.search_space import SearchSpace

LARGE = ("405b-3-regions-98k-10ms", "1t-3-regions-98k-30ms", "moe-1t-3-regions-98k-10ms")
LIMITS = {"predict_seconds": 0.05, "search_seconds": 60.0, "search_bytes": 2 * 2**30, "start_seconds": 0.5}
"""What is asked of it."""

_SEED = 7


def bench_explore(
    names: Sequence[str] = LARGE,
    predictions: int = 50,
    repeats: int = 5,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Start-up, predictions of random plans of the large scenarios, and a search of each."""
    say("starting")
    results: dict[str, Any] = {"limits": LIMITS, "start": _start(repeats)}
    say("predicting")
    results["predict"] = {name: _predictions(load_job(name), predictions) for name in names}
    results["search"] = {}
    for name in names:
        say(f"searching {name}")
        results["search"][name] = _search(name)
    settings = {"names": list(names), "predictions": predictions, "repeats": repeats}
    return result("explore", settings, results, None)


def _start(repeats: int) -> dict[str, float]:
    command = [sys.executable, "-m", "megalith", "explore", "--help"]
    run_process(command)
    return {"median_seconds": median(run_process(command).seconds for _ in range(repeats))}


def _predictions(job: Job, count: int) -> dict[str, float]:
    taken = []
    for plan in _random_plans(job):
        start = time.perf_counter()
        try:
            predict(plan)
        except MegalithError:
            continue
        taken.append(time.perf_counter() - start)
        if len(taken) == count:
            break
    return {"median_seconds": median(taken), "slowest_seconds": max(taken), "plans": len(taken)}


def _random_plans(job: Job) -> Iterator[Job]:
    """Plans that fit, drawn evenly from the decisions of the search."""
    space = SearchSpace(job, resolve_cluster(job.cluster, job.hardware))
    bounds, draw = LowerBounds(space), random.Random(_SEED)
    roots = list(space.roots())
    while True:
        node = draw.choice(roots)
        while children := space.branch(node):
            node = draw.choice(children)
        if bounds(node) < float("inf"):
            yield space.to_job(node)


def _search(name: str) -> dict[str, Any]:
    done = run_process([sys.executable, "-m", "megalith", "explore", "search", name, "--json"])
    content = json.loads(done.stdout)
    return {
        "seconds": done.seconds,
        "cpu_seconds": done.cpu_seconds,
        "max_resident_bytes": done.max_resident_bytes,
        **{key: content[key] for key in ("examined", "pruned", "unexamined", "gap", "lower_bound_seconds")},
        "step_seconds": content["best"]["prediction"]["step_seconds"],
    }
