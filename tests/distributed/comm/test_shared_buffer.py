"""Buffers that real processes share: read in place, by ranks of one host, also when the writer is gone."""

import os

import pytest
import torch
import torch.distributed as dist
from contexts import in_context, with_separate
from processes import on_ranks

from megalith.comm.shared_buffer import SharedBuffer
from megalith.core.errors import PlanError


def read_each_other(context):
    buffers = [SharedBuffer(), SharedBuffer()]
    theirs = context.peers.share(buffers, context.group)
    for number, buffer in enumerate(buffers):
        buffer.memory[:3] = torch.tensor([context.rank, number, 9], dtype=torch.uint8)
    dist.barrier(group=context.group)
    seen = [[memory[:3].tolist() for memory in of_rank] for of_rank in theirs]
    dist.barrier(group=context.group)
    return context.peers.same_host, seen


def test_ranks_of_a_host_read_each_others_buffers():
    first, second = on_ranks(2, in_context, "1", read_each_other)
    assert first == ([False, True], [[], [[1, 0, 9], [1, 1, 9]]])
    assert second == ([True, False], [[[0, 0, 9], [0, 1, 9]], []])


def who_shares(context):
    return context.peers.same_host, context.peers.all_same_host


def test_a_rank_that_does_not_share_is_no_local_peer():
    assert on_ranks(3, with_separate, (1,), who_shares) == [
        ([False, False, True], False),
        ([False, False, False], False),
        ([True, False, False], False),
    ]


def read_after_the_writer_closed(context):
    """Rank 0 drops its buffer and makes another, which may get the same descriptor."""
    buffer = SharedBuffer()
    (first,) = context.peers.share([buffer], context.group)[0] or [None]
    if context.rank == 0:
        buffer.memory[0] = 7
    del buffer
    again = SharedBuffer()
    (second,) = context.peers.share([again], context.group)[0] or [None]
    if context.rank == 0:
        again.memory[0] = 8
    dist.barrier(group=context.group)
    seen = None if first is None else (first[0].item(), second[0].item())
    dist.barrier(group=context.group)
    return seen


def test_a_buffer_stays_readable_when_its_writer_has_closed_it():
    assert on_ranks(2, in_context, "1", read_after_the_writer_closed) == [None, (7, 8)]


def test_a_message_that_no_buffer_holds_is_one_sentence():
    with pytest.raises(PlanError, match="train with a smaller batch or set MEGALITH_SHARED_MEMORY=0"):
        SharedBuffer().reserve(1 << 36)


def test_a_buffer_takes_a_descriptor_when_it_is_used_and_gives_it_back():
    buffer = SharedBuffer()
    assert buffer.descriptor == -1
    buffer.reserve(1)
    descriptor = buffer.descriptor
    assert os.fstat(descriptor).st_size >= 1
    del buffer
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
