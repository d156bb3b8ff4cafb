"""A process of a training job: it joins the group, and leaves it so that no rank is left waiting.

Under torchrun an error on one rank ends all: that rank prints its one sentence and exits with 2; the others
find their connections closed and end too, silently if the cause was printed. torchrun then starts all of them
again if it may (--max-restarts), and they resume from the last checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

import torch.distributed as dist

from megalith.comm import process_group
from megalith.comm.peer_lost import PeerLostError
from megalith.comm.ranks import Ranks
from megalith.core.errors import MegalithError, sentence_of, without_controls

_ACCEPTED = "megalith/accepted"
# What ranks have said: a sentence of any kind, and one that names a cause. That a peer is lost is not worth
# saying after either, but must not keep a slower rank from naming the cause.
_ANY_SENTENCE, _CAUSE = "any", "cause"


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


@contextmanager
def errors_before_sigterm(ranks: Ranks) -> Iterator[None]:
    """Lets a rank that has met an error say so: as soon as one rank is lost torchrun sends SIGTERM to the
    others, of which some are about to name the cause. For the main thread of a session."""
    if ranks.world_size == 1 or threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, _end_unless_in_error)
    # Not put back after an error: the session ends this process.
    yield
    signal.signal(signal.SIGTERM, previous)


def _end_unless_in_error(number: int, _: FrameType | None) -> None:
    if sys.exception() is None:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _leave(ranks: Ranks, error: BaseException) -> NoReturn:
    """Ends this process at once: threads and groups that wait for others would keep it."""
    code = 2
    if os.environ.get("MEGALITH_DEBUG"):
        traceback.print_exc()
    elif isinstance(error, PeerLostError):
        # A second later than what it follows from: torchrun shows the first as the cause.
        _tell_torchrun("another rank has ended", seconds_later=1)
        if _is_first(_ANY_SENTENCE):
            _say(f"rank {ranks.rank} stops because another rank was killed or has crashed.")
    elif isinstance(error, MegalithError):
        _tell_torchrun(str(error))
        _say_if_first(str(error))
    elif isinstance(error, KeyboardInterrupt):
        code = 130
    elif sentence := sentence_of(error):
        _tell_torchrun(sentence)
        _say_if_first(sentence)
    else:
        _tell_torchrun(traceback.format_exc())
        _is_first(_ANY_SENTENCE)
        _is_first(_CAUSE)
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


def _say_if_first(sentence: str) -> None:
    """Most mistakes are found by all ranks alike, and a full disk by some with different files: one tells."""
    _is_first(_ANY_SENTENCE)
    if _is_first(_CAUSE):
        _say(sentence)


def _is_first(what: str) -> bool:
    """Whether no other rank of this attempt has asked before."""
    try:
        store = dist.distributed_c10d._get_default_store()
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return bool(store.add(f"megalith/said/{attempt}/{what}", 1) == 1)
    except Exception:
        # The store is gone with the process that kept it; better twice than never.
        return True
