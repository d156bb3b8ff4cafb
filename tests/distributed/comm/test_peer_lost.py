"""A rank that is killed: the others get a typed error from whatever they wait in."""

import os
import signal

import pytest
import torch
from contexts import SHARED, in_context
from processes import on_ranks

from megalith.comm.ranks import Ranks


def lose_a_peer(context, operation):
    """Rank 1 dies; what rank 0 is told."""
    all_to_all, all_reduce = context.all_to_all("things"), context.all_reduce()
    ranks = Ranks(context.group, context.rank, 2)
    ranks.from_each(lambda: None)
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        if operation == "all_to_all":
            all_to_all.buffers([8, 8])
            all_to_all.wait(all_to_all.start([8, 8]))
        elif operation == "all_reduce":
            all_reduce.add_(torch.ones(3))
        else:
            ranks.from_each(lambda: None)


@SHARED
@pytest.mark.parametrize("operation", ["all_to_all", "all_reduce", "ranks"])
def test_a_lost_rank_is_a_typed_error(shared, operation):
    with pytest.raises(AssertionError) as error:
        on_ranks(2, in_context, shared, lose_a_peer, operation)
    assert "PeerLostError" in str(error.value)
    assert "rank 1 ended without a result" in str(error.value)
