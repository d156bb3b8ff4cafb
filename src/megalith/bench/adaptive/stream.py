"""The generated stream that `megalith bench adaptive` trains on where no data is given: rare ids matter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from megalith.core.errors import ConfigError
from megalith.data.synth.generate import generate
from megalith.data.synth.options import SynthOptions


def tail_stream(folder: Path, rows: int, scale: str, say: Callable[[str], None]) -> Path:
    """A Criteo-like stream as `megalith data synth --tail` makes it, kept from one call to the next."""
    target = folder / f"tail-{rows}-{scale}"
    if not target.exists():
        say(f"generating {rows:,} rows")
        tenth = max(1, rows // 10)
        options = SynthOptions("criteo", rows, tenth, tenth, scale=_share(scale), tail=True)
        options.check()
        generate(options, target)
    return target


def _share(scale: str) -> float:
    try:
        return 1.0 if scale == "full" else float(scale)
    except ValueError as error:
        raise ConfigError(
            f"--scale must be 'full' or a number above 0 and up to 1, not '{scale}'."
        ) from error
