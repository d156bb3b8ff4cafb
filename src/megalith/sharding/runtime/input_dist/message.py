"""The message of ids from one rank to one worker: packed into words of 32 bits, and read again.

header    batch, ids of every bag (-1: they differ), number of ids, number of distinct ids (-1: all are
          there), whether sample weights follow (1) and want a gradient (2), and event times (4)
lengths   [streams, batch], left out where every bag has as many ids
ids       stream by stream; deduplicated, the distinct ones, then the position of every id among them
weights   of samples
times     of samples, 64 bits each, where ids expire by them
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.sharding.runtime.input_dist.jagged_ids import JaggedIds, RoutedIds, id_dtype
from megalith.sharding.wire_format import (
    HEADER_WORDS,
    TIME_BYTES,
    WORD_BYTES,
    has_narrow_positions,
    position_words,
)

WORD = torch.int32
_TIMES_FLAG, _TIME_WORDS = 4, TIME_BYTES // WORD_BYTES
_NARROW_MASK = 0xFFFF
"""Positions of two bytes are read with a sign; this takes it away."""


class InputMessage(NamedTuple):
    """What one rank sent to this worker."""

    batch: int
    uniform_length: int
    lengths: Tensor | None
    """int32 [streams, batch]; None where every bag has `uniform_length` ids."""
    values: list[Tensor]
    """By stream."""
    sample_weights: list[Tensor]
    weight_flag: int
    """Whether sample weights follow (1) and want a gradient (2)."""
    times: Tensor | None
    """int64 [batch], where ids expire by event time."""


class InputMessageFormat:
    """Packs and reads messages of ids. Made and called by `InputDist`."""

    def __init__(self, num_streams: int, *, wide_ids: bool, deduplicate: bool) -> None:
        """`num_streams` of the worker that reads."""
        self._num_streams, self._deduplicate = num_streams, deduplicate
        self._id_type = id_dtype(wide_ids)
        self._id_words = self._id_type.itemsize // WORD_BYTES

    def pack(self, ids: JaggedIds, routed: RoutedIds) -> list[Tensor]:
        """A message, in pieces."""
        uniform_length = -1 if routed.lengths or not routed.values else ids.uniform_length
        num_ids = sum(part.numel() for part in routed.values)
        values, num_distinct = routed.values, -1
        if self._deduplicate and num_ids:
            values, num_distinct = self._distinct(routed.values, num_ids)
        if self._id_words == 2:
            values = [part if part.dtype == WORD else part.contiguous().view(WORD) for part in values]
        header = torch.tensor([ids.batch, uniform_length, num_ids, num_distinct, _flags(ids)], dtype=WORD)
        weights = [part.view(WORD) for part in routed.sample_weights]
        times = [] if ids.times is None else [ids.times.view(WORD)]
        return [header, *routed.lengths, *values, *weights, *times]

    def num_words(self, header: list[int]) -> int:
        """Words of a whole message, by its header."""
        batch, uniform_length, num_ids, num_distinct, flags = header
        lengths = self._num_streams * batch if uniform_length < 0 else 0
        ids = num_ids * self._id_words
        if num_distinct >= 0:
            ids = num_distinct * self._id_words + position_words(num_ids, num_distinct)
        times = _TIME_WORDS * batch if flags & _TIMES_FLAG else 0
        return HEADER_WORDS + lengths + ids + num_ids * bool(flags % _TIMES_FLAG) + times

    def unpack(self, header: list[int], message: Tensor) -> InputMessage:
        """Reads a message; what it returns may share its memory."""
        batch, uniform_length, num_ids, num_distinct, flags = header
        lengths, at = None, HEADER_WORDS
        if uniform_length < 0:
            lengths = message[at : at + self._num_streams * batch].view(self._num_streams, batch)
            at += lengths.numel()
            sizes = lengths.sum(1).tolist()
        else:
            sizes = [uniform_length * batch] * self._num_streams
        if num_distinct >= 0:
            distinct = self._ids(message[at : at + num_distinct * self._id_words])
            at += num_distinct * self._id_words
            words = position_words(num_ids, num_distinct)
            positions = message[at : at + words].view(_position_type(num_distinct))[:num_ids].long()
            narrow = has_narrow_positions(num_distinct)
            values = distinct.index_select(0, positions & _NARROW_MASK if narrow else positions)
            at += words
        else:
            values = self._ids(message[at : at + num_ids * self._id_words])
            at += num_ids * self._id_words
        weights: tuple[Tensor, ...] = ()
        weight_flag = flags % _TIMES_FLAG
        if weight_flag:
            weights = message[at : at + num_ids].view(torch.float32).split(sizes)
            at += num_ids
        times = None
        if flags & _TIMES_FLAG:
            times = message[at : at + _TIME_WORDS * batch].clone().view(torch.int64)
        return InputMessage(
            batch, uniform_length, lengths, list(values.split(sizes)), list(weights), weight_flag, times
        )

    def unsent(self, ids: JaggedIds, routed: RoutedIds) -> InputMessage:
        """What a rank has for the worker in its own process, as if it had been sent."""
        lengths = torch.stack(routed.lengths) if routed.lengths else None
        uniform_length = -1 if lengths is not None or not self._num_streams else ids.uniform_length
        return InputMessage(
            *(ids.batch, uniform_length, lengths, routed.values, routed.sample_weights),
            *(_flags(ids) % _TIMES_FLAG, ids.times),
        )

    def lengths(self, message: InputMessage) -> Tensor:
        """Lengths of bags, int32 [streams, batch]."""
        if message.lengths is not None:
            return message.lengths
        return torch.full((self._num_streams, message.batch), message.uniform_length, dtype=torch.int32)

    def _distinct(self, values: list[Tensor], num_ids: int) -> tuple[list[Tensor], int]:
        """Each id of a stream once, and every id's position among them; or all ids, where that is less."""
        distinct, positions = distinct_by_stream(values)
        words = position_words(num_ids, len(distinct))
        if len(distinct) * self._id_words + words >= num_ids * self._id_words:
            return values, -1
        positions = positions.to(_position_type(len(distinct)))
        if positions.dtype == torch.int16 and len(positions) % 2:
            positions = torch.cat([positions, positions.new_zeros(1)])
        return [distinct.to(self._id_type), positions.view(WORD)], len(distinct)

    def _ids(self, words: Tensor) -> Tensor:
        return words if self._id_words == 1 else words.clone().view(torch.int64)


