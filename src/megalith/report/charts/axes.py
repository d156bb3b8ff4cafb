"""Axes that read: bytes in KiB, MiB and GiB, seconds in a unit that fits, samples with their epochs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from megalith.core.units import format_bytes, format_count
from megalith.report.html_tables import shorten
from megalith.report.shell import Figure

MAX_LABEL = 26
"""Characters of a label beside a bar."""
_MAX_EPOCH_TICKS = 6
_MAX_LOG_TICKS = 13


def byte_axis(highest: float, title: str = "", room: float = 1.1) -> Figure:
    """A linear axis of bytes from 0, with ticks at powers of two and their multiples."""
    step = 2.0 ** math.ceil(math.log2(max(highest, 1.0) / 6))
    step = max(step, 1.0)
    ticks = [step * number for number in range(int(highest * room / step) + 1)]
    return {
        "title": {"text": title},
        "range": [0, max(highest, 1.0) * room],
        "tickvals": ticks,
        "ticktext": [byte_tick(tick) for tick in ticks],
    }


def byte_log_axis(values: Sequence[float], title: str) -> Figure:
    """A logarithmic axis of bytes around some values, with ticks at powers of two."""
    low, high = math.log2(min(values)), math.log2(max(values))
    room = 0.06 * (high - low) + 0.3
    powers = range(math.ceil(low - room), math.floor(high + room) + 1)
    ticks = [2.0**power for power in powers][:: -(-len(powers) // 7) or 1] or [min(values)]
    return {
        "title": {"text": f"{title} (logarithmic)"},
        "type": "log",
        "range": [(low - room) * math.log10(2), (high + room) * math.log10(2)],
        "tickvals": ticks,
        "ticktext": [byte_tick(tick) for tick in ticks],
    }


def byte_tick(size: float) -> str:
    """Bytes as a tick: without a `.0`."""
    return format_bytes(size).replace(".0 ", " ")


def log_axis(values: Sequence[float], title: str, write: Callable[[float], str] = "{:g}".format) -> Figure:
    """A logarithmic axis around some values, with whole numbers at its ticks: 1, 2, 5, 10 and so on."""
    low, high = math.log10(min(values)), math.log10(max(values))
    room = 0.06 * (high - low) + 0.04
    ticks = [
        digit * 10.0**power
        for power in range(math.floor(low) - 1, math.ceil(high) + 1)
        for digit in (1, 2, 5)
        if low - room <= math.log10(digit * 10.0**power) <= high + room
    ]
    if len(ticks) < 2:
        ticks = sorted({float(f"{end:.3g}") for end in (min(values), max(values))})
    if len(ticks) > _MAX_LOG_TICKS:
        ticks = [tick for tick in ticks if math.isclose(math.log10(tick), round(math.log10(tick)))]
    return {
        "title": {"text": f"{title} (logarithmic)"},
        "type": "log",
        "range": [low - room, high + room],
        "tickvals": ticks,
        "ticktext": [write(tick) for tick in ticks],
    }


def duration_unit(longest: float) -> tuple[str, float]:
    """The unit of an axis of seconds, and how many of it are a second."""
    if longest >= 1:
        return "s", 1.0
    return ("ms", 1e3) if longest >= 1e-3 else ("us", 1e6)


def samples_axis(samples_per_epoch: float | None, last: float) -> Figure:
    """Samples trained on; where there was more than one epoch, its number below the samples."""
    axis: Figure = {"title": {"text": "samples"}, "rangemode": "tozero", "tickformat": "~s"}
    if last > 0:
        # The last tick is at the end of the last epoch, and is to be seen.
        axis["range"] = [0, 1.04 * last]
    epochs = last / samples_per_epoch if samples_per_epoch else 0.0
    if samples_per_epoch is None or epochs <= 1.001:
        return axis
    stride = -(-math.ceil(epochs - 0.001) // _MAX_EPOCH_TICKS)
    numbers = range(0, math.floor(epochs + 0.001) + 1, stride)
    axis["title"] = {"text": "samples, epochs"}
    axis["tickvals"] = [number * samples_per_epoch for number in numbers]
    axis["ticktext"] = [
        f"{format_count(number * samples_per_epoch)}<br>epoch {number}" if number else "0"
        for number in numbers
    ]
    return axis


def label_axis(labels: Sequence[str], most: int = MAX_LABEL) -> Figure:
    """An axis of names beside bars, long ones cut; bars say the whole name on hover."""
    return {
        "showgrid": False,
        "tickmode": "array",
        "tickvals": list(labels),
        # A suffix of the axis is not added to ticks of one's own.
        "ticktext": [shorten(label, most) + "  " for label in labels],
    }
