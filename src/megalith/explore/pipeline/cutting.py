"""Cuts operations beside which collectives run into as many parts as the collective has buckets.

A part of the parameters is asked for while the part before it computes, and a part of the gradients leaves
when its part of the weight gradient is done. Operations that look alike share their parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from megalith.explore.pipeline.costs import Collective
from megalith.explore.pipeline.program import Message, Program, Special

if TYPE_CHECKING:
    from megalith.explore.pipeline.compiler import Compiler


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
    for index, slot in enumerate(slots):
        fetch, reduce = fetches.get(index), reduces.get(index)
        if fetch is None and reduce is None:
            if index in old:
                specials[len(new_slots)] = old[index]
            new_needs.append(needs[index])
            new_sends.append(sends[index])
            new_slots.append(slot)
            owners.append(index)
            continue
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
    fetches: dict[int, Collective] = {}
    reduces: dict[int, Collective] = {}
    chunk_of = {stage: chunk for chunk, stage in enumerate(compiler.chunk_stages[device])}
    steps = [(compiler.labels[slot], index) for index, slot in enumerate(program.slots[device])]
    fetched: set[int] = set()
    previous = -1
    last: dict[int, int] = {}
    for (kind, stage), index in steps:
        chunk = chunk_of[stage]
        parameters = compiler.costs.parameters.get((device, chunk))
        if parameters is not None and (
            parameters.each == "op"
            or (parameters.each == "turn" and chunk != previous)
            or (parameters.each == "step" and chunk not in fetched)
        ):
            fetches[index] = parameters
            fetched.add(chunk)
        previous = chunk
        if kind in ("W", "BW", "FB"):
            back = chunk
            if kind == "FB":
                back = _backward_chunk(compiler, program, device, index, chunk_of)
            gradient = compiler.costs.gradient.get((device, back))
            if gradient is not None:
                if gradient.each == "step":
                    last[back] = index
                elif gradient.each == "op" or _turns_after(steps, index):
                    reduces[index] = gradient
    for chunk, index in sorted(last.items(), key=lambda item: item[1]):
        reduces[index] = compiler.costs.gradient[device, chunk]
    return fetches, reduces


def _turns_after(steps: list[tuple[tuple[str, int], int]], index: int) -> bool:
    return index + 1 == len(steps) or steps[index + 1][0][1] != steps[index][0][1]


def _backward_chunk(
    compiler: Compiler, program: Program, device: int, index: int, chunk_of: dict[int, int]
) -> int:
    """The chunk whose gradients an FB computes: with two chunks a device it is the other one."""
    forward = chunk_of[compiler.labels[program.slots[device][index]][1]]
    return 1 - forward
