"""`PeerLostError`: another rank was killed or has crashed.

gloo and the system word the end of a connection in many ways. A collective with right arguments fails for no
other reason, so whatever it raises becomes this error where it is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from megalith.core.errors import MegalithError


class PeerLostError(MegalithError):
    """Another rank was killed, has crashed or timed out; its own sentence, if it had one, says why."""


@contextmanager
def peer_errors() -> Iterator[None]:
    """Turns what a collective raises when another rank is gone into a PeerLostError."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise PeerLostError(f"another rank was killed or has crashed ({error})") from error
