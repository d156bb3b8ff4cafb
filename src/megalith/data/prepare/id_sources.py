"""Where ids come from: a vocabulary of a feature's own or one that several share, hashing, or the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from megalith.core.errors import ConfigError, nearest
from megalith.data.prepare.options import PrepareOptions
from megalith.data.readers import Feature


class IdSource(NamedTuple):
    """Where one or several features have their ids from."""

    name: str
    """The feature that names the vocabulary."""
    members: tuple[int, ...]
    """Their places among all features."""
    is_raw: bool
    hash_buckets: int | None
    """Buckets of hashed ids; None where there is a vocabulary."""
    min_count: int
    max_vocabulary: int | None

    @property
    def has_vocabulary(self) -> bool:
        """Whether values are counted to give them ids."""
        return not self.is_raw and self.hash_buckets is None


def check_names(options: PrepareOptions, names: list[str]) -> None:
    """Refuses settings of features that there are not."""
    for option, given in (
        ("--min-count", options.min_count_of),
        ("--hash-buckets", options.hash_buckets_of),
        ("--max-vocabulary", options.max_vocabulary_of),
    ):
        for name in given:
            if name not in names:
                raise ConfigError(f"{option} names '{name}', which is no feature; {nearest(name, names)}")
    hashed = set(names) if options.hash_buckets else set(options.hash_buckets_of)
    for option, given in (
        ("--min-count", options.min_count_of),
        ("--max-vocabulary", options.max_vocabulary_of),
    ):
        for name in given:
            if name in hashed:
                raise ConfigError(
                    f"Feature '{name}' is hashed and has no vocabulary; leave out "
                    f"{option} {name}={given[name]}."
                )


def list_id_sources(
    features: Sequence[Feature],
    raw: Sequence[str],
    hash_buckets: int | None,
    hash_buckets_of: Mapping[str, int],
    vocabularies: Mapping[str, str],
    options: PrepareOptions | None = None,
) -> list[IdSource]:
    """Every source of ids, in the order of the features; those that share one are asked for the same.

    `options` say how a vocabulary is counted, where one is to be.
    """
    groups: dict[str, list[int]] = {}
    for place, feature in enumerate(features):
        groups.setdefault(vocabularies.get(feature.name, feature.name), []).append(place)
    sources = []
    for name, places in groups.items():
        members = [features[place].name for place in places]
        is_raw = {member in raw for member in members}
        if len(is_raw) > 1:
            raise ConfigError(
                f"Features {', '.join(members)} share their ids; name all of them in --raw, or none."
            )
        sources.append(
            IdSource(
                name,
                tuple(places),
                is_raw.pop(),
                _one("--hash-buckets", members, hash_buckets_of, hash_buckets),
                *_counting(members, options),
            )
        )
    return sources


def _counting(members: Sequence[str], options: PrepareOptions | None) -> tuple[int, int | None]:
    """The minimum count and the most values of a vocabulary."""
    if options is None:
        return 1, None
    least = _one("--min-count", members, options.min_count_of, options.min_count)
    most = _one("--max-vocabulary", members, options.max_vocabulary_of, options.max_vocabulary)
    return least or 1, most


def _one(option: str, members: Sequence[str], given: Mapping[str, int], default: int | None) -> int | None:
    """What was asked for one of the members, or for all."""
    asked = {given[member] for member in members if member in given}
    if len(asked) > 1:
        raise ConfigError(
            f"Features {', '.join(members)} share a vocabulary and have several values of {option}; give one."
        )
    return asked.pop() if asked else default
