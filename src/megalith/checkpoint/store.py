"""A folder of checkpoints, one for each saved step, each seen whole or not at all.

    checkpoints/step-00000100/manifest.json     step, metrics, size and checksum of every file
    checkpoints/step-00000100/__0_0.distcp ...  what torch.distributed.checkpoint writes

A checkpoint is written under a temporary name, synced and renamed, so a kill at any instant leaves the last
good one. Checksums are verified on load: a damaged file is an error that names it, never a wrong number.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from megalith.core.errors import CheckpointError
from megalith.core.files import new_folder, remove_partials

MANIFEST = "manifest.json"
VERSION = 1
_STEP = re.compile(r"step-(\d{8,})")


class CheckpointStore:
    """The checkpoints of one run; keeps the newest `keep` and whichever is marked best."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """Every step with a complete checkpoint, rising."""
        if not self.folder.is_dir():
            return []
        names = (_STEP.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in names if match)

    def latest(self) -> int | None:
        steps = self.steps()
        return steps[-1] if steps else None

    def save(
        self, step: int, state: dict[str, Any], about: dict[str, Any], protect: int | None = None
    ) -> Path:
        """Writes `state` as the checkpoint of `step`, then prunes old ones, except that of step `protect`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_partials(self.folder)
        target = self.path(step)
        with new_folder(target, overwrite=True) as folder:
            with _one_process():
                dcp.save(state, checkpoint_id=folder, no_dist=True)
            files = {path.name: _fingerprint(path) for path in sorted(folder.iterdir())}
            manifest = {"version": VERSION, "step": step, **about, "files": files}
            (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        for old in self.steps()[: -self.keep]:
            if old != protect:
                shutil.rmtree(self.path(old))
        return target

    def load(self, step: int, state: dict[str, Any]) -> dict[str, Any]:
        """Fills `state` in place from the checkpoint of `step` and returns what its manifest says."""
        folder = self.path(step)
        manifest = self._verified(folder)
        try:
            with _one_process():
                dcp.load(state, checkpoint_id=folder, no_dist=True)
        except (CheckpointException, RuntimeError, KeyError, ValueError) as error:
            reason = str(error).strip().splitlines()[-1][:300]
            raise CheckpointError(
                f"{folder} was saved by another model ({reason}); load it with the recipe that made it."
            ) from error
        return manifest

    def _verified(self, folder: Path) -> dict[str, Any]:
        manifest = read_manifest(folder)
        for name, expected in manifest["files"].items():
            path = folder / name
            if not path.exists() or _fingerprint(path) != expected:
                others = [step for step in self.steps() if self.path(step) != folder]
                fix = f"delete {folder} to go back to step {others[-1]}" if others else "start the run again"
                raise CheckpointError(f"Checkpoint file {path} is damaged or missing; {fix}.")
        return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of itself."""
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(
            f"{folder} is not a checkpoint ({MANIFEST} is missing); check the path."
        ) from error
    except ValueError as error:
        raise CheckpointError(f"Checkpoint file {path} is damaged; delete {folder}.") from error
    if manifest.get("version") != VERSION:
        raise CheckpointError(
            f"{folder} has checkpoint version {manifest.get('version')}, this package reads {VERSION}; "
            "use the release that wrote it."
        )
    return manifest


def _fingerprint(path: Path) -> dict[str, int]:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return {"bytes": path.stat().st_size, "crc32": checksum}


@contextmanager
def _one_process() -> Iterator[None]:
    # We do mean one process; torch warns that it assumes so.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
