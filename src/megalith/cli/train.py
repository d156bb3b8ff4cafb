"""`megalith train` and `megalith eval`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from megalith.cli.output import JsonFlag, note, print_json, progress_console, say

if TYPE_CHECKING:
    from megalith.train.session import Session


def train(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name or .yaml path, or the folder of a run to go on with.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, such as train.steps=100."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default runs/NAME.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out if there is one.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a run that is in the folder.")
    ] = False,
    json_output: JsonFlag = False,
) -> None:
    """Train a recipe; stop it with Ctrl-C or SIGTERM and go on with `megalith train RUN`.

    On several processes: torchrun --nproc-per-node 2 -m megalith train RECIPE. Workers that torchrun restarts
    go on from the last checkpoint.
    """
    from megalith.train.session import training_session

    with training_session() as session:
        summary = _train(session, recipe, overrides or [], out, resume or session.restarted, overwrite)
        if not session.ranks.is_first:
            return
        if json_output:
            print_json(summary)
        else:
            _print_summary(summary)


def _train(
    session: Session, recipe: str, overrides: list[str], out: Path | None, resume: bool, overwrite: bool
) -> dict[str, Any]:
    import shutil

    from megalith.core.errors import ConfigError, MegalithError
    from megalith.train.recipe import load_recipe
    from megalith.train.run import Run
    from megalith.train.trainer import Trainer

    ranks = session.ranks
    goes_on = (Path(recipe) / "config.yaml").is_file()
    fixed = [override for override in overrides if not override.startswith("sharding.")]
    if goes_on and fixed:
        raise ConfigError(
            f"{recipe} goes on with its own settings, all but sharding.*; leave {fixed[0]} out or start a "
            "new run."
        )
    settings = load_recipe(recipe, overrides)
    run = Run(Path(recipe) if goes_on else out or Path("runs") / settings.name)
    # The first rank looks, so that all do the same whatever the folder becomes meanwhile.
    goes_on = ranks.from_first(lambda: goes_on or (resume and run.config.exists()))
    if goes_on:
        # Where tables lie is another matter at every start; what is learnt is not.
        stored = ranks.from_first(run.recipe).model_copy(update={"sharding": settings.sharding})
        if stored != settings:
            raise ConfigError(
                f"{run.config} differs from the recipe given; go on with `megalith train {run.folder}`, or "
                "choose another --out."
            )
    progress = progress_console if ranks.is_first else None
    # Everything that can be wrong with the recipe or the data is found before a folder is made or replaced.
    trainer = Trainer(settings, run, progress)
    if not goes_on and not overwrite:
        ranks.from_first(run.refuse_existing)
    session.accept()
    if goes_on:
        ranks.from_first(lambda: run.write_recipe(settings))
        step = trainer.resume()
        if progress is not None:
            note(f"Going on with {run.folder} from step {step:,}.")
    else:

        def create() -> None:
            if overwrite and run.config.exists():
                shutil.rmtree(run.folder)
            run.create(settings)

        ranks.from_first(create)
    try:
        return trainer.fit()
    except Exception as error:
        # On many ranks the mistake may be another's, and this one only lost its company.
        known = isinstance(error, MegalithError) or ranks.world_size > 1
        if known and ranks.is_first and not goes_on and trainer.step == 0:
            # Nothing was learnt: a folder that only stands in the way of the next try.
            run.discard()
        raise


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    split: Annotated[str | None, typer.Option(help="Split to score; by default the recipe's.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Another prepared data set with the same features.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Checkpoint to score; by default the best or the last.")
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Score a trained model on a split.

    On several processes: torchrun --nproc-per-node 2 -m megalith eval RUN. Each holds its part of the tables
    and scores its share of the rows; the figures are those of one process.
    """
    from megalith.train.session import training_session
    from megalith.train.trainer import without_curve

    with training_session() as session:
        result = _evaluate(session, run, split, data, step)
        if not session.ranks.is_first:
            return
        if json_output:
            print_json(result)
        else:
            _print_evaluation(without_curve(result))


def _evaluate(
    session: Session, run: Path, split: str | None, data: Path | None, step: int | None
) -> dict[str, Any]:
    import json

    from megalith.core.errors import ConfigError
    from megalith.core.files import write_atomic
    from megalith.data.dataset import Dataset
    from megalith.train.evaluation import choose_split
    from megalith.train.evaluation import evaluate as score
    from megalith.train.run import Run
    from megalith.train.trainer import open_learner

    ranks, folder = session.ranks, Run(run)
    recipe = folder.recipe()
    trained_on = Dataset(recipe.data.path)
    dataset = Dataset(data) if data else trained_on
    ours, theirs = trained_on.schema, dataset.schema
    if (ours.numeric, ours.categorical) != (theirs.numeric, theirs.categorical):
        raise ConfigError(
            f"{data} has other features than {recipe.data.path}, which {run} was trained on; prepare it with "
            f"--vocabulary-from {recipe.data.path}."
        )
    chosen = split or choose_split(recipe.data, dataset)
    if chosen is None:
        raise ConfigError(f"{dataset.folder} has no split valid or test; name one with --split.")
    dataset.split(chosen)
    learner, used = open_learner(folder, trained_on, step)
    overlap = ranks.world_size > 1 and recipe.sharding.pipeline
    scores = score(learner, dataset, chosen, recipe.data, overlap=overlap)
    result = {"run": str(run), "step": used, **scores}
    if data is None:
        content = json.dumps(result, indent=1) + "\n"
        ranks.from_first(lambda: write_atomic(folder.evaluation(chosen), content))
    return result


def _print_summary(summary: dict[str, Any]) -> None:
    from megalith.core.units import format_bytes, format_count, format_seconds

    say(
        f"{summary['step']:,} of {summary['total_steps']:,} steps in {format_seconds(summary['seconds'])}, "
        f"{format_count(summary['samples_per_second'])} samples/s; {summary['tables']} tables of "
        f"{format_bytes(summary['table_bytes'])}, {format_count(summary['dense_parameters'])} dense weights."
    )
    run = shlex.quote(summary["run"])
    if not summary["finished"]:
        say(f"Stopped by {summary['stopped_by']}; go on with: megalith train {run}")
        return
    if summary["stopped_by"]:
        say(f"Stopped early; the best evaluation was at step {summary['best_step']:,}.")
    if "evaluation" in summary:
        _print_evaluation(summary["evaluation"])
    say(f"Run: {summary['run']}    report: megalith report {run}")


def _print_evaluation(result: dict[str, Any]) -> None:
    names = {"ne": "NE", "log_loss": "log loss", "auc": "AUC", "calibration": "calibration"}
    numbers = [f"{shown} {result[key]:.5f}" for key, shown in names.items() if result.get(key) is not None]
    line = f"{result['split']} at step {result['step']:,}: " + ", ".join(numbers)
    if "best_ne" in result:
        line += f" (best possible NE {result['best_ne']:.5f}, {100 * result['above_best']:.2f}% above it)"
    say(line)
