"""`megalith checkpoint list|verify|prune`: the checkpoints of a run."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from megalith.cli.output import JsonFlag, note, print_json, print_table, say, working

if TYPE_CHECKING:
    from megalith.checkpoint.inspection import VerifiedStep
    from megalith.checkpoint.store import CheckpointStore

checkpoint = typer.Typer(
    help="Checkpoints of a run; `megalith train RUN --from-step N` goes back to one.",
    no_args_is_help=True,
)
RunArgument = Annotated[Path, typer.Argument(help="Folder of a run.")]


@checkpoint.command("list")
def list_command(run: RunArgument, json_output: JsonFlag = False) -> None:
    """Print every step that is kept: its kind, rounding, bytes, age, and the steps that it is over."""
    from megalith.checkpoint.inspection import kept_steps
    from megalith.core.units import format_bytes

    steps = kept_steps(_store(run))
    if json_output:
        listed = [
            asdict(each) | {"saved_at": datetime.fromtimestamp(each.saved_at, UTC).isoformat()}
            for each in steps
        ]
        print_json({"run": str(run), "checkpoints": listed})
        return
    print_table(
        str(run),
        ("step", "kind", "rows", "size", "age", "needs"),
        [
            (
                f"{each.step:,}",
                each.kind if each.error is None else "damaged",
                "exact" if each.bits in (None, 32) else f"{each.bits} bits",
                format_bytes(each.bytes),
                _age(time.time() - each.saved_at),
                ", ".join(f"{step:,}" for step in each.needs) or "-",
            )
            for each in steps
        ],
    )
    for each in steps:
        if each.error is not None:
            note(f"Step {each.step:,}: {each.error}")


@checkpoint.command("verify")
def verify_command(
    run: RunArgument,
    step: Annotated[
        int | None, typer.Option(help="Only this step and what it is over; by default all steps.")
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Read every file of the checkpoints and compare checksums; damage is named, and the exit code is 2."""
    from megalith.checkpoint.inspection import verified
    from megalith.core.errors import CheckpointError
    from megalith.core.units import format_bytes
    from megalith.train.checkpoints import existing_step
    from megalith.train.run.folder import RunFolder

    store = _store(run)
    if step is not None:
        existing_step(RunFolder(run), store, step)
    with working("Reading") as tell:
        steps = verified(store, step, lambda each: tell(f"Reading step {each:,}"))
    sentence = _sentence(run, steps)
    if json_output:
        listed = [asdict(each) | {"damaged": [str(path) for path in each.damaged]} for each in steps]
        print_json({"run": str(run), "checkpoints": listed} | ({"error": sentence} if sentence else {}))
        if sentence:
            note(f"megalith: {sentence}")
            raise typer.Exit(2)
        return
    print_table(
        str(run),
        ("step", "files", "size", "damaged files", "can be restored"),
        [
            (
                f"{each.step:,}",
                f"{each.files:,}",
                format_bytes(each.bytes),
                ", ".join(str(path.relative_to(store.path(each.step))) for path in each.damaged) or "none",
                "yes" if each.can_be_restored else "no",
            )
            for each in steps
        ],
    )
    if sentence:
        raise CheckpointError(sentence)


@checkpoint.command("prune")
def prune_command(
    run: RunArgument,
    keep: Annotated[int | None, typer.Option(min=1, help="Keep the newest so many.")] = None,
    keep_step: Annotated[
        list[int] | None, typer.Option(help="Keep the checkpoint of this step; may be given several times.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    json_output: JsonFlag = False,
) -> None:
    """Remove checkpoints; what a kept one is over stays, and so does that of the best evaluation."""
    from megalith.core.units import format_bytes
    from megalith.train.checkpoints import prune_checkpoints
    from megalith.train.run.folder import RunFolder

    pruned = prune_checkpoints(RunFolder(run), keep, tuple(keep_step or ()), dry_run)
    if json_output:
        kept = [{"step": step, "why": why} for step, why in pruned.kept.items()]
        print_json({"run": str(run), "dry_run": dry_run, **asdict(pruned), "kept": kept})
        return
    print_table(str(run), ("kept", "why"), [(f"{step:,}", why) for step, why in pruned.kept.items()])
    removed = ", ".join(f"{step:,}" for step in pruned.removed)
    if not removed:
        say("Nothing is to be removed.")
    else:
        does = "Would remove" if dry_run else "Removed"
        say(f"{does} {removed}: {format_bytes(pruned.freed_bytes)}.")


def _store(run: Path) -> CheckpointStore:
    """The checkpoints of a run, of which there is at least one."""
    from megalith.checkpoint.store import CheckpointStore
    from megalith.core.errors import CheckpointError
    from megalith.train.run.folder import RunFolder

    folder = RunFolder(run)
    folder.recipe()
    store = CheckpointStore(folder.checkpoints)
    if not store.steps():
        raise CheckpointError(
            f"{run} has no checkpoint yet; train it with `megalith train {shlex.quote(str(run))}`."
        )
    return store


def _sentence(run: Path, steps: list[VerifiedStep]) -> str | None:
    """What is damaged and what to do without it; None where nothing is."""
    lost = [each for each in steps if not each.can_be_restored]
    if not lost:
        return None
    damaged = [path for each in lost for path in each.damaged]
    whole = [each.step for each in steps if each.can_be_restored]
    if not damaged:
        return lost[0].error
    more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
    of = f"{len(lost)} of {len(steps)} checkpoints cannot be restored"
    command = f"megalith train {shlex.quote(str(run))}"
    if not whole:
        fix = f"restore the file from a copy, or start the run again with `{command} --overwrite`"
    elif whole[-1] == steps[-1].step:
        fix = f"the newest is whole, `{command}` goes on from it"
    else:
        fix = f"go back to step {whole[-1]} with `{command} --from-step {whole[-1]}`"
    return f"Checkpoint file {damaged[0]}{more} is damaged or missing, {of}; {fix}."


def _age(seconds: float) -> str:
    """How long ago, in the largest unit that there is at least one of."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
