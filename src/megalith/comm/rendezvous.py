"""`attempt_store`: a store of its own for every attempt of torchrun to start the ranks.

torchrun keeps one store through all restarts, and gloo takes the first address that it finds there: after a
restart that may be of a process that is gone. So the ranks of an attempt first agree on a prefix that nobody
has used, and put everything else under it. Counting restarts would not do: torchrun counts them on each host
by itself.

Each rank but the first registers with a token of its own. The first answers every token that it sees, old
ones too, with the prefix it has drawn, until every rank has confirmed that prefix.
"""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import torch.distributed as dist

from megalith.comm.peer_lost import PeerLostError, peer_errors

_TIMEOUT_SECONDS = 600.0
_POLL_SECONDS = 0.002


def attempt_store(store: dist.Store, rank: int, world_size: int) -> dist.Store:
    """The part of the store that only the ranks of this attempt use; all of them call it."""
    with peer_errors():
        prefix = _draw_prefix(store, world_size) if rank == 0 else _ask_for_prefix(store, rank)
    return dist.PrefixStore(f"megalith/{prefix}", store)


def _draw_prefix(store: dist.Store, world_size: int) -> str:
    prefix = uuid.uuid4().hex
    missing = set(range(1, world_size))
    answered: dict[int, str] = {}
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while missing:
        for rank in sorted(missing):
            registered = f"megalith/token/{rank}"
            if store.check([registered]):
                token = store.get(registered).decode()
                if answered.get(rank) != token:
                    store.set(f"megalith/prefix/{token}", prefix)
                    answered[rank] = token
            if store.check([f"megalith/{prefix}/confirmed/{rank}"]):
                missing.discard(rank)
        if time.monotonic() > deadline:
            raise PeerLostError(f"timed out waiting for ranks {sorted(missing)}")
        time.sleep(_POLL_SECONDS)
    return prefix


def _ask_for_prefix(store: dist.Store, rank: int) -> str:
    token = uuid.uuid4().hex
    store.set(f"megalith/token/{rank}", token)
    answer = f"megalith/prefix/{token}"
    store.wait([answer], timedelta(seconds=_TIMEOUT_SECONDS))
    prefix = store.get(answer).decode()
    store.set(f"megalith/{prefix}/confirmed/{rank}", "yes")
    return prefix
