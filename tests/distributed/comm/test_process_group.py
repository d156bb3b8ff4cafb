"""Joining, leaving and dividing process groups of real processes."""

import os
import signal
from contextlib import ExitStack

import torch
import torch.distributed as dist
from processes import on_ranks

from forked import PATIENCE_SECONDS, Forked, results_of, run_forked
from megalith.comm import process_group
from megalith.comm.process_group import GroupRank, rank_in, subgroup


def join_and_leave(rank, world_size, port):
    """As torchrun starts a rank: where the others are stands in the environment."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    joined = process_group.join()
    assert process_group.join() == joined == rank_in(None)
    total = torch.tensor([1.0 + rank])
    dist.all_reduce(total)
    process_group.leave()
    process_group.leave()
    return joined, total.item(), dist.is_initialized()


def test_ranks_join_by_their_environment_in_one_attempt_after_the_other():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for world_size in (2, 3, 2):
        with ExitStack() as stack:
            ranks = [
                stack.enter_context(Forked(join_and_leave, rank, world_size, store.port))
                for rank in range(world_size)
            ]
            results = results_of(ranks)
        total = sum(range(1, world_size + 1))
        assert results == [(GroupRank(rank, world_size, "gloo"), total, False) for rank in range(world_size)]


def test_one_process_without_torchrun_has_no_group():
    assert run_forked(process_group.join) == run_forked(rank_in, None) == GroupRank(0, 1, None)


def groups():
    rank, world_size, backend = rank_in(None)
    pair = subgroup(None, [0, 2] if rank != 1 else [1])
    inside = None if pair is None else rank_in(pair)[:2]
    return rank, world_size, backend, inside


def test_a_subgroup_counts_its_own_ranks():
    assert on_ranks(3, groups) == [(0, 3, "gloo", (0, 2)), (1, 3, "gloo", None), (2, 3, "gloo", (1, 2))]


def start_a_child_and_end(pipe):
    """The child would wait for ever; only its pipe says that it has ended."""
    if os.fork() == 0:
        process_group.die_with_parent()
        os.write(pipe[1], b"!")
        signal.pause()
    # Ends when the child has asked for it.
    assert os.read(pipe[0], 1) == b"!"


def orphan():
    reader, writer = os.pipe()
    ready = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(reader)
        start_a_child_and_end(ready)
        os._exit(0)
    os.close(writer)
    os.waitpid(parent, 0)
    # End of file: nobody, the grandchild included, holds the other end.
    signal.alarm(PATIENCE_SECONDS)
    return os.read(reader, 1)


def test_a_process_ends_with_the_one_that_started_it():
    assert run_forked(orphan) == b""
