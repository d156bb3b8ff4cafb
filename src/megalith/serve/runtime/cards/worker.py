"""What a card does with a task: reads tensors where the socket put them, checks, computes, writes outputs.

The same code runs in a card's process and on a thread of the front process.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from mmap import mmap

import numpy as np
import torch
from torch import Tensor

from megalith.core.errors import MegalithError, without_controls
from megalith.export.backends.base import Outputs
from megalith.export.backends.inputs import ScoreRequest
from megalith.export.program import EMBEDDED
from megalith.serve.runtime.cards.served_part import (
    CheckedEntry,
    DenseCardPart,
    LookupCardPart,
    ServedPart,
    WholeCardPart,
)
from megalith.serve.runtime.cards.task import (
    FAILED,
    FINE,
    REFUSED,
    Entry,
    EntryResult,
    Task,
    TaskResult,
)

_FINE = EntryResult(FINE)


class CardWorker:
    """Runs tasks over the memory of rooms, into memory of its own."""

    def __init__(
        self,
        rooms: mmap,
        outputs: mmap,
        parts: Mapping[int, ServedPart],
        peer: Callable[[int, int], mmap],
    ) -> None:
        self._rooms, self._outputs, self._parts, self._peer = rooms, outputs, parts, peer
        self._floats = np.frombuffer(outputs, dtype=np.float32)
        with warnings.catch_warnings():
            # Torch warns, once, of memory that must not be written; nothing here writes to requests.
            warnings.simplefilter("ignore")
            torch.frombuffer(rooms, dtype=torch.uint8, count=1)

    def run(self, task: Task) -> TaskResult:
        """Runs a task; whatever is wrong with a request is said of that request."""
        began = time.monotonic_ns()
        part = self._parts.get(task.part)
        if part is None:
            results = tuple(EntryResult(FAILED, "The card does not have this version.") for _ in task.entries)
            return TaskResult(task.number, began, began, began, began, results)
        checked: list[CheckedEntry] = []
        requests: list[ScoreRequest] = []
        verdicts, outputs, ready = [_FINE] * len(task.entries), None, began
        try:
            requests = [self._request(part, entry) for entry in task.entries]
            if not isinstance(part, WholeCardPart):
                checked = [self._check(part, *one) for one in zip(requests, task.entries, strict=True)]
            ready = time.monotonic_ns()
            outputs = self._compute(part, task, requests, checked)
        except Exception as error:
            verdicts = [_verdict(error)]
        computed = time.monotonic_ns()
        if outputs is not None:
            self._write(part, task, outputs)
        elif len(task.entries) != 1:
            verdicts = self._one_by_one(part, task)
        return TaskResult(task.number, began, ready, computed, time.monotonic_ns(), tuple(verdicts))

    def _one_by_one(self, part: ServedPart, task: Task) -> list[EntryResult]:
        """Each entry for itself, so that a wrong one spoils no other."""
        verdicts, before = [], 0
        for entry in task.entries:
            sources = tuple(
                source._replace(offset=source.offset + before * self._row_bytes(part, place))
                for place, source in enumerate(task.sources)
            )
            pooled_at = task.pooled_at + before * self._row_bytes(part, -1)
            alone = task._replace(entries=(entry,), sources=sources, pooled_at=pooled_at)
            try:
                request = self._request(part, entry)
                checked = [] if isinstance(part, WholeCardPart) else [self._check(part, request, entry)]
                outputs = self._compute(part, alone, [request], checked)
                self._write(part, alone, outputs)
                verdicts.append(_FINE)
            except Exception as error:
                verdicts.append(_verdict(error))
            before += entry.samples
        return verdicts

    def _row_bytes(self, part: ServedPart, place: int) -> int:
        if isinstance(part, LookupCardPart):
            return part.row_bytes
        return part.row_bytes[place] if isinstance(part, DenseCardPart) and place >= 0 else 0

    def _check(self, part: ServedPart, request: ScoreRequest, entry: Entry) -> CheckedEntry:
        assert isinstance(part, (LookupCardPart, DenseCardPart))
        return part.check(request, entry.first, entry.last)

    def _request(self, part: ServedPart, entry: Entry) -> ScoreRequest:
        item, user = len(part.features), len(part.user_features)
        apart = entry.user_lengths_at >= 0
        rows = item - user if apart else item
        batch = entry.batch
        dense = user_values = user_lengths = None
        if entry.dense_at >= 0:
            width = part.manifest.num_dense
            dense = self._tensor(torch.float32, entry.dense_at, batch * width).view(batch, width)
        ids = torch.int32 if entry.value_bytes == 4 else torch.int64
        values = self._tensor(ids, entry.values_at, entry.num_values)
        lengths = self._tensor(torch.int32, entry.lengths_at, rows * batch).view(rows, batch)
        if apart:
            ids = torch.int32 if entry.user_value_bytes == 4 else torch.int64
            user_values = self._tensor(ids, entry.user_values_at, entry.num_user_values)
            user_lengths = self._tensor(torch.int32, entry.user_lengths_at, user).view(user, 1)
        return ScoreRequest(dense, values, lengths, user_values, user_lengths)

    def _tensor(self, dtype: torch.dtype, at: int, count: int) -> Tensor:
        if not count:
            return torch.empty(0, dtype=dtype)
        if at % dtype.itemsize:
            moved = bytearray(memoryview(self._rooms)[at : at + count * dtype.itemsize])
            return torch.frombuffer(moved, dtype=dtype)
        return torch.frombuffer(self._rooms, dtype=dtype, count=count, offset=at)

    def _compute(
        self,
        part: ServedPart,
        task: Task,
        requests: Sequence[ScoreRequest],
        checked: Sequence[CheckedEntry],
    ) -> Outputs:
        if isinstance(part, WholeCardPart):
            return part.run(requests, [(entry.first, entry.last) for entry in task.entries])
        if isinstance(part, LookupCardPart):
            return part.run(checked)
        assert isinstance(part, DenseCardPart)
        pooled = [
            None if card < 0 else memoryview(self._peer(card, descriptor))[offset:]
            for card, offset, descriptor in task.sources
        ]
        return part.run(checked, pooled)

    def _write(self, part: ServedPart, task: Task, outputs: Outputs) -> None:
        if isinstance(part, LookupCardPart):
            flat = outputs[EMBEDDED].numpy().reshape(-1)
            target = np.frombuffer(self._outputs, dtype=flat.dtype, count=flat.size, offset=task.pooled_at)
            target[:] = flat
            return
        before = 0
        for entry in task.entries:
            samples, at = entry.samples, entry.out_at // 4
            for values in outputs.values():
                self._floats[at : at + samples] = values[before : before + samples].numpy()
                at += samples
            before += samples


def _verdict(error: Exception) -> EntryResult:
    if isinstance(error, MegalithError):
        return EntryResult(REFUSED, str(error))
    return EntryResult(FAILED, without_controls(f"{type(error).__name__}: {error}"))
