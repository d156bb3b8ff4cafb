"""Numbers as people read them."""

from __future__ import annotations

import re

from megalith.core.errors import ConfigError

_BINARY = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def format_bytes(count: float) -> str:
    """
    >>> format_bytes(1536)
    '1.5 KiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def parse_bytes(text: str) -> int:
    """
    >>> parse_bytes("512M")
    536870912
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if not match:
        raise ConfigError(f"'{text}' is not a size; write it like 512M or 2G.")
    return int(float(match[1]) * _BINARY[match[2].upper()])


def format_count(count: float) -> str:
    """
    >>> format_count(12345678)
    '12.3M'
    """
    for unit in ("", "k", "M", "G"):
        if abs(count) < 1000:
            return f"{count:.0f}{unit}" if unit == "" or abs(count) >= 100 else f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g}T"


def format_seconds(seconds: float) -> str:
    """
    >>> format_seconds(3725)
    '1:02:05'
    """
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
    return f"{whole // 60}:{whole % 60:02d}"
