"""The shapes that `megalith bench embedding` measures, and random ids for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from megalith.bench.peers.lookup import LookupIds, LookupShape

Shapes = Literal["headline", "sweep", "scaling"]
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


def shapes_of(kind: Shapes, base: LookupShape, peers: Sequence[str]) -> Iterator[tuple[str, LookupShape]]:
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


def _fitting(shape: LookupShape, peers: Sequence[str]) -> LookupShape:
    """The shape with as many of its rows as let all candidates' tables fit in 6 GiB together."""
    # torch keeps as much state as it has weights.
    copies = sum(2 if peer == "torch" else 1 for peer in peers) + 1
    a_row = shape.tables * shape.row_bytes * copies
    return replace(shape, rows=min(shape.rows, max(1, _TABLES_BYTES // a_row)))


def draw(shape: LookupShape, seed: int) -> LookupIds:
    """A batch of ids. Skewed ones are scattered, so that hot rows are not adjacent."""
    generator = np.random.default_rng(seed)
    if shape.zipf is None:
        values = generator.integers(0, shape.rows, shape.num_values)
    else:
        values = generator.zipf(shape.zipf, shape.num_values) % shape.rows * _SCATTER % shape.rows
    offsets = torch.arange(0, shape.num_values + 1, shape.lookups)
    gradient = torch.randn(
        shape.batch, shape.tables * shape.dim, generator=torch.Generator().manual_seed(seed)
    )
    return LookupIds(torch.from_numpy(values), offsets, gradient.mul_(1e-3))
