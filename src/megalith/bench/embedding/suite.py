"""`megalith bench embedding`: looking rows up and updating them, beside FBGEMM and plain torch.

All candidates hold tables of the same shape and take turns on the same batches in one process; several
batches follow each other, so that no candidate finds rows in a cache that its last step left there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from megalith.bench.embedding.roofline import Bandwidth, distinct_rows, least_bytes, measure_bandwidth, shares
from megalith.bench.embedding.shapes import NUM_BATCHES, Shapes, draw, shapes_of
from megalith.bench.memory import check_memory
from megalith.bench.peers.candidates import build, bytes_needed, unsupported
from megalith.bench.peers.lookup import OURS, LookupCandidate, LookupIds, LookupShape, timed_step
from megalith.bench.runner import result
from megalith.bench.turns import take_turns
from megalith.core.units import format_bytes

Say = Callable[[str], None]


def bench_embedding(
    kind: Shapes,
    base: LookupShape,
    peers: Sequence[str],
    repeats: int = 5,
    threads: int | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Measures every shape of one kind; `base` gives tables, rows, batch and type."""
    torch.set_num_threads(threads or torch.get_num_threads())
    roofs: dict[int, Bandwidth] = {}
    measured = []
    shapes = list(shapes_of(kind, base, peers))
    # A shape that is too large should not cost the results of those before it.
    for _, shape in shapes:
        _check_shape(shape)
    for axis, shape in shapes:
        say(f"{axis + ': ' if axis else ''}{shape}")
        batches = [draw(shape, seed) for seed in range(NUM_BATCHES)]
        content = measure(shape, peers, batches, repeats)
        if kind == "headline":
            if shape.row_bytes not in roofs:
                roofs[shape.row_bytes] = measure_bandwidth(shape.row_bytes, shape.rows, shape.tables)
            roof = roofs[shape.row_bytes]
            content["roofline"] = _roofline(shape, batches, content["candidates"][OURS], roof)
        measured.append({"axis": axis, "shape": asdict(shape), **content})
    settings = {
        "shapes": kind,
        **{name: getattr(base, name) for name in ("tables", "rows", "batch", "dtype")},
        "peers": list(peers),
        "repeats": repeats,
        "batches": NUM_BATCHES,
        "threads": torch.get_num_threads(),
    }
    return result("embedding", settings, {"measured": measured}, None)


def measure(
    shape: LookupShape, peers: Sequence[str], batches: Sequence[LookupIds], repeats: int
) -> dict[str, Any]:
    """Passes of ours and of every peer; a peer that cannot run says why, and none costs another its turn.

    Peers share the rounds as far as memory holds them all; the rest follow, each beside ours again.
    """
    results: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    for group in _groups(shape, peers, results):
        candidates = build_alike(shape, [OURS, *group])
        steps = {name: partial(timed_step, candidate) for name, candidate in candidates.items()}
        timings = take_turns(steps, batches, repeats)
        steps.clear()
        candidates.clear()
        gc.collect()
        for name, timing in timings.items():
            if name != OURS:
                ratios[name] = {step: timing[step].median / timings[OURS][step].median for step in timing}
            results.setdefault(name, {step: rounds.to_dict() for step, rounds in timing.items()})
    return {"candidates": {name: results[name] for name in (OURS, *peers)}, "speed_ratio": ratios}


def build_alike(shape: LookupShape, names: Sequence[str]) -> dict[str, LookupCandidate]:
    """Candidates with the same start values. Copying them also brings each table into memory: pages that were
    never written would all be one page of zeros, which the cache holds."""
    candidates: dict[str, LookupCandidate] = {}
    for name in names:
        candidates[name] = candidate = build(name, shape)
        if name != OURS:
            with torch.no_grad():
                for own, ours in zip(candidate.weights(), candidates[OURS].weights(), strict=True):
                    own.copy_(ours)
    return candidates


def _groups(shape: LookupShape, peers: Sequence[str], results: dict[str, Any]) -> list[list[str]]:
    """Peers that fit in memory together, beside ours; those that cannot run are noted in `results`."""
    left = _check_shape(shape)
    groups: list[list[str]] = [[]]
    used = 0
    for peer in peers:
        need = bytes_needed(peer, shape)
        why = unsupported(peer, shape)
        if why is None and left is not None and need > left:
            why = f"needs {format_bytes(need)} more memory"
        if why is not None:
            results[peer] = {"skipped": why}
            continue
        if left is not None and used + need > left:
            groups.append([])
            used = 0
        groups[-1].append(peer)
        used += need
    return groups


def _roofline(
    shape: LookupShape, batches: Sequence[LookupIds], ours: dict[str, Any], roof: Bandwidth
) -> dict[str, Any]:
    rows = sum(distinct_rows(shape, ids) for ids in batches) // len(batches)
    moved = least_bytes(shape, rows)
    seconds = {step: ours[step]["median_seconds"] for step in moved}
    return {
        "distinct_rows": rows,
        "bytes": moved,
        "roof": roof.to_dict(),
        "share": shares(moved, seconds, roof),
    }


def _check_shape(shape: LookupShape) -> int | None:
    batches = NUM_BATCHES * (8 * shape.num_values + shape.output_bytes)
    return check_memory(f"The shape ({shape})", batches + bytes_needed(OURS, shape))
