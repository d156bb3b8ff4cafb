"""One training step on one rank: the operations of a schedule in their order, with transfers beside them.

Receives of the whole step are posted before it starts and sends do not block, so that a transfer takes
place while the rank computes, exactly where the schedule lets it. All ranks start at one agreed moment of
the machine's clock, which they share.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from exchange import Exchange
from model import Chunk, Shape
from torch import Tensor

Operation = tuple[str, int, int]
"""Kind (F, B, W, BW), chunk of this rank, micro-batch."""


@dataclass(slots=True)
class RankStep:
    """What one rank does in a step. `placement` gives the rank of each virtual stage, in the order data
    visits them; `order` names the chunks of this rank by their turn among its virtual stages."""

    shape: Shape
    placement: Sequence[int]
    order: Sequence[Operation]
    chunks: Sequence[Chunk]
    exchanges: Mapping[int, Exchange]
    """Gradient exchange of a chunk."""
    overlap: bool
    """Exchanges start when their chunk's gradients are complete, not after all operations."""
    margin_seconds: float
    """From naming the start of a step to that start."""
    _receives: dict[tuple[str, int, int], tuple[Any, Tensor]] = field(default_factory=dict)
    _local: dict[tuple[str, int, int], Tensor] = field(default_factory=dict)
    _sends: list[tuple[Any, Tensor]] = field(default_factory=list)
    _computed: float = 0.0

    def run(self) -> tuple[float, float, float]:
        """When the step began for all ranks and when this one was done, in seconds of the machine's clock,
        and how long it computed."""
        self._computed = 0.0
        self._post_receives()
        for exchange in self.exchanges.values():
            exchange.post()
        start = _wait_for_common_start(self.margin_seconds)
        self._run_operations()
        for chunk in self.chunks:
            chunk.update()
        end = time.monotonic()
        for send, _ in self._sends:
            send.wait()
        self._sends.clear()
        return start, end, self._computed

    def _run_operations(self) -> None:
        waiting: SimpleQueue[Exchange | None] = SimpleQueue()
        worker = threading.Thread(target=_run_exchanges, args=(waiting,))
        worker.start()
        left = Counter(chunk for kind, chunk, _ in self.order if kind in ("W", "BW"))
        for kind, chunk, micro_batch in self.order:
            self._run_operation(kind, chunk, micro_batch)
            if kind in ("W", "BW"):
                left[chunk] -= 1
                if not left[chunk] and self.overlap and chunk in self.exchanges:
                    waiting.put(self.exchanges[chunk])
        if not self.overlap:
            # In the order in which their gradients became complete: last layers first.
            for chunk in sorted(self.exchanges, reverse=True):
                waiting.put(self.exchanges[chunk])
        waiting.put(None)
        worker.join()

    def _run_operation(self, kind: str, chunk: int, micro_batch: int) -> None:
        stage = self._stages[chunk]
        if kind == "F":
            received = None if stage == 0 else self._take("F", stage, micro_batch)
            began = time.monotonic()
            out = self.chunks[chunk].forward(micro_batch, received)
            self._computed += time.monotonic() - began
            if stage + 1 < len(self.placement):
                self._send_to("F", stage + 1, micro_batch, out)
        elif kind in ("B", "BW"):
            last = stage + 1 == len(self.placement)
            received = None if last else self._take("B", stage, micro_batch)
            began = time.monotonic()
            gradient = self.chunks[chunk].backward(micro_batch, received, weights=kind == "BW")
            self._computed += time.monotonic() - began
            if gradient is not None:
                self._send_to("B", stage - 1, micro_batch, gradient)
        else:
            began = time.monotonic()
            self.chunks[chunk].backward_weights(micro_batch)
            self._computed += time.monotonic() - began

    def _post_receives(self) -> None:
        """In the order in which this rank will want them."""
        for kind, chunk, micro_batch in self.order:
            stage = self._stages[chunk]
            source = stage - 1 if kind == "F" else stage + 1
            inside = 0 <= source < len(self.placement) and kind != "W"
            if inside and self.placement[source] != dist.get_rank():
                direction = "F" if kind == "F" else "B"
                buffer = self.shape.activation()
                tag = self._tag(direction, stage, micro_batch)
                receive = dist.irecv(buffer, self.placement[source], tag=tag)
                self._receives[direction, stage, micro_batch] = receive, buffer

    def _take(self, direction: str, stage: int, micro_batch: int) -> Tensor:
        """What comes from the stage before (F) or behind (B)."""
        key = direction, stage, micro_batch
        if key in self._local:
            return self._local.pop(key)
        receive, buffer = self._receives.pop(key)
        receive.wait()
        return buffer

    def _send_to(self, direction: str, stage: int, micro_batch: int, tensor: Tensor) -> None:
        if self.placement[stage] == dist.get_rank():
            self._local[direction, stage, micro_batch] = tensor
            return
        tensor = tensor.contiguous()
        tag = self._tag(direction, stage, micro_batch)
        # The tensor is kept with its send: gloo reads it until the send is done.
        self._sends.append((dist.isend(tensor, self.placement[stage], tag=tag), tensor))

    @property
    def _stages(self) -> list[int]:
        """Virtual stages of this rank's chunks."""
        return [stage for stage, rank in enumerate(self.placement) if rank == dist.get_rank()]

    def _tag(self, direction: str, stage: int, micro_batch: int) -> int:
        micro_batches = 1 + max(micro_batch for _, _, micro_batch in self.order)
        return ((direction == "B") * len(self.placement) + stage) * micro_batches + micro_batch


def _run_exchanges(waiting: SimpleQueue[Exchange | None]) -> None:
    """One after the other, as on a communication stream."""
    while (exchange := waiting.get()) is not None:
        exchange.run()


def _wait_for_common_start(margin_seconds: float) -> float:
    """A moment that rank 0 names, far enough ahead for everyone to hear of it and for posted receives to be
    known at the other end."""
    dist.barrier()
    start = torch.tensor([time.monotonic() + margin_seconds], dtype=torch.float64)
    dist.broadcast(start, 0)
    moment = float(start)
    time.sleep(max(0.0, moment - time.monotonic() - 0.001))
    while time.monotonic() < moment:
        pass
    return moment
