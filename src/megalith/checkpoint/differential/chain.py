"""The checkpoints that one of changed rows needs: those between it and the whole one beneath.

chain = read_chain(path_of, 400, fix)     # [step 400 (delta), step 300 (delta), step 200 (full)]
needed_by(folder, {400})                  # {200, 300, 400}: what must stay where step 400 does
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from megalith.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from megalith.core.errors import CheckpointError


class ChainLink(NamedTuple):
    """One checkpoint of a chain."""

    folder: Path
    manifest: Manifest


def read_chain(path_of: Callable[[int], Path], step: int, fix: Callable[[int], str]) -> list[ChainLink]:
    """A checkpoint and all that it is over, newest first: the last is a whole one. Manifests are checked, the
    files that they list are not. `fix` ends a sentence about a damaged one of some step."""
    chain = [ChainLink(path_of(step), read_manifest(path_of(step), step, fix(step)))]
    while (delta := chain[-1].manifest.delta) is not None:
        over, folder = path_of(delta.previous), chain[-1].folder
        if not (over / MANIFEST).is_file():
            raise CheckpointError(
                f"{folder} has only what changed since {over}, which is missing; {fix(delta.previous)}."
            )
        manifest = read_manifest(over, delta.previous, fix(delta.previous))
        base = manifest.step if manifest.delta is None else manifest.delta.base
        if stored_checksum(over) != delta.previous_crc32 or base != delta.base:
            raise CheckpointError(
                f"{folder} has what changed since another {over.name} than the one that is there; "
                f"{fix(delta.previous)}."
            )
        chain.append(ChainLink(over, manifest))
    return chain


def stored_checksum(folder: Path) -> int | None:
    """The checksum of a checkpoint's manifest, as it stands there; None where it cannot be read."""
    checksum = _content(folder).get("crc32")
    return checksum if isinstance(checksum, int) else None


def previous_step(folder: Path) -> int | None:
    """The step that a checkpoint is over; None of a whole one, and of what cannot be read."""
    delta = _content(folder).get("delta")
    previous = delta.get("previous") if isinstance(delta, dict) else None
    return previous if isinstance(previous, int) else None


def needed_by(path_of: Callable[[int], Path], steps: Iterable[int]) -> set[int]:
    """Some steps and all that they are over."""
    needed: set[int] = set()
    for step in steps:
        at: int | None = step
        while at is not None and at not in needed:
            needed.add(at)
            at = previous_step(path_of(at))
    return needed


def folder_bytes(folder: Path) -> int:
    """Of all files of a checkpoint, those that it shares with others included."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.lstat().st_size if path.is_file() else 0
    return total


def _content(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    return {}
