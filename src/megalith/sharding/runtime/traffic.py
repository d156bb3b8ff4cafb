"""Bytes on the wire: what this process has sent to others, collective by collective.

What processes of one machine hand each other in shared memory counts as if it had been sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor


class Traffic:
    """Counts messages; what a process keeps for itself does not travel and does not count."""

    def __init__(self) -> None:
        self.sent_bytes: Counter[str] = Counter()
        """By what was sent: indices, vectors, gradients, ..."""
        self.calls: Counter[str] = Counter()

    @property
    def total_bytes(self) -> int:
        return sum(self.sent_bytes.values())

    def reset(self) -> None:
        self.sent_bytes.clear()
        self.calls.clear()

    def count(self, name: str, num_bytes: int) -> None:
        self.sent_bytes[name] += num_bytes
        self.calls[name] += 1

    def all_to_all(
        self,
        name: str,
        received: Tensor,
        sent: Tensor,
        received_sizes: Sequence[int],
        sent_sizes: Sequence[int],
        group: dist.ProcessGroup,
        kept_bytes: int = 0,
    ) -> dist.Work:
        """Starts an all-to-all of flat buffers, counts it, and returns at once; `kept_bytes` go to itself."""
        self.count(name, sent.numel() * sent.element_size() - kept_bytes)
        work: dist.Work = dist.all_to_all_single(
            received, sent, list(received_sizes), list(sent_sizes), group=group, async_op=True
        )
        return work
