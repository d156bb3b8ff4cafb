"""Cuts operations beside which collectives run into as many parts as the collective has buckets.

A part of the parameters is asked for while the part before it computes, and a part of the gradients leaves
when its part of the weight gradient is done. Operations that look alike share their parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from megalith.explore.pipeline.costs import Collective
from megalith.explore.pipeline.simulation.program import Message, Program, Special

if TYPE_CHECKING:
    from megalith.explore.pipeline.simulation.compiler import Compiler


def add_collectives(compiler: Compiler, program: Program, device: int) -> None:
    """Cuts the operations concerned into parts and notes what each part waits for or lets go."""
    fetches, reduces = _where(compiler, program, device)
    if not fetches and not reduces:
        return
    overlap = compiler.costs.overlap
    needs, sends, slots = program.needs[device], program.sends[device], program.slots[device]
    old = program.specials[device]
    new_needs: list[int] = []
    new_sends: list[int] = []
    new_slots: list[int] = []
    specials: dict[int, Special] = {}
    owners = program.owners[device]
    cuts: dict[tuple[int, int, int], list[tuple[int, Special]]] = {}
    ahead: dict[tuple[Special, Message], Special] = {}
    """(what a part does, parameters to ask for meanwhile) -> both: many operations share them."""
    plain = Special()
    copied = 0

    def copy_up_to(index: int) -> None:
        """Takes over the operations before this one as they are."""
        moved = len(new_slots) - copied
        for at in range(copied, index) if old else ():
            if at in old:
                specials[at + moved] = old[at]
        new_needs.extend(needs[copied:index])
        new_sends.extend(sends[copied:index])
        new_slots.extend(slots[copied:index])
        owners.extend(range(copied, index))

    for index in sorted({*fetches, *reduces}):
        slot, fetch, reduce = slots[index], fetches.get(index), reduces.get(index)
        copy_up_to(index)
        copied = index + 1
        key = slot, id(fetch), id(reduce)
        if key not in cuts:
            cuts[key] = _cut_operation(compiler, device, slot, fetch, reduce)
        pieces = cuts[key]
        last = len(pieces) - 1
        new_needs += [needs[index]] + [0] * last
        new_sends += [0] * last + [sends[index]]
        owners += [index] * (last + 1)
        before = old.get(index)
        for piece, (part, special) in enumerate(pieces):
            at = len(new_slots)
            new_slots.append(part)
            if before is not None and piece in (0, last):
                special = replace(
                    special,
                    second_needs=before.second_needs if piece == 0 else 0,
                    second_sends=before.second_sends if piece == last else 0,
                    second_message=before.second_message if piece == last else None,
                )
            message = special.needs_fetch
            if message is not None and overlap and fetch is not None:
                if fetch.each == "step" or at == 0:
                    early = len(program.first_fetches[device])
                    special = replace(special, needs_fetch=None, early_fetch=early)
                    program.first_fetches[device].append(message)
                else:
                    previous = specials.get(at - 1, plain)
                    if previous.second_needs or previous.second_sends:
                        specials[at - 1] = replace(previous, prefetch=message)
                    else:
                        both = previous, message
                        if both not in ahead:
                            ahead[both] = replace(previous, prefetch=message)
                        specials[at - 1] = ahead[both]
            specials[at] = special
        if reduce is not None and not overlap and reduce.each == "step":
            program.last_reduces[device].append(_piece(compiler, device, reduce, 1))
    copy_up_to(len(slots))
    _mark_odd(compiler, new_slots, specials, program.odd_slot)
    program.needs[device], program.sends[device] = new_needs, new_sends
    program.slots[device], program.specials[device] = new_slots, specials


def _cut_operation(
    compiler: Compiler, device: int, slot: int, fetch: Collective | None, reduce: Collective | None
) -> list[tuple[int, Special]]:
    """Parts of an operation: the slot of each and what it has to do with the collectives."""
    overlap = compiler.costs.overlap
    pieces = max(fetch.buckets if fetch else 1, reduce.buckets if reduce and overlap else 1)
    at_once = reduce is not None and (overlap or reduce.each != "step")
    special = Special(
        needs_fetch=_piece(compiler, device, fetch, pieces) if fetch is not None else None,
        reduce=_piece(compiler, device, reduce, pieces) if reduce is not None and at_once else None,
        waits_for_reduce=at_once and not overlap,
    )
    parts = []
    for piece, seconds in enumerate(_cut(compiler, compiler.seconds[slot], pieces)):
        message = compiler.messages[slot] if piece == pieces - 1 else None
        parts.append((compiler.new_slot(seconds, message, compiler.labels[slot]), special))
    return parts


def _mark_odd(compiler: Compiler, slots: list[int], specials: dict[int, Special], odd: int) -> None:
    """Gives operations that only now became special a slot of their own."""
    copies: dict[int, int] = {}
    for at in specials:
        slot = slots[at]
        if slot < odd:
            if slot not in copies:
                copies[slot] = compiler.new_slot(
                    compiler.seconds[slot], compiler.messages[slot], compiler.labels[slot]
                )
            slots[at] = copies[slot]


def _piece(compiler: Compiler, device: int, collective: Collective, pieces: int) -> Message:
    link, seconds, latency = compiler.message_of(device, collective)
    return link, compiler.round_seconds(seconds / pieces), latency


def _cut(compiler: Compiler, seconds: float, pieces: int) -> Iterator[float]:
    part = compiler.round_seconds(seconds / pieces)
    for _ in range(pieces - 1):
        yield part
    yield seconds - (pieces - 1) * part


def _where(
    compiler: Compiler, program: Program, device: int
) -> tuple[dict[int, Collective], dict[int, Collective]]:
    """Operation index -> the parameters it needs, the gradients it completes."""
    costs, chunks = compiler.costs, range(compiler.schedule.chunks)
    parameters = {
        chunk: one for chunk in chunks if (one := costs.parameters.get((device, chunk))) is not None
    }
    gradient = {chunk: one for chunk in chunks if (one := costs.gradient.get((device, chunk))) is not None}
    fetches: dict[int, Collective] = {}
    reduces: dict[int, Collective] = {}
    first, last = _first_and_last(compiler, program, device)
    often = [one for part in (parameters, gradient) for one in part.values() if one.each != "step"]
    if often:
        chunk_of = {stage: chunk for chunk, stage in enumerate(compiler.chunk_stages[device])}
        steps = [compiler.labels[slot] for slot in program.slots[device]]
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
    compiler: Compiler, program: Program, device: int
) -> tuple[dict[int, int], dict[int, int]]:
    """Chunk -> its first operation, and the one that completes its weight gradients."""
    known = compiler.schedule.derived.setdefault("first_and_last", {})
    if device not in known:
        chunk_of = {stage: chunk for chunk, stage in enumerate(compiler.chunk_stages[device])}
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for index, slot in enumerate(program.slots[device]):
            kind, stage = compiler.labels[slot]
            chunk = chunk_of[stage]
            first.setdefault(chunk, index)
            if kind in ("W", "BW", "FB"):
                last[_backward_chunk(kind, chunk)] = index
        known[device] = first, last
    found: tuple[dict[int, int], dict[int, int]] = known[device]
    return found


def _turns_after(steps: list[tuple[str, int]], index: int) -> bool:
    return index + 1 == len(steps) or steps[index + 1][1] != steps[index][1]


def _backward_chunk(kind: str, chunk: int) -> int:
    """The chunk whose gradients an operation computes: of an FB, with two chunks a device, the other one."""
    return 1 - chunk if kind == "FB" else chunk
