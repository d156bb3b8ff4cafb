"""A folder of checkpoints, one for each saved step, each seen whole or not at all.

    checkpoints/step-00000100/manifest.json               see megalith.checkpoint.manifest
    checkpoints/step-00000100/dense.safetensors           see megalith.checkpoint.writer
    checkpoints/step-00000100/rows-00000-000.safetensors  ...
    checkpoints/step-00000100/segments-00000-0/           see megalith.checkpoint.pool_files

A checkpoint is written under a temporary name by all ranks, synced and renamed by the first, so a kill of any
of them at any instant leaves the last good one. Rows are kept by global id: any number of ranks loads what
any other saved. Rows that a store keeps in files which never change are linked, not written again. Checksums
are verified on load, those of linked rows when they are read: a damaged file is an error that names it, never
a wrong number. Nothing in a checkpoint runs code when it is read: tensors are safetensors, the rest is JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from megalith.checkpoint.differential.chain import ChainLink, folder_bytes, needed_by, read_chain
from megalith.checkpoint.differential.changes import TakenRows
from megalith.checkpoint.differential.progress import DifferentialSaves
from megalith.checkpoint.differential.settings import CheckpointConfig
from megalith.checkpoint.manifest import Manifest, read_manifest, write_manifest
from megalith.checkpoint.pool_files import SavedSegments
from megalith.checkpoint.pool_reader import PoolReader
from megalith.checkpoint.reader import read_into, saved_blocks, saved_table
from megalith.checkpoint.state import Leaves, leaves_of, snapshot
from megalith.checkpoint.tensor_file import is_intact
from megalith.checkpoint.writer import FILE_BYTES, WrittenFiles, table_records, write_rank
from megalith.comm.ranks import Ranks
from megalith.core.errors import CheckpointError, storage_errors
from megalith.core.files import new_folder, remove_folder, remove_partials, sync_file, sync_folder
from megalith.embeddings.row_block import RowBlock
from megalith.embeddings.stores.row_files import Holds
from megalith.embeddings.table_state import TableState

_STEP = re.compile(r"step-(\d{8,})")


class _TakenState:
    """A state as it was when a save began, with the files that it holds until the block is left."""

    def __init__(self) -> None:
        self.holds = Holds()
        self._leaves: Leaves | BaseException = Leaves({}, {}, {})

    @classmethod
    def of(cls, state: dict[str, Any], copy: bool) -> _TakenState:
        """What could not be taken is an error when it is asked for: then other ranks hear of it."""
        taken = cls()
        try:
            taken._leaves = leaves_of(snapshot(state, taken.holds, copy))
        except Exception as error:
            taken._leaves = error
        return taken

    @property
    def leaves(self) -> Leaves:
        """The content, or the error that came in its place."""
        if isinstance(self._leaves, BaseException):
            raise self._leaves
        return self._leaves

    delta = None
    """It is of a whole checkpoint."""

    def write(self, folder: Path, rank: int, file_bytes: int, saved: SavedSegments) -> WrittenFiles:
        """Writes a rank's files."""
        return write_rank(self.leaves, folder, rank, file_bytes, self.holds, saved)

    def __enter__(self) -> None:
        """Nothing is to be done."""

    def __exit__(self, *_: object) -> None:
        self.holds.release()


