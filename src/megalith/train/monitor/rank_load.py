"""What each rank carries: how long it waited, and for whom; ids it looked up; bytes it holds and sends."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megalith.comm.all_to_all import WAIT_FOR
from megalith.core.trace_totals import SpanTotals
from megalith.embeddings.stores.base import StoreBytes
from megalith.sharding.runtime.collection import ShardedEmbeddingCollection
from megalith.train.learner.lookup_model import Tables


@dataclass(frozen=True, slots=True)
class RankLoad:
    """One rank since the last report; bytes are those at its moment."""

    data_wait_seconds: float
    """For the next batch."""
    rank_wait_seconds: float
    """For other ranks, on the thread that computes; 0 where the run keeps no trace."""
    lookups: int
    """Ids whose rows were looked up here, for all ranks."""
    sent_bytes: int
    table_bytes: StoreBytes
    resident_bytes: int | None
    """Memory of the whole process."""

    def to_dict(self) -> dict[str, Any]:
        """As metrics.jsonl has it."""
        return {
            "data_wait_seconds": round(self.data_wait_seconds, 4),
            "rank_wait_seconds": round(self.rank_wait_seconds, 4),
            "lookups": self.lookups,
            "sent_bytes": self.sent_bytes,
            "table_bytes": {name: taken for name, taken in asdict(self.table_bytes).items() if taken},
            "resident_bytes": self.resident_bytes,
        }


class LoadMeter:
    """Adds up on one rank what a `RankLoad` says."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._data_wait, self._lookups = 0.0, 0
        self._rank_wait, self._sent = 0.0, 0

    def add(self, waited: float, ids: Any) -> None:
        """A step: seconds of waiting for its batch, and the ids that the exchange brought."""
        values = ids[0]
        self._data_wait += waited
        self._lookups += int(values.numel())

    def take(self, totals: SpanTotals) -> RankLoad:
        """Since the last call; `totals` are those of the trace so far."""
        own = totals.own.get("loop", {})
        waited = sum(seconds for name, seconds in own.items() if name.startswith(WAIT_FOR))
        sent = self._tables.traffic.total_bytes if isinstance(self._tables, ShardedEmbeddingCollection) else 0
        load = RankLoad(
            self._data_wait,
            # Totals of a trace that is written on begin with those of earlier starts.
            waited - self._rank_wait,
            self._lookups,
            sent - self._sent,
            self._tables.bytes(),
            resident_bytes(),
        )
        self._data_wait, self._lookups = 0.0, 0
        self._rank_wait, self._sent = waited, sent
        return load

    def begin(self, totals: SpanTotals) -> None:
        """Leaves out what earlier starts waited."""
        self.take(totals)


def resident_bytes() -> int | None:
    """Memory of this process; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
