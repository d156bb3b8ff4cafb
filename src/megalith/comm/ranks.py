"""`Ranks`: the processes of a job, and how they agree on a value or on an error.

    ranks = Ranks.all()                     # of the default process group, or one process alone
    step = ranks.from_first(find_latest)    # rank 0 looks, everyone gets its answer or its error
    sizes = ranks.from_each(measure)        # everyone measures, everyone gets all answers

An error that one rank meets is raised on all of them, so none is left waiting for the others.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from megalith.comm.peer_lost import peer_errors

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error on its way to the other ranks."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Ranks:
    """Processes of one group. Of a single process, everything is immediate and no group is needed."""

    group: dist.ProcessGroup | None = None
    rank: int = 0
    world_size: int = 1

    @staticmethod
    def all() -> Ranks:
        """The ranks of the default group; one process alone where there is none."""
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            return Ranks()
        return Ranks(dist.group.WORLD, dist.get_rank(), dist.get_world_size())

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which does what only one may do."""
        return self.rank == 0

    def with_own_group(self) -> Ranks:
        """The same ranks with a group of their own, whose collectives cannot mix with those of another
        thread. All ranks call it, in the same order. It is always a gloo group."""
        if self.world_size == 1:
            return self
        return Ranks(dist.new_group(backend="gloo"), self.rank, self.world_size)

    def from_first(self, make: Callable[[], T]) -> T:
        """What `make` returns on rank 0; its error is raised everywhere."""
        if self.world_size == 1:
            return make()
        answer: list[Any] = [_attempt(make) if self.is_first else None]
        with peer_errors():
            dist.broadcast_object_list(answer, src=0, group=self.group)
        value: T = _value(answer[0])
        return value

    def from_each(self, make: Callable[[], T]) -> list[T]:
        """What `make` returns on every rank, by rank; the error of the lowest one is raised everywhere."""
        if self.world_size == 1:
            return [make()]
        answers: list[Any] = [None] * self.world_size
        own = _attempt(make)
        with peer_errors():
            dist.all_gather_object(answers, own, group=self.group)
        return [_value(answer) for answer in answers]

    def items_of_each(self, own: Iterator[T]) -> Iterator[T]:
        """Items of all ranks, one of each at a time in rank order, until none has any; all iterate."""
        while True:
            found = [item for item in self.from_each(lambda: list(islice(own, 1))) if item]
            if not found:
                return
            yield from (item for (item,) in found)

    def gather_columns(self, columns: Tensor, sizes: list[int]) -> Tensor | None:
        """Columns [n, size of the rank] of every rank, side by side in rank order, on rank 0; None elsewhere.

        Every rank knows all sizes, which must not be larger than the first.
        """
        if self.world_size == 1:
            return columns
        padded = columns.new_zeros((columns.shape[0], sizes[0]))
        padded[:, : columns.shape[1]] = columns
        parts = [torch.empty_like(padded) for _ in sizes] if self.is_first else None
        with peer_errors():
            dist.gather(padded, parts, dst=0, group=self.group)
        if parts is None:
            return None
        return torch.cat([part[:, :size] for part, size in zip(parts, sizes, strict=True)], dim=1)


def _attempt(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except BaseException as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return _Failure(RuntimeError(f"{type(error).__name__}: {error}"))
        return _Failure(error)


def _value(answer: Any) -> Any:
    if isinstance(answer, _Failure):
        raise answer.error
    return answer
