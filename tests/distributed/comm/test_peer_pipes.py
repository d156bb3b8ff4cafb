"""Signals by pipe between real processes: in order, by pair of ranks, and an error when one has ended."""

import os
import signal
from pathlib import Path

import pytest
from contexts import in_context
from processes import on_ranks

from megalith.comm.peer_lost import PeerLostError
from megalith.comm.peer_pipes import PeerPipes


def signal_each_other(context):
    pipes = PeerPipes(context.group, context.rank, context.peers)
    others = [rank for rank in range(context.world_size) if rank != context.rank]
    for other in others:
        for number in range(2):
            pipes.send(other, bytes([context.rank, other, number]))
    return [list(pipes.receive(other, 3)) for other in others for _ in range(2)]


def test_signals_arrive_in_order():
    assert on_ranks(2, in_context, "1", signal_each_other) == [
        [[1, 0, 0], [1, 0, 1]],
        [[0, 1, 0], [0, 1, 1]],
    ]


def test_each_pair_of_ranks_has_pipes_of_its_own():
    assert on_ranks(3, in_context, "1", signal_each_other) == [
        [[1, 0, 0], [1, 0, 1], [2, 0, 0], [2, 0, 1]],
        [[0, 1, 0], [0, 1, 1], [2, 1, 0], [2, 1, 1]],
        [[0, 2, 0], [0, 2, 1], [1, 2, 0], [1, 2, 1]],
    ]


def send_for_ever(pipes):
    """A process that is killed closes its pipes one after the other."""
    while True:
        pipes.send(1, b"anybody")


def lose_a_peer(context):
    pipes = PeerPipes(context.group, context.rank, context.peers)
    if context.rank == 1:
        pipes.send(0, b"last")
        os.kill(os.getpid(), signal.SIGKILL)
    # What it sent before it ended still arrives.
    assert pipes.receive(1, 4) == b"last"
    with pytest.raises(PeerLostError, match="rank 1 has ended"):
        pipes.receive(1, 4)
    with pytest.raises(PeerLostError, match="rank 1 has ended"):
        send_for_ever(pipes)
    raise PeerLostError("both were told")


def test_a_peer_that_ended_is_told_to_sender_and_receiver():
    with pytest.raises(AssertionError, match="both were told"):
        on_ranks(2, in_context, "1", lose_a_peer)


def num_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def count_descriptors(context):
    before = num_descriptors()
    pipes = PeerPipes(context.group, context.rank, context.peers)
    during = num_descriptors()
    del pipes
    return during - before, num_descriptors() - before


def test_pipes_close_with_their_owner():
    assert on_ranks(2, in_context, "1", count_descriptors) == [(2, 0)] * 2
