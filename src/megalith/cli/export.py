"""`megalith export`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from megalith.cli.evaluate import CheckpointOption, TrustFlag
from megalith.cli.output import JsonFlag, print_json, print_table, say, working


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[
        Path,
        typer.Option(
            help="Folder to write; it appears, in place of an older one, once it is complete and passed."
        ),
    ],
    tables: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]float32|float16|int8|int4",
            help="Precision of tables, or of one; may be given several times [default: int8].",
        ),
    ] = None,
    dense: Annotated[
        str, typer.Option(metavar="float32|bfloat16|int8", help="Precision of the dense part's layers.")
    ] = "float32",
    checkpoint: CheckpointOption = None,
    split: Annotated[
        str | None, typer.Option(help="Held-out split of the gate; by default the recipe's.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Another prepared data set with the same features, for the gate.")
    ] = None,
    budget: Annotated[
        float, typer.Option(min=0.0, help="Highest share by which NE may rise; above it nothing is written.")
    ] = 0.0005,
    user: Annotated[
        str | None,
        typer.Option(metavar="<name,...>", help="Features that are the same for all samples of a request."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the model, as a server lists it [default: that of --out].")
    ] = None,
    gate: Annotated[
        bool, typer.Option("--gate/--no-gate", help="Without it a model is frozen unchecked.")
    ] = True,
    trust_code: TrustFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Freeze a trained run into a folder that serves and scores, with its tables in few bits.

    The frozen model is compared with the trained one on a held-out split. Where it loses more than the
    budget, nothing is written.
    """
    from megalith.train.checkpoints import parse_checkpoint
    from megalith.train.freezing.freeze import FreezeRequest, freeze_run
    from megalith.train.freezing.precisions import dense_precision, table_precisions

    request = FreezeRequest(
        run,
        out,
        table_precisions(tables or []),
        dense_precision(dense),
        parse_checkpoint(checkpoint),
        split,
        data,
        budget,
        tuple(each.strip() for each in user.split(",") if each.strip()) if user else (),
        name,
        gate,
        trust_code,
    )
    # SIGTERM cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, _exit_at_signal)
    with working("freezing") as tell:
        result = freeze_run(request, tell)
    (print_json if json_output else _show)(result)


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
