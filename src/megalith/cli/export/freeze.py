"""`megalith export RUN --out DIR`: a run frozen."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from megalith.cli.output import print_table, say, working

if TYPE_CHECKING:
    from megalith.train.freezing.freeze import FreezeRequest


def freeze_folder(request: FreezeRequest, json_output: bool) -> dict[str, Any]:
    """Writes the folder and, without JSON, prints what it holds and costs."""
    from megalith.train.freezing.freeze import freeze_run

    # SIGTERM cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, _exit_at_signal)
    with working("freezing") as tell:
        result = freeze_run(request, tell)
    if not json_output:
        _show(result)
    return result


def _show(result: dict[str, Any]) -> None:
    from megalith.core.units import format_bytes

    if result["gate"] is not None:
        for kind, parts in (("table", result["tables"]), ("layer", result["layers"])):
            if parts:
                print_table(
                    f"What each {kind} costs alone, on {result['costs_samples']:,} samples",
                    (kind, "as", "bytes", "of float32", "NE"),
                    [_row(part) for part in parts],
                )
        for line in result["left_in_float32"]:
            say(f"Left in float32: {line}")
        gate = result["gate"]
        say(
            f"Gate on split {gate['split']}, {gate['samples']:,} samples: NE {gate['trained_ne']:.6f} -> "
            f"{gate['frozen_ne']:.6f} ({gate['ne_loss']:+.4%}, {gate['budget']:.4%} allowed), AUC "
            f"{gate['trained_auc']:.6f} -> {gate['frozen_auc']:.6f}"
        )
    share = "" if result["table_share"] is None else f", tables {result['table_share']:.1%} of float32"
    say(
        f"{result['out']}: model {result['name']} of step {result['step']:,}, "
        f"{format_bytes(result['bytes'])}{share}"
    )


def _row(part: dict[str, Any]) -> tuple[str, ...]:
    share = part["bytes"] / part["float32_bytes"] if part["float32_bytes"] else 0.0
    used = part.get("used", part["precision"])
    shown = used if used == part["precision"] else f"{used} (not {part['precision']})"
    return part["name"], shown, f"{part['bytes']:,}", f"{share:.1%}", f"{part['ne_loss']:+.4%}"


def _exit_at_signal(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
