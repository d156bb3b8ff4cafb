"""The index exchange: every rank sends every worker the ids of its streams, lengths and all in one message.

Ranks of one host read each other's messages where they were written (`comm/all_to_all.py`). To other hosts a
message has a size that both ends know beforehand, since a receiver must name it: as large as the last one,
with room for a little more. Its head says how much of it counts; what did not fit follows as a message of
its own, so that one collective is enough from the second batch on and it can run while others compute.

    head      batch, ids of every bag (-1: they differ), number of ids, number of distinct ids (-1: all are
              there), whether sample weights follow (1) and want a gradient (2)
    lengths   [streams, batch], left out where every bag has as many ids
    ids       stream by stream; deduplicated, the distinct ones, then the position of every id among them
    weights   of samples
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from megalith.comm.all_to_all import AllToAll, PendingExchange
from megalith.comm.context import CommContext
from megalith.comm.peer_lost import peer_errors
from megalith.core.errors import ConfigError
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.runtime.input_dist.routing import Bags, Outgoing, Router
from megalith.sharding.wire_format import (
    HEAD_UNITS,
    MAX_NARROW_DISTINCT,
    UNIT_BYTES,
    next_room,
    position_units,
)

_UNIT = torch.int32
_UNDER_WAY = 2
"""Batches whose ids may travel at a time."""


@dataclass
class PendingInput:
    """An exchange under way."""

    bags: Bags
    own: Outgoing
    number: int
    pending: PendingExchange | None
    late: list[tuple[dist.Work, Tensor]]
    """What did not fit, on its way."""
    sizes: list[int]
    """Of the messages sent, worker by worker."""


class Received(NamedTuple):
    """What this worker looks up, over the samples of all ranks, and what its own rank asked for."""

    values: Tensor
    offsets: Tensor
    sample_weights: Tensor | None
    batches: list[int]
    """Samples of each rank."""
    own: Bags


class _Message(NamedTuple):
    batch: int
    uniform: int
    lengths: Tensor | None
    """int32 [streams, batch]"""
    values: list[Tensor]
    sample_weights: list[Tensor]
    weighted: int


class InputDist:
    """The part of one rank. Made by the sharded collection; a pipeline may call it a batch ahead."""

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
        self._router = Router(layout)
        self._id_type = torch.int64 if wide_ids else torch.int32
        self._id_units = 2 if wide_ids else 1
        self._deduplicate = deduplicate
        self._room_out = [HEAD_UNITS] * self._world_size
        self._room_in = [HEAD_UNITS] * self._world_size
        self._room_out[rank] = self._room_in[rank] = 0
        self._number = self._num_received = 0
        self._all_to_all: AllToAll | None = None
        self._same_host = [False] * self._world_size
        if comm is not None:
            self._same_host = comm.peers.same_host
            # A local peer's oldest signal under way says what it had read before it began with that one.
            self._all_to_all = comm.all_to_all("indices", depth=2 * _UNDER_WAY)
        self._ladder = torch.zeros(1, dtype=torch.int64)
        self._ladder_step = 1

    def send(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> PendingInput:
        """Starts the exchange of a batch and returns; ids must have been checked."""
        if self._number - self._num_received == _UNDER_WAY:
            raise ConfigError(
                f"The ids of {_UNDER_WAY} batches are on their way; receive the first before sending more."
            )
        bags = self._bags(values, offsets, sample_weights)
        outgoing = self._router(bags)
        self._number += 1
        late: list[tuple[dist.Work, Tensor]] = []
        sizes = [0] * self._world_size
        pending = None
        if self._all_to_all is not None:
            messages = [
                self._parts(bags, one) if worker != self._rank else [] for worker, one in enumerate(outgoing)
            ]
            sizes = [sum(part.numel() for part in parts) for parts in messages]
            rooms = [
                size if same_host else room
                for same_host, size, room in zip(self._same_host, sizes, self._room_out, strict=True)
            ]
            buffers = self._all_to_all.buffers([UNIT_BYTES * room for room in rooms])
            for worker, (parts, buffer) in enumerate(zip(messages, buffers, strict=True)):
                if not parts:
                    continue
                units, size, room = buffer.view(_UNIT), sizes[worker], rooms[worker]
                if size <= room:
                    torch.cat(parts, out=units[:size])
                else:
                    whole = torch.cat(parts)
                    units.copy_(whole[:room])
                    late.append((self._send_rest(whole[room:], worker), whole))
            pending = self._all_to_all.start([UNIT_BYTES * room for room in self._room_in])
        return PendingInput(bags, outgoing[self._rank], self._number, pending, late, sizes)

    def receive(self, sent: PendingInput) -> Received:
        """Waits for the exchange and puts together what this worker looks up."""
        messages = self._messages(sent)
        self._num_received += 1
        if len({message.weighted for message in messages}) > 1:
            raise ConfigError(
                "Some ranks give sample weights, or want a gradient of them, and others do not; pass them "
                "alike on all ranks, also with an empty batch."
            )
        batches = [message.batch for message in messages]
        own = sent.bags
        if not self._num_streams:
            empty = torch.zeros(0, dtype=self._id_type)
            return Received(empty, torch.zeros(1, dtype=torch.int64), None, batches, own)
        uniform = {message.uniform for message in messages if message.batch}
        if len(uniform) <= 1 and -1 not in uniform:
            offsets = self._steps(self._num_streams * sum(batches), max(uniform, default=0))
        else:
            lengths = torch.cat([self._lengths(message) for message in messages], dim=1)
            offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int64)
            torch.cumsum(lengths.view(-1), 0, dtype=torch.int64, out=offsets[1:])
        if len(messages) == 1:
            values = torch.cat(messages[0].values)
        else:
            streams = zip(*(message.values for message in messages), strict=True)
            values = torch.cat([part for parts in streams for part in parts])
        weights = None
        if own.sample_weights is not None:
            given = zip(*(message.sample_weights for message in messages), strict=True)
            weights = torch.cat([part for parts in given for part in parts])
        return Received(values, offsets, weights, batches, own)

    def _bags(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None) -> Bags:
        num_bags = len(offsets) - 1
        uniform = -1
        if num_bags and len(values) % num_bags == 0:
            step = len(values) // num_bags
            if torch.equal(offsets, self._steps(num_bags, step)):
                uniform = step
        batch = num_bags // self._num_features
        return Bags(values.to(self._id_type), offsets, sample_weights, batch, uniform)

    def _steps(self, num_bags: int, step: int) -> Tensor:
        """0, step, 2 * step, ...: the offsets of bags of one length; kept, since batches tend to be alike."""
        if step != self._ladder_step or num_bags >= len(self._ladder):
            self._ladder, self._ladder_step = torch.arange(num_bags + 1) * step, step
        return self._ladder[: num_bags + 1]

    def _parts(self, bags: Bags, outgoing: Outgoing) -> list[Tensor]:
        """A message, in pieces."""
        uniform = -1 if outgoing.lengths or not outgoing.values else bags.uniform
        num_values = sum(part.numel() for part in outgoing.values)
        ids, num_distinct = outgoing.values, -1
        if self._deduplicate and num_values:
            ids, num_distinct = self._distinct(outgoing.values, num_values)
        if self._id_units == 2:
            ids = [part if part.dtype == _UNIT else part.contiguous().view(_UNIT) for part in ids]
        head = torch.tensor([bags.batch, uniform, num_values, num_distinct, _weighted(bags)], dtype=_UNIT)
        weights = [part.view(_UNIT) for part in outgoing.sample_weights]
        return [head, *outgoing.lengths, *ids, *weights]

    def _distinct(self, values: list[Tensor], num_values: int) -> tuple[list[Tensor], int]:
        """Each id of a stream once, and every id's position among them; or all ids, where that is less."""
        distinct, positions = _distinct_by_stream(values)
        units = position_units(num_values, len(distinct))
        if len(distinct) * self._id_units + units >= num_values * self._id_units:
            return values, -1
        positions = positions.to(_position_type(len(distinct)))
        if positions.dtype == torch.int16 and len(positions) % 2:
            positions = torch.cat([positions, positions.new_zeros(1)])
        return [distinct.to(self._id_type), positions.view(_UNIT)], len(distinct)

    def _send_rest(self, rest: Tensor, worker: int) -> dist.Work:
        assert self._comm is not None
        self._comm.traffic.count("indices", rest.numel() * rest.element_size())
        with peer_errors():
            work = dist.isend(rest, group=self._comm.group, tag=self._number & 0xFFFF, group_dst=worker)
        assert work is not None
        return work

    def _messages(self, sent: PendingInput) -> list[_Message]:
        if self._comm is None or self._all_to_all is None or sent.pending is None:
            return [self._own(sent)]
        whole = [one.view(_UNIT) for one in self._all_to_all.wait(sent.pending)]
        heads = [one[:HEAD_UNITS].tolist() for one in whole]
        rests: list[dist.Work] = []
        for rank, head in enumerate(heads):
            if rank == self._rank or self._same_host[rank]:
                continue
            size, room = self._size(head), len(whole[rank])
            if size > room:
                joined = torch.empty(size, dtype=_UNIT)
                joined[:room] = whole[rank]
                tag = sent.number & 0xFFFF
                with peer_errors():
                    work = dist.irecv(joined[room:], group=self._comm.group, tag=tag, group_src=rank)
                assert work is not None
                rests.append(work)
                whole[rank] = joined
            self._room_in[rank] = next_room(self._room_in[rank], size)
            self._room_out[rank] = next_room(self._room_out[rank], sent.sizes[rank])
        with peer_errors():
            for work in (*rests, *(work for work, _ in sent.late)):
                work.wait()
        return [
            self._own(sent) if rank == self._rank else self._parse(head, whole[rank])
            for rank, head in enumerate(heads)
        ]

    def _size(self, head: list[int]) -> int:
        batch, uniform, num_values, num_distinct, weighted = head
        lengths = self._num_streams * batch if uniform < 0 else 0
        ids = num_values * self._id_units
        if num_distinct >= 0:
            ids = num_distinct * self._id_units + position_units(num_values, num_distinct)
        return HEAD_UNITS + lengths + ids + num_values * bool(weighted)

    def _parse(self, head: list[int], message: Tensor) -> _Message:
        batch, uniform, num_values, num_distinct, weighted = head
        lengths, at = None, HEAD_UNITS
        if uniform < 0:
            lengths = message[at : at + self._num_streams * batch].view(self._num_streams, batch)
            at += lengths.numel()
            sizes = lengths.sum(1).tolist()
        else:
            sizes = [uniform * batch] * self._num_streams
        if num_distinct >= 0:
            distinct = self._ids(message[at : at + num_distinct * self._id_units])
            at += num_distinct * self._id_units
            units = position_units(num_values, num_distinct)
            positions = message[at : at + units].view(_position_type(num_distinct))[:num_values].long()
            # Positions of two bytes are read with a sign.
            narrow = num_distinct <= MAX_NARROW_DISTINCT
            values = distinct.index_select(0, positions & 0xFFFF if narrow else positions)
            at += units
        else:
            values = self._ids(message[at : at + num_values * self._id_units])
            at += num_values * self._id_units
        weights: tuple[Tensor, ...] = ()
        if weighted:
            weights = message[at : at + num_values].view(torch.float32).split(sizes)
        return _Message(batch, uniform, lengths, list(values.split(sizes)), list(weights), weighted)

    def _ids(self, units: Tensor) -> Tensor:
        return units if self._id_units == 1 else units.clone().view(torch.int64)

    def _own(self, sent: PendingInput) -> _Message:
        lengths = torch.stack(sent.own.lengths) if sent.own.lengths else None
        uniform = -1 if lengths is not None or not self._num_streams else sent.bags.uniform
        own, weighted = sent.own, _weighted(sent.bags)
        return _Message(sent.bags.batch, uniform, lengths, own.values, own.sample_weights, weighted)

    def _lengths(self, message: _Message) -> Tensor:
        if message.lengths is not None:
            return message.lengths
        return torch.full((self._num_streams, message.batch), message.uniform, dtype=torch.int32)


def _weighted(bags: Bags) -> int:
    return 0 if bags.sample_weights is None else 1 + bags.sample_weights.requires_grad


def _position_type(num_distinct: int) -> torch.dtype:
    return torch.int16 if num_distinct <= MAX_NARROW_DISTINCT else torch.int32


def _distinct_by_stream(values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The distinct ids of each stream, stream by stream, and every id's position among all of them."""
    ids = torch.cat(values).long()
    span = int(ids.max()) + 1
    if span <= torch.iinfo(torch.int64).max // len(values):
        # One search for all streams, each in a range of keys of its own.
        sizes = torch.tensor([part.numel() for part in values])
        keys = ids + torch.repeat_interleave(torch.arange(len(values)) * span, sizes)
        distinct, positions = torch.unique(keys, return_inverse=True)
        return distinct.remainder(span), positions
    found = [torch.unique(part.long(), return_inverse=True) for part in values]
    starts = [0, *itertools.accumulate(len(distinct) for distinct, _ in found)]
    return (
        torch.cat([distinct for distinct, _ in found]),
        torch.cat([positions + start for (_, positions), start in zip(found, starts, strict=False)]),
    )
