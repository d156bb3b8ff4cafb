"""A training process among others: joins them, and leaves so that none is left waiting.

Under torchrun an error on one rank ends all: that rank says its one sentence and exits with 2; the others
find their connections closed and end too, without a word if the cause was said. torchrun then starts all of
them again if it may (--max-restarts), and they go on from the last checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch.distributed as dist

from megalith.comm import process_group
from megalith.comm.peer_lost import PeerLostError
from megalith.comm.ranks import Ranks
from megalith.core.errors import MegalithError, sentence_of, without_controls

_ACCEPTED = "megalith/accepted"
# Of whatever was said first: the other ranks ended because of it.
_CAUSE = "cause"


class Session(NamedTuple):
    """What a process knows of its start."""

    ranks: Ranks
    restarted: bool
    """Whether torchrun has started it again after a rank was lost, and the run in its folder is the one that
    it was started for: not one that the first attempt refused to touch."""

    def accept(self) -> None:
        """Says that the run's folder is ours, to ranks that may be started again later."""
        store = _torchrun_store()
        if store is not None and self.ranks.is_first:
            store.set(_ACCEPTED, "yes")


@contextmanager
def training_session() -> Iterator[Session]:
    """The ranks that torchrun started, or one process alone."""
    process_group.join()
    ranks = Ranks.all()
    store = _torchrun_store()
    attempts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    restarted = attempts > 0 and store is not None and store.check([_ACCEPTED])
    try:
        yield Session(ranks, restarted)
        # Leaving while another rank still talks would look like a failure to it.
        ranks.from_each(lambda: None)
    except SystemExit:
        raise
    except BaseException as error:
        if ranks.world_size > 1:
            _leave(ranks, error)
        raise
    process_group.leave()


def _leave(ranks: Ranks, error: BaseException) -> NoReturn:
    """Ends this process at once: threads and groups that wait for others would keep it."""
    code = 2
    if os.environ.get("MEGALITH_DEBUG"):
        traceback.print_exc()
    elif isinstance(error, PeerLostError):
        # A second later than what it follows from: torchrun shows the first as the cause.
        _tell_torchrun("another rank has ended", seconds_later=1)
        if _is_first_to_say(_CAUSE):
            _say(f"rank {ranks.rank} stops because another rank was killed or has crashed.")
    elif isinstance(error, MegalithError):
        _tell_torchrun(str(error))
        if _is_first_to_say(str(error)):
            _say(str(error))
    elif isinstance(error, KeyboardInterrupt):
        code = 130
    elif sentence := sentence_of(error):
        _tell_torchrun(sentence)
        if _is_first_to_say(sentence):
            _say(sentence)
    else:
        _tell_torchrun(traceback.format_exc())
        _is_first_to_say(_CAUSE)
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _say(sentence: str) -> None:
    # In one write, so that sentences of two ranks do not mix.
    sys.stderr.write(f"megalith: {without_controls(sentence)}\n")


def _tell_torchrun(message: str, seconds_later: int = 0) -> None:
    """Leaves the message where torchrun looks for it, to be shown as the cause of its own failure."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        # As torch's own `record` writes it, but for the traceback.
        extra = {"timestamp": str(int(time.time()) + seconds_later)}
        with suppress(OSError):
            Path(path).write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))


def _torchrun_store() -> dist.Store | None:
    """The store that torchrun keeps through restarts, below the part of it that this attempt uses."""
    if not dist.is_initialized() or "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    store: dist.Store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def _is_first_to_say(sentence: str) -> bool:
    """Most mistakes are found by all ranks alike, and others follow from one: one rank tells."""
    try:
        store = dist.distributed_c10d._get_default_store()
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        causes = store.add(f"megalith/said/{attempt}/{_CAUSE}", 1)
        if sentence == _CAUSE:
            return bool(causes == 1)
        key = hashlib.sha256(sentence.encode()).hexdigest()[:16]
        return bool(store.add(f"megalith/said/{attempt}/{key}", 1) == 1)
    except Exception:
        # The store is gone with the process that kept it; better twice than never.
        return True
