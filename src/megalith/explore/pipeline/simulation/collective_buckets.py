"""Cuts operations beside which collectives run into as many parts as the collective has buckets.

A part of the parameters is asked for while the part before it computes, and a part of the gradients leaves
when its part of the weight gradient is done. Operations that look alike share their parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from megalith.explore.pipeline.costs import Collective
from megalith.explore.pipeline.simulation.op_table import OperationTable
from megalith.explore.pipeline.simulation.program import Message, OperationExtras, Program

_PLAIN = OperationExtras()


def add_collectives(table: OperationTable, program: Program, device: int) -> None:
    """Cuts the operations of a device that concern collectives, and notes what each part waits for or lets
    go."""
    fetches, reduces = _operations_with_collectives(table, program, device)
    if fetches or reduces:
        _DeviceCutter(table, program, device).cut(fetches, reduces)


class _DeviceCutter:
    """Rewrites the operations of one device, those that are cut in parts."""

    def __init__(self, table: OperationTable, program: Program, device: int) -> None:
        self.table, self.program, self.device = table, program, device
        self.old_needs, self.old_sends = program.needs[device], program.sends[device]
        self.old_types, self.old_extras = program.op_types[device], program.extras[device]
        self.needs: list[int] = []
        self.sends: list[int] = []
        self.op_types: list[int] = []
        self.extras: dict[int, OperationExtras] = {}
        self.owners = program.owners[device]
        self.copied = 0
        """Operations taken over so far."""
        self.parts: dict[tuple[int, int, int], list[tuple[int, OperationExtras]]] = {}
        """Parts of operations that look alike: same type, same collectives."""
        self.prefetching: dict[tuple[OperationExtras, Message], OperationExtras] = {}
        """(what a part does, parameters to ask for meanwhile) -> both: many operations share them."""

    def cut(self, fetches: dict[int, Collective], reduces: dict[int, Collective]) -> None:
        program, device = self.program, self.device
        overlap = self.table.costs.overlap
        for index in sorted({*fetches, *reduces}):
            fetch, reduce = fetches.get(index), reduces.get(index)
            if self.copied < index:
                self._copy_up_to(index)
            self._add_parts(index, fetch, reduce)
            if reduce is not None and not overlap and reduce.each == "step":
                program.last_reduces[device].append(self.table.bucket_of(device, reduce, 1))
        self._copy_up_to(len(self.old_types))
        self._mark_extras()
        program.needs[device], program.sends[device] = self.needs, self.sends
        program.op_types[device], program.extras[device] = self.op_types, self.extras

    def _copy_up_to(self, index: int) -> None:
        """Takes over the operations before this one as they are."""
        first, old = self.copied, self.old_extras
        moved = len(self.op_types) - first
        for at in range(first, index) if old else ():
            if at in old:
                self.extras[at + moved] = old[at]
        self.needs.extend(self.old_needs[first:index])
        self.sends.extend(self.old_sends[first:index])
        self.op_types.extend(self.old_types[first:index])
        self.owners.extend(range(first, index))

    def _add_parts(self, index: int, fetch: Collective | None, reduce: Collective | None) -> None:
        self.copied = index + 1
        op_type = self.old_types[index]
        key = op_type, id(fetch), id(reduce)
        if key not in self.parts:
            self.parts[key] = self._cut_operation(op_type, fetch, reduce)
        parts = self.parts[key]
        last = len(parts) - 1
        self.needs += [self.old_needs[index]] + [0] * last
        self.sends += [0] * last + [self.old_sends[index]]
        self.owners += [index] * (last + 1)
        whole = self.old_extras.get(index)
        for piece, (part_type, extra) in enumerate(parts):
            at = len(self.op_types)
            self.op_types.append(part_type)
            if whole is not None and piece in (0, last):
                extra = replace(
                    extra,
                    second_needs=whole.second_needs if piece == 0 else 0,
                    second_sends=whole.second_sends if piece == last else 0,
                    second_message=whole.second_message if piece == last else None,
                )
            if extra.needs_fetch is not None and fetch is not None and self.table.costs.overlap:
                extra = self._fetch_ahead(extra, extra.needs_fetch, fetch, at)
            self.extras[at] = extra

    def _fetch_ahead(
        self, extra: OperationExtras, message: Message, fetch: Collective, at: int
    ) -> OperationExtras:
        """Asks for parameters when the step begins, or while the part before computes."""
        if fetch.each == "step" or at == 0:
            first_fetches = self.program.first_fetches[self.device]
            first_fetches.append(message)
            return replace(extra, needs_fetch=None, early_fetch=len(first_fetches) - 1)
        previous = self.extras.get(at - 1, _PLAIN)
        if previous.second_needs or previous.second_sends:
            self.extras[at - 1] = replace(previous, prefetch=message)
        else:
            both = previous, message
            if both not in self.prefetching:
                self.prefetching[both] = replace(previous, prefetch=message)
            self.extras[at - 1] = self.prefetching[both]
        return extra

    def _cut_operation(
        self, op_type: int, fetch: Collective | None, reduce: Collective | None
    ) -> list[tuple[int, OperationExtras]]:
        """Parts of an operation: the type of each and what it has to do with the collectives."""
        table, device = self.table, self.device
        overlap = table.costs.overlap
        pieces = max(fetch.buckets if fetch else 1, reduce.buckets if reduce and overlap else 1)
        at_once = reduce is not None and (overlap or reduce.each != "step")
        extra = OperationExtras(
            needs_fetch=table.bucket_of(device, fetch, pieces) if fetch is not None else None,
            reduce=table.bucket_of(device, reduce, pieces) if reduce is not None and at_once else None,
            waits_for_reduce=at_once and not overlap,
        )
        parts = []
        for piece, seconds in enumerate(_equal_parts(table, table.seconds[op_type], pieces)):
            message = table.messages[op_type] if piece == pieces - 1 else None
            parts.append((table.new_type(seconds, message, table.labels[op_type]), extra))
        return parts

    def _mark_extras(self) -> None:
        """Gives operations that only now have extras a type of their own."""
        table, copies = self.table, dict[int, int]()
        for at in self.extras:
            op_type = self.op_types[at]
            if op_type < self.program.first_extra_type:
                if op_type not in copies:
                    copies[op_type] = table.new_type(
                        table.seconds[op_type], table.messages[op_type], table.labels[op_type]
                    )
                self.op_types[at] = copies[op_type]


def _equal_parts(table: OperationTable, seconds: float, pieces: int) -> Iterator[float]:
    part = table.round_seconds(seconds / pieces)
    for _ in range(pieces - 1):
        yield part
    yield seconds - (pieces - 1) * part


def _operations_with_collectives(
    table: OperationTable, program: Program, device: int
) -> tuple[dict[int, Collective], dict[int, Collective]]:
    """Operation index -> the parameters it needs, the gradients it completes."""
    costs, chunks = table.costs, range(table.schedule.chunks)
    parameters, gradient = (
        {chunk: collectives[device, chunk] for chunk in chunks if (device, chunk) in collectives}
        for collectives in (costs.parameters, costs.gradient)
    )
    fetches: dict[int, Collective] = {}
    reduces: dict[int, Collective] = {}
    first, last = _first_and_last(table, program, device)
    if any(collective.each != "step" for collective in (*parameters.values(), *gradient.values())):
        chunk_of = {stage: chunk for chunk, stage in enumerate(table.chunk_stages[device])}
        steps = [table.labels[op_type] for op_type in program.op_types[device]]
        previous = -1
        for index, (kind, stage) in enumerate(steps):
            chunk = chunk_of[stage]
            fetch = parameters.get(chunk)
            if fetch is not None and (fetch.each == "op" or (fetch.each == "turn" and chunk != previous)):
                fetches[index] = fetch
            previous = chunk
            if kind in ("W", "BW", "FB"):
                reduce = gradient.get(_backward_chunk(kind, chunk))
                if reduce is not None and (
                    reduce.each == "op" or (reduce.each == "turn" and _turns_after(steps, index))
                ):
                    reduces[index] = reduce
    for chunk, index in first.items():
        if chunk in parameters and parameters[chunk].each == "step":
            fetches[index] = parameters[chunk]
    for chunk, index in last.items():
        if chunk in gradient and gradient[chunk].each == "step":
            reduces[index] = gradient[chunk]
    return fetches, reduces


def _first_and_last(
    table: OperationTable, program: Program, device: int
) -> tuple[dict[int, int], dict[int, int]]:
    """Chunk -> its first operation, and the one that completes its weight gradients."""
    known = table.schedule.derived.setdefault("first_and_last", {})
    if device not in known:
        chunk_of = {stage: chunk for chunk, stage in enumerate(table.chunk_stages[device])}
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for index, op_type in enumerate(program.op_types[device]):
            kind, stage = table.labels[op_type]
            chunk = chunk_of[stage]
            first.setdefault(chunk, index)
            if kind in ("W", "BW", "FB"):
                last[_backward_chunk(kind, chunk)] = index
        known[device] = first, last
    ends: tuple[dict[int, int], dict[int, int]] = known[device]
    return ends


def _turns_after(steps: list[tuple[str, int]], index: int) -> bool:
    return index + 1 == len(steps) or steps[index + 1][1] != steps[index][1]


def _backward_chunk(kind: str, chunk: int) -> int:
    """The chunk whose gradients an operation computes: of an FB, with two chunks a device, the other one."""
    return 1 - chunk if kind == "FB" else chunk
