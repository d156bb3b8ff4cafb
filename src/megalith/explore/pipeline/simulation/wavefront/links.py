"""Who sends when on which link, for one way of laying a schedule over the links of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from megalith.explore.pipeline.simulation.program import Message
from megalith.explore.pipeline.simulation.wavefront.rows import Wavefronts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_KEPT = 4
"""Orders kept with a schedule: one for each way of laying it over a cluster."""


@dataclass(frozen=True, slots=True)
class LinkOrder:
    """The messages before each message on its link. Cells of second messages (of FB) follow those of first
    ones."""

    before: Integers
    """Cell -> cell of the message before it on its link, 0: none; only of links with one sender."""
    shared: list[tuple[int, Integers]]
    """Of every link with several senders its number and the cells that send over it, by device."""


def link_order(
    wavefronts: Wavefronts, messages: list[list[Message | None]], shared_links: set[int]
) -> LinkOrder:
    """The order on every link, from the messages of each operation type (and its second ones, of FB)."""
    numbers = [[message[0] if message else -1 for message in block] for block in messages]
    key = (*(number for block in numbers for number in block), -2, *sorted(shared_links))
    known = wavefronts.link_orders
    if key not in known:
        while len(known) >= _KEPT:
            known.pop(next(iter(known)))
        links = np.ascontiguousarray(np.array(numbers)[:, wavefronts.op_types])
        known[key] = _find_order(links, shared_links)
    order: LinkOrder = known[key]
    return order


def _find_order(links: Integers, shared_links: set[int]) -> LinkOrder:
    """From the link of every cell, -1: none."""
    blocks, rows, devices = links.shape
    shared = []
    for number in sorted(shared_links):
        cells = np.flatnonzero(links == number)
        device = cells % devices
        shared.append((number, cells[np.argsort(device, kind="stable")]))
        links[links == number] = -1
    # A device sends in the order of rows, and in a row the second message after the first.
    turns = links.transpose(1, 0, 2).reshape(blocks * rows, devices)
    before = np.zeros_like(turns)
    turn = np.arange(blocks * rows)[:, None]
    own: list[list[int]] = [sorted(set(column) - {-1}) for column in turns.T.tolist()]
    for rank in range(max(map(len, own))):
        wanted = np.array([numbers[rank] if rank < len(numbers) else -2 for numbers in own])
        mask = turns == wanted
        last = np.maximum.accumulate(np.where(mask, turn, 0), axis=0)
        before[1:][mask[1:]] = last[:-1][mask[1:]]
    row, block = np.divmod(before, blocks)
    cells = np.where(before > 0, (block * rows + row) * devices + np.arange(devices), 0)
    return LinkOrder(cells.reshape(rows, blocks, devices).transpose(1, 0, 2).copy(), shared)
