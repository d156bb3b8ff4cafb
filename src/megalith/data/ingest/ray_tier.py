"""A tier of readers: processes of Ray, on this machine or others, that hand over windows as ready batches.

    trainer                            readers
    plan: window 7, 8, 9, ...   ->     read, transform, shuffle, cut into batches, pack into one buffer
    batches of 7 as views       <-     object store (shared memory; between machines, its transfers)

The plan is the loader's. A reader that dies is replaced, and windows that it had not handed over are given to
others; a window is a function of its place and the seed, so that none is lost, repeated or changed.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from megalith.comm.ranks import Ranks
from megalith.core.errors import ConfigError, DataError, MegalithError
from megalith.core.schema import FeatureSpec
from megalith.data.batch import Batch
from megalith.data.ingest.tier import IngestConfig, LocalTier
from megalith.data.loader.decode import RowReader
from megalith.data.loader.packed import BatchLayout, Buffer, pack, unpack
from megalith.data.loader.plan import RowSharding, ShuffleWindow
from megalith.data.loader.readers import WindowQueue, WindowWork
from megalith.data.loader.steps import RowRanges

MOST_DEATHS = 5
"""Readers that may die over one window before it is taken to be what kills them."""
_LOOPBACK = "127.0.0.2"
"""Ray replaces 127.0.0.1 by an address that others reach."""


class RayTier(LocalTier):
    """The readers of one rank, and Ray, which the first rank has started where no address was given."""

    def __init__(self, config: IngestConfig, ranks: Ranks) -> None:
        self._config, self._ranks = config, ranks
        self._ray = import_ray()
        self._owns = False
        self.readers = RayReaders(config)

    def start(self) -> None:
        """Connects to Ray, unless this process is already."""
        # All ranks are, or none: it is the same program.
        self._owns = not self._ray.is_initialized()
        if self._owns:
            _connect(self._ray, self._config, self._ranks)

    def close(self) -> None:
        """Leaves Ray; all ranks call it, since it ends with the rank that started it."""
        if self._owns and not self._ranks.is_first:
            self._ray.shutdown()
        self._ranks.from_each(lambda: None)
        if self._owns and self._ranks.is_first:
            self._ray.shutdown()
        self._owns = False


@dataclass(frozen=True, slots=True)
class RayReaders:
    """Opens a queue with reader processes of its own; Ray is connected."""

    config: IngestConfig

    def open(self, work: WindowWork) -> WindowQueue:
        """A queue whose readers are being started."""
        return RayQueue(self.config, work)


def import_ray() -> Any:
    """Ray, without its usage statistics."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "ingest.engine=ray needs Ray, which is not installed; install it with `pip install "
            "'megalith[ray]'`, or set ingest.engine=local."
        ) from error
    # It would print of every reader that dies, on standard output, where --json has its object.
    vars(ray._private.worker)["_worker_logs_enabled"] = False
    return ray


def _connect(ray: Any, config: IngestConfig, ranks: Ranks) -> None:
    """Joins the cluster of the recipe, or one that the first rank starts on its machine."""
    if config.address is not None:
        _join(ray, config.address)
        return
    workers = config.readers * ranks.world_size

    def start() -> tuple[str, str]:
        threads = os.environ.get("OMP_NUM_THREADS")
        # Of reader processes: each is one of many on the machine.
        os.environ["OMP_NUM_THREADS"] = "1"
        try:
            ray.init(
                # One of its own: another that runs on this machine belongs to somebody else.
                address="local",
                num_cpus=workers,
                num_gpus=0,
                include_dashboard=False,
                _node_ip_address=_LOOPBACK,
                object_store_memory=2 * config.max_bytes * ranks.world_size,
                **_QUIET,
            )
        finally:
            if threads is None:
                del os.environ["OMP_NUM_THREADS"]
            else:
                os.environ["OMP_NUM_THREADS"] = threads
        return socket.gethostname(), ray.get_runtime_context().gcs_address

    host, address = ranks.from_first(start)
    if ranks.is_first:
        return
    if host != socket.gethostname():
        raise ConfigError(
            "Ranks are on several machines, so that they need one Ray cluster; start it with `ray start` and "
            "name it with ingest.address=HOST:PORT."
        )
    _join(ray, address, _node_ip_address=_LOOPBACK)


_QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "namespace": "megalith"}


def _join(ray: Any, address: str, **options: Any) -> None:
    try:
        ray.init(address=address, **_QUIET, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"ingest.address={address} cannot be joined ({reason}); start Ray there with `ray start --head`."
        ) from error


