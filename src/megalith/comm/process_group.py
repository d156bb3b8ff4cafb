"""Joining and leaving the process group of a job.

Under torchrun every process finds its rank in the environment; without it a job is one process and needs no
group at all. gloo carries tensors of CPUs, nccl those of GPUs.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from megalith.comm.rendezvous import attempt_store

_PR_SET_PDEATHSIG = 1


class GroupRank(NamedTuple):
    """This process's rank in a group."""

    rank: int
    world_size: int
    backend: str | None
    """None for one process without a group."""


def join(device: str = "cpu") -> GroupRank:
    """Joins the group that torchrun describes; one process without torchrun has none to join."""
    if dist.is_initialized():
        return GroupRank(dist.get_rank(), dist.get_world_size(), dist.get_backend())
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        return GroupRank(0, 1, None)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()
    backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    store, rank, world_size = next(dist.rendezvous("env://"))
    own = attempt_store(store, rank, world_size)
    dist.init_process_group(backend, store=own, rank=rank, world_size=world_size)
    return GroupRank(dist.get_rank(), dist.get_world_size(), backend)


def die_with_parent() -> None:
    """Ends this process when the one that started it ends, however that ends (Linux).

    Ranks that outlive a killed torchrun would go on writing beside those of the next start.
    """
    parent = os.getppid()
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "prctl"):
        return
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It ended before we asked.
        os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    """Leaves the group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank_in(group: dist.ProcessGroup | None) -> GroupRank:
    """This process's rank in a group; None is the group of all, or one process without any."""
    if group is None and not dist.is_initialized():
        return GroupRank(0, 1, None)
    return GroupRank(dist.get_rank(group), dist.get_world_size(group), dist.get_backend(group))


def subgroup(group: dist.ProcessGroup | None, ranks: Sequence[int]) -> dist.ProcessGroup | None:
    """A new group of some ranks of a group, this one among them; its collectives keep an order of their own.

    None where it would have one member. Every rank of `group` must make as many groups as the others: torch
    names a group after its members and the number of groups that a process has made before.
    """
    if rank_in(group).world_size < 2:
        return None
    everyone = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
    made: dist.ProcessGroup = dist.new_group(
        [everyone[rank] for rank in ranks], use_local_synchronization=True
    )
    return made if len(ranks) > 1 else None
