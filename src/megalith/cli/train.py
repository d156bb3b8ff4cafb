"""`megalith train`."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from megalith.cli.evaluate import TrustFlag, print_evaluation
from megalith.cli.output import JsonFlag, note, print_json, progress_console, say


def train(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name or .yaml path, or the folder of a run to resume.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, such as train.steps=100."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default runs/NAME.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in --out if there is one.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a run that is in the folder.")
    ] = False,
    from_step: Annotated[
        int | None,
        typer.Option(help="Go back to the checkpoint of this step, drop later ones, and resume from there."),
    ] = None,
    trust_code: TrustFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Train a recipe; stop it with Ctrl-C or SIGTERM and resume with `megalith train RUN`.

    Recipes that ship: small-dcnv2 and small-dlrm for up to some million rows of your own, with
    data.path=FOLDER; criteo-dlrm, criteo-dcnv2 and avazu-deepfm for one pass over many; frappe-dlrm,
    frappe-dcnv2; demo; the shapes dlrm-v2, dlrm-v2-half, rm1, rm2 and rm3.

    A run that was stopped exits with 130 after Ctrl-C and 143 after SIGTERM.

    On several processes: torchrun --nproc-per-node 2 -m megalith train RECIPE. Workers that torchrun restarts
    resume from the last checkpoint.
    """
    from megalith.train.run.existing import refuse_existing

    under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if out is not None and not (resume or overwrite or under_torchrun or from_step is not None):
        # Before torch is imported, which takes seconds. Of many ranks the first looks, and one tells.
        refuse_existing(out)
    from megalith.train.job import TrainRequest, build, parse
    from megalith.train.session import training_session

    request = TrainRequest(recipe, tuple(overrides or ()), out, resume, overwrite, from_step, trust_code)
    with training_session() as session:
        tell = note if session.ranks.is_first else _tell_nobody
        job = parse(session, request, tell)
        if job.finished is not None:
            tell(f"{job.run.folder} has come to its end already.")
            summary = job.finished
        else:
            with build(session, job, progress_console) as trainer:
                if job.resumes:
                    tell(f"Resuming {job.run.folder} from step {trainer.step:,}.")
                for expected in (trainer.predict_tiers(), trainer.adaptive_memory()):
                    if expected:
                        tell(expected)
                summary = trainer.train()
        if session.ranks.is_first:
            (print_json if json_output else _print_summary)(summary)
    if not summary["finished"] and session.ranks.world_size == 1:
        # As shells report a signal, so that `train && eval` stops. Of ranks torchrun would start others.
        raise typer.Exit(128 + signal.Signals[summary["stopped_by"]])


def _tell_nobody(*_: str) -> None:
    """Ranks other than the first are silent."""


def _print_summary(summary: dict[str, Any]) -> None:
    from megalith.core.units import format_bytes, format_count, format_seconds
    from megalith.train.run.folder import END_OF_DATA

    say(
        f"{summary['step']:,} of {summary['total_steps']:,} steps in {format_seconds(summary['seconds'])}, "
        f"{format_count(summary['samples_per_second'])} samples/s; {summary['tables']} tables of "
        f"{format_bytes(summary['table_bytes'])}, {format_count(summary['dense_parameters'])} dense weights."
    )
    if summary.get("tiers"):
        say(_tiers(summary["tiers"]))
    if summary.get("adaptive"):
        say(_adaptive(summary["adaptive"]))
    run = shlex.quote(summary["run"])
    if not summary["finished"]:
        say(f"Stopped by {summary['stopped_by']}; resume with: megalith train {run}")
        return
    if summary["stopped_by"] == END_OF_DATA:
        say("The data grows no more; remove the marker and train the run again to go on.")
    elif summary["stopped_by"]:
        say(f"Stopped early; the best evaluation was at step {summary['best_step']:,}.")
    if "evaluation" in summary:
        print_evaluation(summary["evaluation"])
    say(f"Run: {summary['run']}    report: megalith report {run}")


def _tiers(tiers: dict[str, Any]) -> str:
    """What tiers did, beside what was predicted where it was."""
    from megalith.core.units import format_bytes, format_duration

    predicted = tiers.get("predicted") or {}

    def shown(key: str, write: Callable[[float], str]) -> str:
        real = "-" if tiers.get(key) is None else write(tiers[key])
        return f"{real} (predicted {write(predicted[key])})" if key in predicted else real

    return (
        f"Tiers: cache hits {shown('hit_rate', '{:.1%}'.format)}, disk reads a sample "
        f"{shown('reads_per_sample', '{:.2f}'.format)}, a step {shown('step_seconds', format_duration)}; "
        f"in memory {format_bytes(tiers['memory_bytes'])} of rows and {format_bytes(tiers['index_bytes'])} "
        f"of index and buffers, on disk {format_bytes(tiers['disk_bytes'])}."
    )


def _adaptive(adaptive: dict[str, Any]) -> str:
    """What adaptive tables take at the end, part by part, beside what they would as dense ones."""
    from megalith.core.units import format_bytes, format_count

    parts = ("weights", "state", "utility", "index", "sketch", "free", "bookkeeping")
    listed = ", ".join(f"{part} {format_bytes(adaptive[f'{part}_bytes'])}" for part in parts)
    return (
        f"Adaptive tables: {format_bytes(adaptive['total_bytes'])}, {adaptive['ratio']:.1f} times smaller "
        f"than dense ({listed}); {format_count(adaptive['pruned'])} chunks pruned, "
        f"{format_count(adaptive['grown'])} grown."
    )
