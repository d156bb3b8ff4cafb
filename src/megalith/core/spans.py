"""Spans of code that is handed no tracer: exchanges, kernels, stores, readers.

    with tracing(tracer):            # whoever runs a job says where its spans go
        ...
        with span("update rows"):    # anywhere below, on any thread
            ...

Without a tracer a span costs a call and writes nothing. There is one tracer for the process, not for a
thread: a reader's span belongs in the trace of the run that it reads for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from megalith.core.trace import Tracer

_NOTHING = nullcontext()
_tracers: list[Tracer] = []


@contextmanager
def tracing(tracer: Tracer) -> Iterator[None]:
    """Spans of the block, on all threads, go to `tracer`."""
    _tracers.append(tracer)
    try:
        yield
    finally:
        _tracers.remove(tracer)


def span(name: str, **attributes: Any) -> AbstractContextManager[None]:
    """Times the block it is used around, if anybody traces."""
    return _tracers[-1].span(name, **attributes) if _tracers else _NOTHING
