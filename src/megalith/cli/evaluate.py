"""`megalith eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from megalith.cli.output import JsonFlag, print_json, say

TrustFlag = Annotated[
    bool,
    typer.Option("--trust-code", help="Run the code of a model of one's own that this run folder names."),
]
CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        "--step",
        metavar="best|last|STEP",
        help="Checkpoint to take; by default the best where the run stops early, else the last.",
    ),
]


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    split: Annotated[str | None, typer.Option(help="Split to score; by default the recipe's.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Another prepared data set with the same features.")
    ] = None,
    checkpoint: CheckpointOption = None,
    predictions: Annotated[
        Path | None,
        typer.Option(help="Also write score and label of every row (.parquet, .csv, .arrow)."),
    ] = None,
    trust_code: TrustFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Score a trained model on a split.

    On several processes: torchrun --nproc-per-node 2 -m megalith eval RUN. Each holds its part of the tables
    and scores its share of the rows; the figures are those of one process.
    """
    from megalith.train.checkpoints import parse_checkpoint
    from megalith.train.evaluation.score_run import EvalRequest, score_run
    from megalith.train.session import training_session

    with training_session() as session:
        request = EvalRequest(run, split, data, parse_checkpoint(checkpoint), trust_code, predictions)
        result = score_run(session.ranks, request)
        if session.ranks.is_first:
            (print_json if json_output else print_evaluation)(result)


def print_evaluation(result: dict[str, Any]) -> None:
    """One line: the metrics of a split, beside the best possible where that is known."""
    names = {"ne": "NE", "log_loss": "log loss", "auc": "AUC", "calibration": "calibration"}
    numbers = [f"{shown} {result[key]:.5f}" for key, shown in names.items() if result.get(key) is not None]
    line = f"{result['split']} at step {result['step']:,}: " + ", ".join(numbers)
    if "best_ne" in result:
        line += f" (best possible NE {result['best_ne']:.5f}, {100 * result['above_best']:.2f}% above it)"
    say(line)
