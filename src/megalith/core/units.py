"""Numbers as people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from megalith.core.errors import ConfigError

_BINARY = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def format_bytes(count: float) -> str:
    """Bytes in binary units.

    >>> format_bytes(1536)
    '1.5 KiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 512M or 2G.

    >>> parse_bytes("512M")
    536870912
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if not match:
        raise ConfigError(f"'{text}' is not a size; write it like 512M or 2G.")
    return int(float(match[1]) * _BINARY[match[2].upper()])


def format_count(count: float) -> str:
    """A count in three digits.

    >>> format_count(12345678)
    '12.3M'
    """
    for unit in ("", "k", "M", "G"):
        if abs(count) < 1000:
            return f"{count:.0f}{unit}" if unit == "" or abs(count) >= 100 else f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g}T"


def format_seconds(seconds: float) -> str:
    """Seconds as hours, minutes and seconds.

    >>> format_seconds(3725)
    '1:02:05'
    """
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
    return f"{whole // 60}:{whole % 60:02d}"


def format_duration(seconds: float) -> str:
    """Seconds, milliseconds or microseconds, as fits.

    >>> format_duration(0.0125)
    '12.5 ms'
    """
    if seconds == 0 or seconds >= 1:
        return f"{seconds:.4g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def format_parts(parts: Mapping[str, float]) -> tuple[str, dict[str, str]]:
    """Seconds of some parts and of all together, in one unit, rounded so that what is shown adds up.

    >>> format_parts({"lookup": 57.94e-6, "exchange": 214.94e-6})
    ('272.9 us', {'lookup': '57.9 us', 'exchange': '215.0 us'})
    """
    total = sum(parts.values())
    unit, size = ("s", 1.0) if total >= 1 or total <= 0 else ("ms", 1e3) if total >= 1e-3 else ("us", 1e6)
    decimals = max(0, 3 - math.floor(math.log10(total * size))) if total > 0 else 0
    scale = size * 10**decimals
    units = {name: math.floor(seconds * scale) for name, seconds in parts.items()}
    # What flooring lost goes to the parts that lost most.
    lost = sorted(parts, key=lambda name: units[name] - parts[name] * scale)
    whole = round(total * scale)
    for name in lost[: whole - sum(units.values())]:
        units[name] += 1
    shown = {name: f"{count / 10**decimals:.{decimals}f} {unit}" for name, count in units.items()}
    return f"{whole / 10**decimals:.{decimals}f} {unit}", shown


def format_bandwidth(bytes_per_second: float) -> str:
    """In bits, as links are sold.

    >>> format_bandwidth(400e9)
    '3.2 Tb/s'
    """
    bits = 8 * bytes_per_second
    return f"{bits / 1e12:.3g} Tb/s" if bits >= 1e12 else f"{bits / 1e9:.3g} Gb/s"
