"""`megalith bench embedding`: looking rows up and updating them, beside FBGEMM and plain torch.

All candidates hold tables of the same shape and take turns on the same batches in one process; several
batches follow each other, so that nobody finds its rows in the cache because the last step left them there.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from megalith.bench.peers import OURS, Candidate, Ids, Shape, build, bytes_needed, timed_step, unsupported
from megalith.bench.roofline import Bandwidth, distinct_rows, least_bytes, measure_bandwidth, shares
from megalith.bench.runner import result
from megalith.bench.turns import take_turns
from megalith.core.errors import ConfigError
from megalith.core.units import format_bytes

Shapes = Literal["headline", "sweep", "scaling"]
Say = Callable[[str], None]

HEADLINE = ((64, 1), (64, 10), (128, 20))
ZIPF = 1.2
NUM_BATCHES = 3
SWEEP_DIMS = (1, 2, 4, 8, 10, 16, 32, 48, 64, 100, 128, 256, 512)
SWEEP_LOOKUPS = (1, 2, 5, 10, 20, 50, 100, 200)
SWEEP_BATCHES = (64, 256, 1024, 2048, 4096, 16384, 65536)
SCALING_ROWS = (1_000, 10_000, 100_000, 300_000, 1_000_000, 2_000_000)
_SCALING_TABLES = 4
_TABLES_BYTES = 6 << 30
_SCATTER = 2_654_435_761


def bench_embedding(
    kind: Shapes,
    base: Shape,
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
        found = measure(shape, peers, batches, repeats)
        if kind == "headline":
            if shape.row_bytes not in roofs:
                roofs[shape.row_bytes] = measure_bandwidth(shape.row_bytes, shape.rows, shape.tables)
            found["roofline"] = _roofline(shape, batches, found["candidates"][OURS], roofs[shape.row_bytes])
        measured.append({"axis": axis, "shape": asdict(shape), **found})
    settings = {
        "shapes": kind,
        **{name: getattr(base, name) for name in ("tables", "rows", "batch", "dtype")},
        "peers": list(peers),
        "repeats": repeats,
        "batches": NUM_BATCHES,
        "threads": torch.get_num_threads(),
    }
    return result("embedding", settings, {"measured": measured}, None)


def shapes_of(kind: Shapes, base: Shape, peers: Sequence[str]) -> Iterator[tuple[str, Shape]]:
    """What is measured, each shape with the axis it lies on."""
    if kind == "headline":
        for dim, lookups in HEADLINE:
            for zipf in (None, ZIPF):
                yield "", replace(base, dim=dim, lookups=lookups, zipf=zipf)
        return
    centre = replace(base, dim=64, lookups=10)
    if kind == "scaling":
        for lookups in SWEEP_LOOKUPS:
            yield "lookups", _fitting(replace(centre, lookups=lookups), peers)
        few = replace(centre, tables=min(base.tables, _SCALING_TABLES))
        for rows in SCALING_ROWS:
            shape = replace(few, rows=rows)
            if _fitting(shape, peers) == shape:
                yield "rows", shape
        return
    for zipf in (None, ZIPF):
        spread = replace(centre, zipf=zipf)
        for dim in SWEEP_DIMS:
            yield "dim", _fitting(replace(spread, dim=dim), peers)
        for lookups in SWEEP_LOOKUPS:
            yield "lookups", _fitting(replace(spread, lookups=lookups), peers)
        for batch in SWEEP_BATCHES:
            yield "batch", _fitting(replace(spread, batch=batch), peers)
        for dim, lookups in HEADLINE:
            yield "float16", _fitting(replace(spread, dim=dim, lookups=lookups, dtype="float16"), peers)


def _fitting(shape: Shape, peers: Sequence[str]) -> Shape:
    """The shape with as many of its rows as let all candidates' tables fit in 6 GiB together."""
    # torch keeps as much state as it has weights.
    copies = sum(2 if peer == "torch" else 1 for peer in peers) + 1
    a_row = shape.tables * shape.row_bytes * copies
    return replace(shape, rows=min(shape.rows, max(1, _TABLES_BYTES // a_row)))


def draw(shape: Shape, seed: int) -> Ids:
    """A batch of ids. Skewed ones are scattered, so that hot rows are not neighbours."""
    generator = np.random.default_rng(seed)
    if shape.zipf is None:
        values = generator.integers(0, shape.rows, shape.num_values)
    else:
        values = generator.zipf(shape.zipf, shape.num_values) % shape.rows * _SCATTER % shape.rows
    offsets = torch.arange(0, shape.num_values + 1, shape.lookups)
    gradient = torch.randn(
        shape.batch, shape.tables * shape.dim, generator=torch.Generator().manual_seed(seed)
    )
    return Ids(torch.from_numpy(values), offsets, gradient.mul_(1e-3))


def measure(shape: Shape, peers: Sequence[str], batches: Sequence[Ids], repeats: int) -> dict[str, Any]:
    """Passes of ours and of every peer; a peer that cannot run says why, and none costs another its turn.

    Peers share the rounds as far as memory holds them all; the rest follow, each beside ours again.
    """
    found: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    for group in _groups(shape, peers, found):
        candidates = build_alike(shape, [OURS, *group])
        steps = {name: partial(timed_step, candidate) for name, candidate in candidates.items()}
        timings = take_turns(steps, batches, repeats)
        steps.clear()
        candidates.clear()
        gc.collect()
        for name, timing in timings.items():
            if name != OURS:
                ratios[name] = {step: timing[step].median / timings[OURS][step].median for step in timing}
            found.setdefault(name, {step: one.to_dict() for step, one in timing.items()})
    return {"candidates": {name: found[name] for name in (OURS, *peers)}, "speed_ratio": ratios}


def build_alike(shape: Shape, names: Sequence[str]) -> dict[str, Candidate]:
    """Candidates with the same start values. Copying them also brings each table into memory: pages that were
    never written would all be one page of zeros, which the cache holds."""
    candidates: dict[str, Candidate] = {}
    for name in names:
        candidates[name] = candidate = build(name, shape)
        if name != OURS:
            with torch.no_grad():
                for own, ours in zip(candidate.weights(), candidates[OURS].weights(), strict=True):
                    own.copy_(ours)
    return candidates


def _groups(shape: Shape, peers: Sequence[str], found: dict[str, Any]) -> list[list[str]]:
    """Peers that fit in memory together, beside ours; those that cannot run are noted in `found`."""
    left = _check_shape(shape)
    groups: list[list[str]] = [[]]
    used = 0
    for peer in peers:
        need = bytes_needed(peer, shape)
        why = unsupported(peer, shape)
        if why is None and left is not None and need > left:
            why = f"needs {format_bytes(need)} more memory"
        if why is not None:
            found[peer] = {"skipped": why}
            continue
        if left is not None and used + need > left:
            groups.append([])
            used = 0
        groups[-1].append(peer)
        used += need
    return groups


def _roofline(shape: Shape, batches: Sequence[Ids], ours: dict[str, Any], roof: Bandwidth) -> dict[str, Any]:
    rows = sum(distinct_rows(shape, ids) for ids in batches) // len(batches)
    moved = least_bytes(shape, rows)
    seconds = {step: ours[step]["median_seconds"] for step in moved}
    return {
        "distinct_rows": rows,
        "bytes": moved,
        "roof": roof.to_dict(),
        "share": shares(moved, seconds, roof),
    }


def _check_shape(shape: Shape) -> int | None:
    batches = NUM_BATCHES * (8 * shape.num_values + shape.output_bytes)
    return check_memory(f"The shape ({shape})", batches + bytes_needed(OURS, shape))


def check_memory(what: str, need: int) -> int | None:
    """Bytes left beside `need`, with a reserve; None where the system does not say how much is free."""
    available = _available_bytes()
    if available is None:
        return None
    left = int(0.9 * available) - need
    if left < 0:
        raise ConfigError(
            f"{what} needs {format_bytes(need)} of memory and {format_bytes(available)} is free; pass fewer "
            "--rows or --tables."
        )
    return left


def _available_bytes() -> int | None:
    """Memory that can be taken without pushing anybody out; None where the system does not say."""
    try:
        information = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    match = re.search(r"^MemAvailable:\s*(\d+) kB", information, re.MULTILINE)
    return int(match[1]) * 1024 if match else None
