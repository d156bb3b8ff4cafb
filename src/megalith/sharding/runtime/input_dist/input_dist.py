"""`InputDist`: every rank sends every worker the ids that it looks up, all of a batch in one message.

The sharded collection makes one and calls `send` and `receive`; a pipeline calls `send` a batch ahead. It
owns the all-to-all of ids.

Ranks of one host read each other's messages where they were written (`comm/all_to_all.py`). To other hosts a
message has a size that both ends know beforehand, since a receiver must name it: as large as the last one,
with room for a little more. Its header says how much of it counts; what did not fit follows as a message of
its own, so that one collective is enough from the second batch on and it can run while others compute.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from megalith.comm.all_to_all import AllToAll, PendingExchange
from megalith.comm.context import CommContext
from megalith.comm.peer_lost import peer_errors
from megalith.core.errors import ConfigError
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.runtime.input_dist.jagged_ids import (
    JaggedIds,
    ReceivedIds,
    RoutedIds,
    UniformOffsets,
    id_dtype,
)
from megalith.sharding.runtime.input_dist.message import WORD, InputMessage, InputMessageFormat
from megalith.sharding.runtime.input_dist.routing import IdRouter
from megalith.sharding.wire_format import HEADER_WORDS, WORD_BYTES, next_capacity

_MAX_PENDING = 2
"""Batches whose ids may travel at a time."""
_NUM_TAGS = 1 << 16
"""Tags by which what did not fit finds its message."""


@dataclass
class PendingInput:
    """The ids of a batch on their way. Made by `InputDist.send`, for its `receive`."""

    ids: JaggedIds
    own: RoutedIds
    """What this rank looks up itself."""
    number: int
    exchange: PendingExchange | None
    remainders: list[tuple[dist.Work, Tensor]]
    """What did not fit, on its way."""
    sizes: list[int]
    """Of the messages sent, in words, worker by worker."""


class InputDist:
    """The exchange of ids, as one rank takes part in it."""

    def __init__(
        self,
        layout: ExchangeLayout,
        rank: int,
        comm: CommContext | None,
        *,
        wide_ids: bool,
        deduplicate: bool,
    ) -> None:
        self._rank, self._comm = rank, comm
        self._world_size = layout.world_size
        self._num_features = len(layout.features)
        self._num_streams = len(layout.workers[rank].streams)
        self._router = IdRouter(layout)
        self._id_type = id_dtype(wide_ids)
        self._format = InputMessageFormat(self._num_streams, wide_ids=wide_ids, deduplicate=deduplicate)
        self._send_capacity = [HEADER_WORDS] * self._world_size
        self._receive_capacity = [HEADER_WORDS] * self._world_size
        self._send_capacity[rank] = self._receive_capacity[rank] = 0
        self._num_sent = self._num_received = 0
        self._all_to_all: AllToAll | None = None
        self._same_host = [False] * self._world_size
        if comm is not None:
            self._same_host = comm.peers.same_host
            # A local peer's oldest pending signal says what it had read before it began with that one.
            self._all_to_all = comm.all_to_all("indices", depth=2 * _MAX_PENDING)
        self._uniform_offsets = UniformOffsets()

    def send(
        self,
        values: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None = None,
        times: Tensor | None = None,
    ) -> PendingInput:
        """Starts the exchange of a batch and returns; ids must have been checked.

        `times`, int64 [batch], go to every worker: each of them has to know the latest.
        """
        if self._num_sent - self._num_received == _MAX_PENDING:
            raise ConfigError(
                f"The ids of {_MAX_PENDING} batches are on their way; receive the first before sending more."
            )
        ids = self._jagged(values, offsets, sample_weights, times)
        routed = self._router(ids)
        self._num_sent += 1
        pending = PendingInput(ids, routed[self._rank], self._num_sent, None, [], [0] * self._world_size)
        if self._all_to_all is not None:
            messages = [
                self._format.pack(ids, given) if worker != self._rank else []
                for worker, given in enumerate(routed)
            ]
            self._start(self._all_to_all, messages, pending)
        return pending

    def receive(self, pending: PendingInput) -> ReceivedIds:
        """Waits for the exchange and puts together what this worker looks up."""
        messages = self._messages(pending)
        self._num_received += 1
        if len({message.weight_flag for message in messages}) > 1:
            raise ConfigError(
                "Some ranks give sample weights, or want a gradient of them, and others do not; pass them "
                "alike on all ranks, also with an empty batch."
            )
        times = [message.times for message in messages if message.times is not None]
        if times and len(times) < len(messages):
            raise ConfigError(
                "Some ranks give event times and others do not; pass them alike on all ranks, also with an "
                "empty batch."
            )
        all_times = torch.cat(times) if times else None
        batches = [message.batch for message in messages]
        own = pending.ids
        if not self._num_streams:
            empty = torch.zeros(0, dtype=self._id_type)
            return ReceivedIds(empty, torch.zeros(1, dtype=torch.int64), None, batches, own, all_times)
        if len(messages) == 1:
            values = torch.cat(messages[0].values)
        else:
            streams = zip(*(message.values for message in messages), strict=True)
            values = torch.cat([part for parts in streams for part in parts])
        weights = None
        if own.sample_weights is not None:
            given = zip(*(message.sample_weights for message in messages), strict=True)
            weights = torch.cat([part for parts in given for part in parts])
        return ReceivedIds(values, self._offsets(messages), weights, batches, own, all_times)

    def _jagged(
        self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None, times: Tensor | None
    ) -> JaggedIds:
        num_bags = len(offsets) - 1
        uniform_length = -1
        if num_bags and len(values) % num_bags == 0:
            length = len(values) // num_bags
            if torch.equal(offsets, self._uniform_offsets(num_bags, length)):
                uniform_length = length
        batch = num_bags // self._num_features
        return JaggedIds(values.to(self._id_type), offsets, sample_weights, batch, uniform_length, times)

    def _offsets(self, messages: list[InputMessage]) -> Tensor:
        """Of the bags of all ranks, stream by stream."""
        uniform = {message.uniform_length for message in messages if message.batch}
        if len(uniform) <= 1 and -1 not in uniform:
            num_bags = self._num_streams * sum(message.batch for message in messages)
            return self._uniform_offsets(num_bags, max(uniform, default=0))
        lengths = torch.cat([self._format.lengths(message) for message in messages], dim=1)
        offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int64)
        torch.cumsum(lengths.view(-1), 0, dtype=torch.int64, out=offsets[1:])
        return offsets

    def _start(self, all_to_all: AllToAll, messages: list[list[Tensor]], pending: PendingInput) -> None:
        """Writes the messages of all workers and sends them."""
        pending.sizes = [sum(part.numel() for part in parts) for parts in messages]
        capacities = [
            size if same_host else capacity
            for same_host, size, capacity in zip(
                self._same_host, pending.sizes, self._send_capacity, strict=True
            )
        ]
        buffers = all_to_all.buffers([WORD_BYTES * capacity for capacity in capacities])
        for worker, (parts, buffer) in enumerate(zip(messages, buffers, strict=True)):
            if not parts:
                continue
            words, size, capacity = buffer.view(WORD), pending.sizes[worker], capacities[worker]
            if size <= capacity:
                torch.cat(parts, out=words[:size])
            else:
                whole = torch.cat(parts)
                words.copy_(whole[:capacity])
                pending.remainders.append((self._send_remainder(whole[capacity:], worker), whole))
        pending.exchange = all_to_all.start([WORD_BYTES * capacity for capacity in self._receive_capacity])

    def _send_remainder(self, remainder: Tensor, worker: int) -> dist.Work:
        assert self._comm is not None
        self._comm.traffic.count("indices", remainder.numel() * remainder.element_size())
        tag = self._num_sent % _NUM_TAGS
        with peer_errors():
            work = dist.isend(remainder, group=self._comm.group, tag=tag, group_dst=worker)
        assert work is not None
        return work

    def _messages(self, pending: PendingInput) -> list[InputMessage]:
        """Waits for what every rank has for this worker."""
        own = self._format.unsent(pending.ids, pending.own)
        if self._all_to_all is None or pending.exchange is None:
            return [own]
        arrived = [message.view(WORD) for message in self._all_to_all.wait(pending.exchange)]
        headers = [message[:HEADER_WORDS].tolist() for message in arrived]
        receives: list[dist.Work] = []
        for rank, header in enumerate(headers):
            if rank == self._rank or self._same_host[rank]:
                continue
            size, capacity = self._format.num_words(header), len(arrived[rank])
            if size > capacity:
                whole = torch.empty(size, dtype=WORD)
                whole[:capacity] = arrived[rank]
                receives.append(self._receive_remainder(whole[capacity:], rank, pending.number))
                arrived[rank] = whole
            self._receive_capacity[rank] = next_capacity(self._receive_capacity[rank], size)
            self._send_capacity[rank] = next_capacity(self._send_capacity[rank], pending.sizes[rank])
        with peer_errors():
            for work in (*receives, *(work for work, _ in pending.remainders)):
                work.wait()
        return [
            own if rank == self._rank else self._format.unpack(header, arrived[rank])
            for rank, header in enumerate(headers)
        ]

    def _receive_remainder(self, remainder: Tensor, rank: int, number: int) -> dist.Work:
        assert self._comm is not None
        with peer_errors():
            work = dist.irecv(remainder, group=self._comm.group, tag=number % _NUM_TAGS, group_src=rank)
        assert work is not None
        return work