def distinct_by_stream(values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The distinct ids of each stream, stream by stream, and every id's position among all of them."""
    ids = torch.cat(values).long()
    lowest, highest = (int(edge) for edge in ids.aminmax())
    key_range = highest + 1
    # Ids of dynamic tables may be below 0.
    if lowest >= 0 and key_range <= torch.iinfo(torch.int64).max // len(values):
        # One search for all streams, each in a range of keys of its own.
        sizes = torch.tensor([part.numel() for part in values])
        keys = ids + torch.repeat_interleave(torch.arange(len(values)) * key_range, sizes)
        distinct, positions = torch.unique(keys, return_inverse=True)
        return distinct.remainder(key_range), positions
    by_stream = [torch.unique(part.long(), return_inverse=True) for part in values]
    starts = [0, *itertools.accumulate(len(distinct) for distinct, _ in by_stream)]
    return (
        torch.cat([distinct for distinct, _ in by_stream]),
        torch.cat([positions + start for (_, positions), start in zip(by_stream, starts, strict=False)]),
    )


def _flags(ids: JaggedIds) -> int:
    weights = 0 if ids.sample_weights is None else 1 + ids.sample_weights.requires_grad
    return weights + (0 if ids.times is None else _TIMES_FLAG)


def _position_type(num_distinct: int) -> torch.dtype:
    return torch.int16 if has_narrow_positions(num_distinct) else torch.int32
