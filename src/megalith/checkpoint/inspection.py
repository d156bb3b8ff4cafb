"""What is in a folder of checkpoints: every step that is kept, what it is over, and which files are damaged.

kept_steps(store)     # [SavedStep(step=200, kind="baseline", ...), SavedStep(step=300, kind="delta", ...)]
verified(store)       # the same steps, every file read once: which are damaged, which can be restored
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from megalith.checkpoint.differential.chain import ChainLink, folder_bytes, needed_by
from megalith.checkpoint.manifest import MANIFEST, Manifest
from megalith.checkpoint.pool_reader import PoolReader
from megalith.checkpoint.store import CheckpointStore
from megalith.checkpoint.tensor_file import is_intact
from megalith.core.errors import CheckpointError


@dataclass(frozen=True)
class SavedStep:
    """A checkpoint as its manifest and its folder describe it; no other file was read."""

    step: int
    kind: Literal["baseline", "delta", "damaged"]
    """`damaged`: its own manifest cannot be read, so what it holds is not known."""
    bits: int | None
    """Of the weights of changed rows; 32 is exact. None of a baseline."""
    bytes: int
    """Of all its files, those that it shares with others by links included."""
    saved_at: float
    """When it was written, in seconds since 1970."""
    needs: tuple[int, ...]
    """The steps that it is over, newest first: they must stay where it does."""
    samples: int | None
    """How many the run had trained on."""
    error: str | None
    """Why it cannot be restored, as far as manifests tell."""


@dataclass
class VerifiedStep:
    """A checkpoint of which every file was read."""

    step: int
    files: int = 0
    bytes: int = 0
    """How much of its own was read."""
    damaged: list[Path] = field(default_factory=list)
    """Its own files that are missing or not what was written."""
    error: str | None = None
    """Why it cannot be restored: the damage, here or in what it is over."""

    @property
    def can_be_restored(self) -> bool:
        """Whether it and all that it is over are whole."""
        return self.error is None


def kept_steps(store: CheckpointStore) -> list[SavedStep]:
    """Every step of a folder, rising."""
    return [_saved_step(store, step) for step in store.steps()]


def verified(
    store: CheckpointStore, step: int | None = None, tell: Callable[[int], None] = lambda _: None
) -> list[VerifiedStep]:
    """Reads every file of all steps, or of one and what it is over, once; rising. `tell` hears of each step
    before it is read."""
    steps = store.steps()
    wanted = steps if step is None else sorted(needed_by(store.path, [step]) & set(steps))
    read: dict[int, VerifiedStep] = {}
    for each in wanted:
        tell(each)
        own = read[each] = VerifiedStep(each)
        try:
            chain = store.chain(each)
        except CheckpointError as error:
            own.error = str(error)
            if not _is_readable(store, each):
                own.damaged.append(store.path(each) / MANIFEST)
            continue
        _read_files(own, chain[0], store.advice(each))
        over = [read[link.manifest.step].error for link in chain[1:] if link.manifest.step in read]
        own.error = own.error or next((error for error in over if error), None)
    return list(read.values())


def _read_files(own: VerifiedStep, link: ChainLink, fix: str) -> None:
    folder, manifest = link
    for name, record in sorted(manifest.files.items()):
        own.files, own.bytes = own.files + 1, own.bytes + record.bytes
        if not is_intact(folder / name, record):
            own.damaged.append(folder / name)
            own.error = own.error or f"Checkpoint file {folder / name} is damaged or missing; {fix}."
    for pool in manifest.pools:
        if folder / pool.list_file in own.damaged:
            continue
        segments = sorted((folder / pool.name).glob("*.rows"))
        own.files += len(segments)
        own.bytes += sum(path.stat().st_size for path in segments)
        try:
            PoolReader(folder, [pool], fix).verify()
        except CheckpointError as error:
            named = (path for path in segments if str(path) in str(error))
            own.damaged.append(next(named, folder / pool.name))
            own.error = own.error or str(error)


def _saved_step(store: CheckpointStore, step: int) -> SavedStep:
    folder = store.path(step)
    needs = tuple(sorted(needed_by(store.path, [step]) - {step}, reverse=True))
    manifest, error = _manifest(store, step)
    try:
        saved_at = (folder / MANIFEST).stat().st_mtime
    except OSError:
        saved_at = folder.stat().st_mtime
    if manifest is None:
        return SavedStep(step, "damaged", None, folder_bytes(folder), saved_at, needs, None, error)
    if error is None and needs:
        try:
            store.chain(step)
        except CheckpointError as broken:
            error = str(broken)
    samples = manifest.about.get("samples")
    return SavedStep(
        step,
        "baseline" if manifest.delta is None else "delta",
        None if manifest.delta is None else manifest.delta.bits,
        folder_bytes(folder),
        saved_at,
        needs,
        samples if isinstance(samples, int) else None,
        error,
    )


def _manifest(store: CheckpointStore, step: int) -> tuple[Manifest | None, str | None]:
    try:
        return store.manifest(step), None
    except CheckpointError as error:
        return None, str(error)


def _is_readable(store: CheckpointStore, step: int) -> bool:
    return _manifest(store, step)[0] is not None