class WindowReader:
    """What runs in a reader process."""

    def __init__(
        self, rows: RowReader, features: Sequence[FeatureSpec], sharding: RowSharding, omp_threads: int = 1
    ) -> None:
        import torch

        torch.set_num_threads(omp_threads)
        self._work = WindowWork(rows, features, sharding)

    def pid(self) -> int:
        """Of the process."""
        return os.getpid()

    def read(
        self, window: ShuffleWindow, ranges: RowRanges, place: Any
    ) -> tuple[Buffer, BatchLayout] | MegalithError:
        """The batches of a window; an error that a user can put right is handed over as it is."""
        try:
            return pack(self._work.read(window, ranges, place), len(self._work.features))
        except MegalithError as error:
            return error


@dataclass(slots=True)
class _Asked:
    """A window that a reader was given."""

    window: ShuffleWindow
    ranges: RowRanges
    place: Any
    reader: int
    handle: Any
    """The process that it was given to, which may have been replaced since."""
    answer: Any
    deaths: int = 0


class RayQueue:
    """Windows in flight over the readers of one rank; see `WindowQueue`."""

    def __init__(self, config: IngestConfig, work: WindowWork) -> None:
        ray = import_ray()
        self._ray, self._config, self._locate = ray, config, work.rows.locate
        self._deaths = ray.exceptions.RayActorError, ray.exceptions.ObjectLostError
        # Given once, and fetched from the object store by every reader.
        self._given = [ray.put(work.rows), ray.put(tuple(work.features)), ray.put(work.sharding)]
        self._actor = ray.remote(num_cpus=0, max_restarts=0)(WindowReader)
        self._handles = [self._actor.remote(*self._given) for _ in range(config.readers)]
        self._next = 0
        self._asked: deque[_Asked] = deque()
        self._largest = 0

    def __len__(self) -> int:
        return len(self._asked)

    @property
    def has_room(self) -> bool:
        """Bounded in number, and in bytes by the largest window yet."""
        ahead = len(self._asked)
        fits = (ahead + 1) * self._largest <= self._config.max_bytes
        # Until one has come nobody knows how large they are.
        first = self._largest > 0 or ahead < self._config.readers
        return ahead < self._config.windows_ahead and (ahead == 0 or (fits and first))

    def submit(self, window: ShuffleWindow, ranges: RowRanges) -> None:
        """Gives a window to the next reader in turn."""
        asked = _Asked(window, ranges, self._locate(window), 0, None, None)
        self._give(asked)
        self._asked.append(asked)

    def take(self) -> list[Batch]:
        """The batches of the window that was asked for first, whichever reader has them in the end."""
        asked = self._asked[0]
        while True:
            try:
                answer = self._ray.get(asked.answer)
            except self._deaths as error:
                asked.deaths += 1
                if asked.deaths >= MOST_DEATHS:
                    raise DataError(
                        f"{asked.deaths} readers have died over the same rows ({_reason(error)}); lower "
                        "data.shuffle_window_rows or ingest.readers if memory ran out."
                    ) from error
                self._replace(asked)
            else:
                break
        self._asked.popleft()
        if isinstance(answer, MegalithError):
            raise answer
        buffer, layout = answer
        self._largest = max(self._largest, buffer.nbytes)
        return unpack(buffer, layout)

    def close(self) -> None:
        """Ends the readers, whatever they are at: nothing of theirs is kept."""
        self._asked.clear()
        if self._ray.is_initialized():
            for handle in self._handles:
                self._ray.kill(handle)

    def pids(self) -> list[int]:
        """The processes that read: of readers that have died and were not missed yet there is none."""
        found: list[int] = []
        for handle in self._handles:
            with suppress(*self._deaths):
                found.append(self._ray.get(handle.pid.remote()))
        return found

    def _give(self, asked: _Asked) -> None:
        asked.reader, self._next = self._next, (self._next + 1) % len(self._handles)
        asked.handle = self._handles[asked.reader]
        asked.answer = asked.handle.read.remote(asked.window, asked.ranges, asked.place)

    def _replace(self, lost: _Asked) -> None:
        """Starts another reader for one that has died, and gives what it had not handed over to others."""
        dead = lost.handle
        if self._handles[lost.reader] is not dead:
            self._give(lost)
            return
        self._ray.kill(dead)
        self._handles[lost.reader] = self._actor.remote(*self._given)
        # The new one starts for a second or two: the others go first.
        self._next = (lost.reader + 1) % len(self._handles)
        for asked in self._asked:
            if asked.handle is dead and not self._has_come(asked):
                self._give(asked)

    def _has_come(self, asked: _Asked) -> bool:
        """Whether a dead reader had handed a window over."""
        try:
            self._ray.get(asked.answer, timeout=0)
        except self._ray.exceptions.RayError:
            return False
        return True


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