class CheckpointStore:
    """The checkpoints of one run; keeps the newest `keep` and whichever is marked best.

    With `ranks`, all of them call `save` and `load` together, and see the same folder. Their group must be
    used for nothing else: with `background` it is used while training goes on.
    """

    def __init__(
        self,
        folder: Path,
        keep: int = 2,
        ranks: Ranks | None = None,
        file_bytes: int = FILE_BYTES,
        config: CheckpointConfig | None = None,
    ) -> None:
        """`config` says whether checkpoints are differential, and how."""
        self.folder, self.keep, self.file_bytes = folder, keep, file_bytes
        self.ranks = ranks or Ranks()
        self._saved = SavedSegments()
        is_differential = config is not None and config.differential
        self.changes = DifferentialSaves(config) if config is not None and is_differential else None
        """What the next differential checkpoint is over; None where all are whole."""
        self._executor: ThreadPoolExecutor | None = None
        self._saving: Future[None] | None = None

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is, or would be."""
        return self.folder / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """Every step with a complete checkpoint, rising."""
        if not self.folder.is_dir():
            return []
        names = (_STEP.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in names if match)

    def latest(self) -> int | None:
        """The newest step, or None."""
        steps = self.steps()
        return steps[-1] if steps else None

    def save(
        self,
        step: int,
        state: dict[str, Any],
        about: dict[str, Any],
        protect: int | None = None,
        background: bool = False,
        whole: bool = False,
    ) -> Path:
        """Writes `state` as the checkpoint of `step`, then prunes old ones, except that of step `protect`.

        Rows in files are put on disk and held before it returns. With `background` the rest is copied, and
        all is written by a thread; the next `save`, `load` or `wait` waits for it and raises what went wrong.
        A differential one is copied in pieces, as they are written. With `whole` it is over no other.
        """
        self.wait()
        taken: _TakenState | TakenRows
        if self.changes is not None:
            taken, about = self.changes.take(step, state, about, whole=whole)
            self._submit(step, taken, about, protect)
            taken.feed()
            if not background:
                self.wait()
            return self.path(step)
        taken = _TakenState.of(state, copy=background)
        if background:
            self._submit(step, taken, about, protect)
        else:
            self._save(step, taken, about, protect)
        return self.path(step)

    def _submit(
        self, step: int, taken: _TakenState | TakenRows, about: dict[str, Any], protect: int | None
    ) -> None:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="megalith-checkpoint")
        self._saving = self._executor.submit(self._save, step, taken, about, protect)

    def wait(self) -> None:
        """Returns when the save under way, if there is one, is on disk; raises its error."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def close(self) -> None:
        """Waits for the save under way and ends its thread; clears what a killed start was removing."""
        try:
            self.wait()
            if self.ranks.is_first:
                remove_partials(self.folder)
        finally:
            if self._executor is not None:
                self._executor.shutdown()
                self._executor = None

    def load(self, step: int, state: dict[str, Any]) -> dict[str, Any]:
        """Fills `state` in place from the checkpoint of `step` and returns what `save` was told about it."""
        self.wait()
        if self.changes is not None:
            # Until `follow`, the rows are those of no checkpoint.
            self.changes.forget()
        fix = self.advice(step)
        chain = self.chain(step)
        self._verify_mine(chain)

        def read() -> None:
            for pool, adopted in read_into(state, chain, fix).items():
                self._saved.remember(pool, adopted)

        self.ranks.from_each(read)
        return chain[0].manifest.about

    def follow(self, step: int, state: dict[str, Any]) -> None:
        """Says that `state` is that of a step, which was loaded: the next differential one is over it."""
        if self.changes is None:
            return
        chain = self.chain(step)
        sizes = self.ranks.from_first(lambda: [folder_bytes(link.folder) for link in chain])
        changes = self.changes
        fits = self.ranks.from_each(lambda: changes.continues(chain, state))
        changes.follow(chain, sizes, state, fits=all(fits))

    def chain(self, step: int) -> list[ChainLink]:
        """A checkpoint and what it is over, as all ranks see it."""
        return self.ranks.from_first(lambda: read_chain(self.path, step, self.advice))

    def _verify_mine(self, chain: list[ChainLink]) -> None:
        """Reads this rank's share of the files."""
        files = [(link, name) for link in chain for name in sorted(link.manifest.files)]
        mine = files[self.ranks.rank :: self.ranks.world_size]
        self.ranks.from_each(lambda: self._verify(mine))

    def manifest(self, step: int) -> Manifest:
        """What a checkpoint says of itself, as far as it is believed without reading its other files."""
        return read_manifest(self.path(step), step, self.advice(step))

    def saved_tables(self, step: int) -> dict[str, TableState]:
        """The tables of a checkpoint by path, as it describes them; they hold no row."""
        return {path: saved_table(record) for path, record in self.manifest(step).tables.items()}

    def saved_blocks(self, step: int, path: str) -> Iterator[RowBlock]:
        """The rows of a table that are in blocks, some at a time, without anything to load them into.

        Rows of stores that keep files are in no block. Checksums of what is read are verified first.
        """
        chain = read_chain(self.path, step, self.advice)
        for link in chain:
            if path in link.manifest.tables:
                blocks = link.manifest.tables[path].blocks
                self._verify((link, name) for name in sorted({block.file for block in blocks}))
        yield from saved_blocks(chain, path)

    def verify(self, step: int) -> None:
        """Reads all of a checkpoint and of what it is over, rows that a load would only link included; raises
        what is damaged."""
        self.wait()
        chain = self.chain(step)
        self._verify_mine(chain)
        (folder, manifest), fix = chain[-1], self.advice(chain[-1].manifest.step)
        own = manifest.pools[self.ranks.rank :: self.ranks.world_size]
        self.ranks.from_each(lambda: PoolReader(folder, own, fix).verify())

    def drop_after(self, step: int) -> None:
        """Removes the checkpoints of later steps, for a run that goes back to `step`."""
        for later in reversed(self.steps()):
            if later > step:
                remove_folder(self.path(later))

    def prune(self, keep: int, protect: int | None = None) -> list[int]:
        """Removes all but the newest `keep`, that of step `protect` and what these are over; returns what it
        removed."""
        steps = self.steps()
        newest = steps[max(0, len(steps) - keep) :]
        return self.keep_only({*newest, *(step for step in steps if step == protect)})

    def keep_only(self, wanted: Iterable[int]) -> list[int]:
        """Removes all but some steps and what these are over; what it removed, the newest first, so that
        nothing is there without what it is over."""
        kept = needed_by(self.path, wanted)
        removed = [step for step in reversed(self.steps()) if step not in kept]
        for step in removed:
            remove_folder(self.path(step))
        return removed

    def _save(
        self, step: int, taken: _TakenState | TakenRows, about: dict[str, Any], protect: int | None
    ) -> None:
        try:
            with taken:
                self._write(step, taken, about, protect)
        except BaseException:
            if self.changes is not None:
                self.changes.forget()
            raise

    def _write(
        self, step: int, taken: _TakenState | TakenRows, about: dict[str, Any], protect: int | None
    ) -> None:
        ranks, target = self.ranks, self.path(step)
        with ExitStack() as first_rank:

            def begin() -> Path:
                with storage_errors(self.folder):
                    self.folder.mkdir(parents=True, exist_ok=True)
                remove_partials(self.folder)
                return first_rank.enter_context(new_folder(target, overwrite=True, sync=_sync))

            folder = ranks.from_first(begin)

            def write() -> WrittenFiles:
                with storage_errors(target):
                    return taken.write(folder, ranks.rank, self.file_bytes, self._saved)

            written = ranks.from_each(write)
            leaves = taken.leaves

            def commit() -> tuple[int, int]:
                manifest = Manifest(
                    kind="full" if taken.delta is None else "delta",
                    delta=taken.delta,
                    step=step,
                    ranks=ranks.world_size,
                    about=about,
                    values=leaves.values,
                    tensors=tuple(leaves.tensors),
                    tables=table_records(leaves.tables, written),
                    pools=tuple(pool for part in written for pool in part.pools),
                    files={name: record for part in written for name, record in part.files.items()},
                )
                with storage_errors(target):
                    checksum = write_manifest(folder, manifest)
                    # Syncs every file and gives the folder its name: the instant from which it exists.
                    first_rank.close()
                self.prune(self.keep, protect)
                return checksum, folder_bytes(target)

            checksum, size = ranks.from_first(commit)
            self._saved.moved(folder, target)
            if self.changes is not None and isinstance(taken, TakenRows):
                self.changes.keep(step, checksum, size, taken)

    def _verify(self, files: Iterable[tuple[ChainLink, str]]) -> None:
        for (folder, manifest), name in files:
            if not is_intact(folder / name, manifest.files[name]):
                fix = self.advice(manifest.step)
                raise CheckpointError(f"Checkpoint file {folder / name} is damaged or missing; {fix}.")

    def advice(self, step: int) -> str:
        """The end of a sentence about a damaged checkpoint: what to do without it."""
        older = [other for other in self.steps() if other < step]
        if not older:
            return "there is no older one, start the run again"
        return (
            f"go back to step {older[-1]} with `megalith train {self.folder.parent} --from-step {older[-1]}`"
        )


def _sync(folder: Path) -> None:
    """Forces a checkpoint to disk; segment files are there already, each since it was first saved."""
    for path in folder.iterdir():
        if path.is_dir():
            sync_folder(path)
        else:
            sync_file(path)
    sync_folder(folder)
