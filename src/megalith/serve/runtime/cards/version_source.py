"""A version of a model in memory: its folder, or a delta over the version before, and the parts of it."""

from __future__ import annotations

from pathlib import Path

from megalith.export.backends.base import ModelSource
from megalith.export.folder import FrozenModel
from megalith.serve.runtime.cards.served_part import ServedPart, VersionParts, load_parts


def load_version(
    folder: Path, base: ModelSource | None, spec: VersionParts
) -> tuple[ModelSource, list[ServedPart], dict[str, int]]:
    """What cards look rows up in, the parts, and their bytes by what they are for."""
    del base
    source = FrozenModel(folder)
    parts = load_parts(source, spec)
    return source, parts, part_bytes(parts)


def part_bytes(parts: list[ServedPart]) -> dict[str, int]:
    """Bytes of all parts together."""
    total: dict[str, int] = {}
    for part in parts:
        for key, count in part.bytes().items():
            total[key] = total.get(key, 0) + count
    return total
