"""Effects of rare ids (`--tail`): every rare id of a large field moves the logit, however seldom it is seen.

By default an id below 0.3% of the rows says nothing, so any method that shrinks tables looks good. Here each
id outside the 1,024 most frequent ones of a large field has an effect of its own: a normal number whose
deviation is TAIL_DEVIATION whatever the id's frequency. The effect is a function of the seed, the field and
the id, so no table of all ids is kept. Rows, ids and numbers are those of the default stream; clicks differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from megalith.data.synth.calibration import CategoricalShape
from megalith.data.synth.fields import SynthField
from megalith.data.synth.truth import Floats

TAIL_CARDINALITY = 1_000_000
"""A field needs this many ids in the real data for its rare ids to have effects."""
TAIL_DEVIATION = 0.75
"""Deviation of the effect of one rare id on the logit."""
_QUANTILES = 1 << 16


def has_tail(shape: CategoricalShape) -> bool:
    """Whether the rare ids of a field have effects under `--tail`."""
    return shape.cardinality >= TAIL_CARDINALITY


@dataclass(frozen=True, slots=True)
class TailEffects:
    """The effects of the rare ids of one field."""

    salt: int
    """Makes the effects of this field and seed differ from those of others."""
    rare_key: int
    """The key that stands for all rare ids."""

    def of_ids(self, ids: NDArray[np.int32]) -> Floats:
        """The effect that each id has if it is rare."""
        return _normal_quantiles()[_mix(ids.astype(np.uint32) ^ np.uint32(self.salt)) >> np.uint32(16)]

    def of_rows(self, ids: NDArray[np.int32], keys: NDArray[np.int32]) -> Floats:
        """The effect of a column's value in each row; 0 for frequent ids and missing values."""
        return np.where(keys == self.rare_key, self.of_ids(ids), np.float32(0.0))


def plant_tail(fields: list[SynthField], generator: np.random.Generator) -> dict[int, TailEffects]:
    """Effects for the rare ids of all large fields, by the position of the field."""
    salts = generator.integers(0, 1 << 32, len(fields), dtype=np.uint32)
    return {
        position: TailEffects(int(salts[position]), field.rare)
        for position, field in enumerate(fields)
        if has_tail(field.shape)
    }


@cache
def _normal_quantiles() -> Floats:
    """Normal numbers at evenly spaced probabilities: a random index is a normal draw."""
    normal = NormalDist(0.0, TAIL_DEVIATION)
    probabilities = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return np.array([normal.inv_cdf(each) for each in probabilities.tolist()], dtype=np.float32)


def _mix(numbers: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Spreads 32-bit numbers: the finalizer of MurmurHash3."""
    mixed = numbers ^ (numbers >> np.uint32(16))
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return mixed
