"""A folder of checkpoints, one for each saved step, each seen whole or not at all.

    checkpoints/step-00000100/manifest.json     step, metrics, size and checksum of every file
    checkpoints/step-00000100/__0_0.distcp ...  what torch.distributed.checkpoint writes, file(s) of each rank

A checkpoint is written under a temporary name by all ranks, synced and renamed by the first, so a kill of any
of them at any instant leaves the last good one. Keys do not depend on the number of ranks (ShardedTable): any
number loads what any other saved. Checksums are verified on load: a damaged file is an error that names it,
never a wrong number.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from megalith.checkpoint.chunks import CHUNK_BYTES
from megalith.checkpoint.transfer import files_of_rank, fingerprint, load_into, save_into, snapshot
from megalith.core.errors import CheckpointError, storage_errors
from megalith.core.files import new_folder, remove_partials
from megalith.sharding.runtime.ranks import Ranks

MANIFEST = "manifest.json"
VERSION = 1
_STEP = re.compile(r"step-(\d{8,})")


class CheckpointStore:
    """The checkpoints of one run; keeps the newest `keep` and whichever is marked best.

    With `ranks`, all of them call `save` and `load` together, and see the same folder. Their group must be
    used for nothing else: with `background` it is used while training goes on.
    """

    def __init__(
        self, folder: Path, keep: int = 2, ranks: Ranks | None = None, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self.folder, self.keep, self.chunk_bytes = folder, keep, chunk_bytes
        self.ranks = ranks or Ranks()
        self._executor: ThreadPoolExecutor | None = None
        self._saving: Future[None] | None = None

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
        self,
        step: int,
        state: dict[str, Any],
        about: dict[str, Any],
        protect: int | None = None,
        background: bool = False,
    ) -> Path:
        """Writes `state` as the checkpoint of `step`, then prunes old ones, except that of step `protect`.

        With `background` the state is copied and written by a thread; the next `save`, `load` or `wait`
        waits for it and raises what went wrong.
        """
        self.wait()
        if background:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix="megalith-checkpoint")
            self._saving = self._executor.submit(self._save, step, snapshot(state), about, protect)
        else:
            self._save(step, state, about, protect)
        return self.path(step)

    def wait(self) -> None:
        """Returns when the save under way, if there is one, is on disk; raises its error."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def close(self) -> None:
        """Waits for the save under way and ends its thread."""
        try:
            self.wait()
        finally:
            if self._executor is not None:
                self._executor.shutdown()
                self._executor = None

    def load(self, step: int, state: dict[str, Any]) -> dict[str, Any]:
        """Fills `state` in place from the checkpoint of `step` and returns what its manifest says."""
        self.wait()
        folder = self.path(step)
        manifest = self.ranks.from_first(lambda: read_manifest(folder))
        mine = sorted(manifest["files"])[self.ranks.rank :: self.ranks.world_size]
        self.ranks.from_each(lambda: self._verify(folder, manifest, mine))
        load_into(state, folder, self.ranks)
        return manifest

    def _save(self, step: int, state: dict[str, Any], about: dict[str, Any], protect: int | None) -> None:
        ranks, target = self.ranks, self.path(step)
        with ExitStack() as first_rank:

            def begin() -> Path:
                with storage_errors(self.folder):
                    self.folder.mkdir(parents=True, exist_ok=True)
                remove_partials(self.folder)
                return first_rank.enter_context(new_folder(target, overwrite=True))

            folder = ranks.from_first(begin)
            save_into(state, folder, target, ranks, self.chunk_bytes)
            written = ranks.from_each(
                lambda: {path.name: fingerprint(path) for path in files_of_rank(folder, ranks.rank)}
            )

            def commit() -> None:
                files = {name: mark for of_rank in written for name, mark in of_rank.items()}
                manifest = {"version": VERSION, "step": step, **about, "ranks": ranks.world_size}
                content = json.dumps({**manifest, "files": dict(sorted(files.items()))}, indent=1)
                (folder / MANIFEST).write_text(content + "\n", encoding="utf-8")
                # Syncs every file and gives the folder its name: the instant from which it exists.
                first_rank.close()
                for old in self.steps()[: -self.keep]:
                    if old != protect:
                        shutil.rmtree(self.path(old))

            ranks.from_first(commit)

    def _verify(self, folder: Path, manifest: dict[str, Any], names: Iterable[str]) -> None:
        for name in names:
            path = folder / name
            if not path.exists() or fingerprint(path) != manifest["files"][name]:
                others = [step for step in self.steps() if self.path(step) != folder]
                fix = f"delete {folder} to go back to step {others[-1]}" if others else "start the run again"
                raise CheckpointError(f"Checkpoint file {path} is damaged or missing; {fix}.")


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
