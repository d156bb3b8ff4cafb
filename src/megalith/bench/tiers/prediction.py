"""What `megalith bench tiers` expects of tiered tables before it times them: hits, reads, rate, its bound."""

from __future__ import annotations

import numpy as np

from megalith.bench.tiers.stream import TierStream
from megalith.cost.row_cache.frequencies import AccessFrequencies, from_shares
from megalith.cost.row_cache.geometry import CacheGeometry
from megalith.cost.row_cache.prediction import predict_cache, trained_before
from megalith.cost.row_cache.step_time import TierPrediction, predict_tier
from megalith.hardware.disk import DiskSpeed

_CLASSES = 2000


def stream_frequencies(stream: TierStream) -> AccessFrequencies:
    """How often the rows of all tables of a stream are accessed."""
    ends = np.unique(np.rint(np.geomspace(1, stream.rows, _CLASSES)))
    power = 1.0 - stream.exponent()
    shares = ((ends + 1.0) ** power - 1.0) / ((stream.rows + 1.0) ** power - 1.0)
    one = from_shares(ends, shares, 1.0)
    return AccessFrequencies(one.ids * stream.features, one.accesses, one.samples)


def predict_rate(
    stream: TierStream,
    cache: CacheGeometry,
    steps: int,
    compute_seconds: float,
    disk: DiskSpeed,
    cores: int,
) -> TierPrediction:
    """The last fifth of `steps` steps, where every row was trained before the first.

    `compute_seconds` is a step with all rows in memory.
    """
    frequencies = stream_frequencies(stream)
    found = predict_cache(frequencies, cache, row_bytes=stream.row_bytes, batch=stream.batch, steps=steps)
    full = trained_before(found, frequencies, cache, stream.row_bytes)
    return predict_tier(full, compute_seconds, disk, cores=cores, late=True)
