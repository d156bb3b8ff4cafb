"""`DifferentialSaves`: which checkpoint the next one is over, and when it has to be a whole one.

The same on all ranks: what decides is in manifests, and in sizes that the first rank tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megalith.checkpoint.differential.chain import ChainLink, stored_checksum
from megalith.checkpoint.differential.changes import ChangeTracker, TakenRows
from megalith.checkpoint.differential.settings import CheckpointConfig
from megalith.checkpoint.manifest import DeltaRecord
from megalith.checkpoint.state import leaves_of

RESTORES = "restores"
"""In what a checkpoint says `about` its run: how often it was loaded to go on from."""


@dataclass(frozen=True)
class _Previous:
    """The checkpoint that the next one is over."""

    step: int
    crc32: int
    base: int
    base_bytes: int
    delta_bytes: int
    """Of all since the base."""
    is_exact: bool
    """Whether all its rows are as they were in memory."""
    is_own: bool
    """Whether this process saved it, and did not load it."""


class DifferentialSaves:
    """What is known of the checkpoints so far. One thread at a time uses it: saves wait for each other."""

    def __init__(self, config: CheckpointConfig) -> None:
        self.config, self._restores = config, 0
        self._tracker = ChangeTracker(config.memory)
        self._previous: _Previous | None = None
        self._before: _Previous | None = None
        self.peak_bytes = 0
        """The most rows that waited to be written in this process, in bytes."""

    @property
    def bookkeeping_bytes(self) -> int:
        """What it takes to know what changed, beside the marks of touched rows."""
        return self._tracker.bytes()

    def has_saved(self, step: int, *, exactly: bool = False) -> bool:
        """Whether the newest checkpoint is of a step and was saved here; `exactly`: without rounded rows."""
        own = self._previous
        return own is not None and own.is_own and own.step == step and (own.is_exact or not exactly)

    def forget(self) -> None:
        """The rows are those of no checkpoint: the next one is whole."""
        self._previous = None

    def continues(self, chain: Sequence[ChainLink], state: dict[str, Any]) -> bool:
        """Whether what is loaded lies here as it lay where it was saved: only then can deltas follow."""
        manifest, pools = chain[0].manifest, chain[-1].manifest.pools
        in_pools = {path for pool in pools for path in pool.paths}
        for path, table in leaves_of(state).tables.items():
            record = manifest.tables.get(path)
            if record is None:
                return False
            for shard in table.shards:
                lies = shard.chunk, shard.files is not None
                if lies != (record.chunk, path in in_pools):
                    return False
        return True

    def follow(
        self, chain: Sequence[ChainLink], sizes: Sequence[int], state: dict[str, Any], *, fits: bool
    ) -> None:
        """The state is that of a chain's newest checkpoint, which was loaded; `sizes` are those of all.
        Unless it `fits` on all ranks the next one is whole."""
        newest, base = chain[0], chain[-1]
        self._restores = int(newest.manifest.about.get(RESTORES, 0)) + 1
        if not fits:
            self.forget()
            return
        bits = [link.manifest.delta.bits for link in chain if link.manifest.delta is not None]
        checksum = stored_checksum(newest.folder)
        assert checksum is not None
        self._tracker.follow(state)
        self._previous = _Previous(
            newest.manifest.step,
            checksum,
            base.manifest.step,
            sizes[-1],
            sum(sizes[:-1]),
            is_exact=all(own == 32 for own in bits),
            is_own=False,
        )

    def take(
        self, step: int, state: dict[str, Any], about: dict[str, Any], *, whole: bool
    ) -> tuple[TakenRows, dict[str, Any]]:
        """Begins a checkpoint; what it is over is decided. Until it is kept, there is none to be over."""
        before, self._previous = self._previous, None
        delta = None
        if before is not None and not whole and step > before.step:
            is_large = before.delta_bytes > self.config.compact_at * before.base_bytes
            if not is_large:
                bits = self.config.bits_after(self._restores)
                delta = DeltaRecord(
                    previous=before.step, previous_crc32=before.crc32, base=before.base, bits=bits
                )
        self._before = before
        return self._tracker.take(state, delta), {**about, RESTORES: self._restores}

    def keep(self, step: int, crc32: int, size: int, taken: TakenRows) -> None:
        """A checkpoint is on disk."""
        self._tracker.keep(taken)
        self.peak_bytes = max(self.peak_bytes, taken.peak_bytes)
        before, delta = self._before, taken.delta
        if delta is None or before is None:
            self._previous = _Previous(step, crc32, step, size, 0, is_exact=True, is_own=True)
        else:
            exact = before.is_exact and delta.bits == 32
            total = before.delta_bytes + size
            self._previous = _Previous(
                step, crc32, before.base, before.base_bytes, total, is_exact=exact, is_own=True
            )
