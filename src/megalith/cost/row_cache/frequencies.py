"""How often the ids of tables are accessed, in a few hundred numbers however many ids there are.

Ids with about the same number of accesses are one class: how many ids it has, and how often each of them is
accessed in so many samples. Numbers of accesses up to 64 are classes of their own, larger ones share a class
with those within 3%, so a billion ids take a few kilobytes.

Where frequencies are from decides what comes next. Of a stream without end, or a part of it, accesses of an
id fall at random moments at its rate. Of a whole data set (`whole`), every epoch has exactly these accesses,
in a random order: an id that occurs once is new when it comes, and does not come again before the next epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_EXACT_COUNTS = 64
_CLASSES_PER_OCTAVE = 24


@dataclass(frozen=True, slots=True, eq=False)
class AccessFrequencies:
    """Classes of ids by how often they are accessed, of one feature, one table or all tables of a cache."""

    ids: Floats
    """Ids of each class; estimates need not be whole numbers."""
    accesses: Floats
    """Accesses of each id of the class in `samples` samples."""
    samples: float
    whole: bool = False
    """The samples are a whole data set, and the run reads it from the beginning to the end."""

    @property
    def num_ids(self) -> float:
        """Ids that are accessed at all."""
        return float(self.ids.sum())

    @property
    def lookups_per_sample(self) -> float:
        """Accesses of one sample."""
        return float(self.ids @ self.accesses) / self.samples

    def per_batch(self, batch: float) -> Floats:
        """Mean accesses of an id of each class in a batch of so many samples."""
        return self.accesses * (batch / self.samples)

    def distinct(self, samples: float | Floats) -> Floats:
        """Distinct ids in so many samples that follow each other: sum of ids * P(accessed).

        P is 1 - exp(-accesses) at random moments. Of a whole data set, a share f of it leaves an id with
        c accesses out with probability (1 - f)^c.
        """
        share = np.asarray(samples, dtype=np.float64) / self.samples
        absent: Floats = self.ids @ self._absent(self.accesses, np.atleast_1d(share))
        return self.num_ids - absent.reshape(share.shape)

    def absent_before(self, samples: Floats) -> Floats:
        """[class, samples] P(an id that is accessed now was not in the `samples` samples before).

        Of a whole data set only its other accesses can be there, and after one epoch it was there."""
        share = samples / self.samples
        others = np.maximum(self.accesses - 1.0, 0.0) if self.whole else self.accesses
        return self._absent(others, share)

    def _absent(self, accesses: Floats, share: Floats) -> Floats:
        if not self.whole:
            return np.exp(-np.outer(accesses, share))
        left = np.maximum(1.0 - share, 0.0)
        # 0 ** 0 is 1: an id without other accesses stays away, up to the end of the epoch.
        return np.where(share >= 1.0, 0.0, left[None, :] ** accesses[:, None])

    def of_data_set(self, rows: int) -> AccessFrequencies:
        """The same stream cut to a data set of so many samples, which a run may read several times: an id
        occurs in it a Poisson number of times, and not at all if that is 0."""
        means = self.accesses * (rows / self.samples)
        often = means > _EXACT_COUNTS / 2
        numbers = np.arange(1.0, 2 * _EXACT_COUNTS)
        factorials = np.cumsum(np.log(numbers))
        logs = np.outer(np.log(means[~often]), numbers) - means[~often, None] - factorials
        ids = np.concatenate((self.ids[~often] @ np.exp(logs), self.ids[often]))
        accesses = np.concatenate((numbers, means[often]))
        return AccessFrequencies(ids[ids > 0], accesses[ids > 0], float(rows), whole=True)

    def share_of_hottest(self, part: float) -> float:
        """Share of the accesses that the hottest `part` of the ids take."""
        order = np.argsort(-self.accesses)
        ids = np.concatenate(([0.0], np.cumsum(self.ids[order])))
        mass = np.concatenate(([0.0], np.cumsum((self.ids * self.accesses)[order])))
        return float(np.interp(part * ids[-1], ids, mass) / mass[-1])


def from_counts(counts: NDArray[np.integer], samples: float, whole: bool = False) -> AccessFrequencies:
    """From the number of accesses of each id, in any order; ids with none are left out."""
    ids = np.bincount(np.minimum(counts, _EXACT_COUNTS), minlength=_EXACT_COUNTS + 1).astype(np.float64)
    large = counts[counts >= _EXACT_COUNTS].astype(np.float64)
    octave = np.floor(np.log2(large / _EXACT_COUNTS) * _CLASSES_PER_OCTAVE).astype(np.int64)
    sizes = np.bincount(octave).astype(np.float64)
    means = np.bincount(octave, weights=large) / np.maximum(sizes, 1.0)
    numbers = np.concatenate((np.arange(1.0, _EXACT_COUNTS), means))
    sizes = np.concatenate((ids[1:_EXACT_COUNTS], sizes))
    return AccessFrequencies(sizes[sizes > 0], numbers[sizes > 0], samples, whole)


def from_shares(
    ends: Sequence[float] | Floats, shares: Sequence[float] | Floats, lookups: float
) -> AccessFrequencies:
    """From shares of the accesses that fall on rows before each end, hottest first; all rows between two ends
    are alike. `lookups` are accesses of a sample."""
    ids = np.diff(np.concatenate(([0.0], ends)))
    mass = np.diff(np.concatenate(([0.0], shares)))
    used = (ids > 0) & (mass > 0)
    return AccessFrequencies(ids[used], lookups * mass[used] / ids[used], 1.0)


def zipf_frequencies(rows: int, lookups: float, skew: float) -> AccessFrequencies:
    """Accesses that fall as rank ** -skew over `rows` ids: the first ranks one by one, then in classes within
    3% of each other's rank."""
    head = np.arange(1.0, min(rows, _EXACT_COUNTS) + 1)
    octaves = np.log2(max(rows / _EXACT_COUNTS, 1.0))
    tail = np.geomspace(_EXACT_COUNTS, rows, int(octaves * _CLASSES_PER_OCTAVE) + 2)[1:]
    ends = np.unique(np.rint(np.concatenate((head, tail))).clip(max=rows))
    before = np.concatenate(([0.0], ends[:-1]))
    # The sum over a class by the midpoint rule, exact for single ranks.
    middle = (before + 1 + ends) / 2
    mass = np.cumsum((ends - before) * middle**-skew)
    return from_shares(ends, mass / mass[-1], lookups)


def merge_frequencies(parts: Sequence[AccessFrequencies]) -> AccessFrequencies:
    """Those of tables, or features with rows of their own, that share a cache."""
    samples = parts[0].samples
    whole = all(part.whole and part.samples == samples for part in parts)
    scaled = [part.accesses * (samples / part.samples) for part in parts]
    ids = np.concatenate([part.ids for part in parts])
    return AccessFrequencies(ids, np.concatenate(scaled), samples, whole)
