"""Options that are one value for all columns, or NAME=VALUE for one of them, repeated."""

from __future__ import annotations

from collections.abc import Sequence

from megalith.core.errors import ConfigError


def split_by_column(option: str, given: Sequence[str] | None) -> tuple[int | None, dict[str, int]]:
    """The value for all columns, None where none was given, and those of single ones.

    >>> split_by_column("--min-count", ["10", "user=2,city=5"])
    (10, {'user': 2, 'city': 5})
    """
    for_all: int | None = None
    by_name: dict[str, int] = {}
    for text in [part for one in given or () for part in one.split(",")]:
        name, separator, number = text.rpartition("=")
        if separator and name.strip() in by_name:
            raise ConfigError(f"{option} names '{name.strip()}' twice; name it once.")
        if not separator and for_all is not None:
            raise ConfigError(f"{option} has two values for all columns ({for_all} and {text}); give one.")
        try:
            value = int(number)
        except ValueError as error:
            raise ConfigError(
                f"{option} {text} must be a whole number for all columns, or NAME=NUMBER for one."
            ) from error
        if separator:
            by_name[name.strip()] = value
        else:
            for_all = value
    return for_all, by_name


def separators_by_column(given: Sequence[str] | None) -> dict[str, str]:
    """What stands between the ids of each column that --list names.

    >>> separators_by_column(["genres=|", "tags=, "])
    {'genres': '|', 'tags': ', '}
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, separator = text.partition("=")
        if not equals or not name.strip() or not separator:
            raise ConfigError(f"--list {text} must name a column and what stands between ids: 'genres=|'.")
        if name.strip() in found:
            raise ConfigError(f"--list names '{name.strip()}' twice; name it once.")
        found[name.strip()] = "\t" if separator == "\\t" else separator
    return found
