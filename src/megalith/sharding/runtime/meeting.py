"""How processes of one attempt find each other in a store that remembers earlier attempts.

torchrun keeps one store through all restarts, and gloo takes the first address that it finds there: after a
restart that may be of a process that is gone. So the processes of an attempt first agree on a name that
nobody has used, and put everything else under it. Counting restarts would not do: torchrun counts them on
each machine by itself.

Each rank says hello with a word of its own. The first answers every hello that it sees, old ones too, with
the name it has drawn, until every rank has said that name back.
"""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import torch.distributed as dist

_PATIENCE_SECONDS = 600.0
_PAUSE_SECONDS = 0.002


def meet(store: dist.Store, rank: int, world_size: int) -> dist.Store:
    """The part of the store that only the processes of this attempt use; all of them call it."""
    name = _first(store, world_size) if rank == 0 else _other(store, rank)
    return dist.PrefixStore(f"megalith/{name}", store)


def _first(store: dist.Store, world_size: int) -> str:
    name = uuid.uuid4().hex
    missing = set(range(1, world_size))
    answered: dict[int, str] = {}
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while missing:
        for rank in sorted(missing):
            hello = f"megalith/hello/{rank}"
            if store.check([hello]):
                word = store.get(hello).decode()
                if answered.get(rank) != word:
                    store.set(f"megalith/answer/{word}", name)
                    answered[rank] = word
            if store.check([f"megalith/{name}/here/{rank}"]):
                missing.discard(rank)
        if time.monotonic() > deadline:
            raise TimeoutError(f"ranks {sorted(missing)} have not come")
        time.sleep(_PAUSE_SECONDS)
    return name


def _other(store: dist.Store, rank: int) -> str:
    word = uuid.uuid4().hex
    store.set(f"megalith/hello/{rank}", word)
    answer = f"megalith/answer/{word}"
    store.wait([answer], timedelta(seconds=_PATIENCE_SECONDS))
    name = store.get(answer).decode()
    store.set(f"megalith/{name}/here/{rank}", "yes")
    return name
