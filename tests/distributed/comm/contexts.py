"""Checks that run on every rank with a `CommContext` of all of them, with shared memory and without."""

import os

import pytest

from megalith.comm.context import CommContext

SHARED = pytest.mark.parametrize("shared", ["1", "0"], ids=["shared memory", "sockets"])


def in_context(shared, check, *arguments):
    """Runs a check with a context of all ranks."""
    os.environ["MEGALITH_SHARED_MEMORY"] = shared
    context = CommContext.of(None)
    assert context is not None
    assert context.peers.all_same_host == (shared == "1")
    return check(context, *arguments)


def with_separate(separate, check, *arguments):
    """The same where the ranks of `separate` share memory with nobody, as if on hosts of their own."""
    import torch.distributed as dist

    os.environ["MEGALITH_SHARED_MEMORY"] = "0" if dist.get_rank() in separate else "1"
    context = CommContext.of(None)
    assert context is not None
    return check(context, *arguments)
