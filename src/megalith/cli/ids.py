"""`megalith ids export|import|stats`: ids of dynamic tables."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from megalith.cli.evaluate import TrustFlag
from megalith.cli.output import JsonFlag, print_json, print_table, say

ids = typer.Typer(help="Ids of dynamic tables: out to files, in from them, counted.", no_args_is_help=True)
RunArgument = Annotated[Path, typer.Argument(help="Folder of a run.")]
TableArgument = Annotated[str, typer.Argument(help="A dynamic table.")]


@ids.command("export")
def export_command(
    run: RunArgument,
    table: TableArgument,
    out: Annotated[Path, typer.Option(help="Parquet file to write; it appears when it is complete.")],
    step: Annotated[int | None, typer.Option(help="Checkpoint to read; by default the last.")] = None,
    state: Annotated[bool, typer.Option("--state", help="Also the optimizer's state of each row.")] = False,
    json_output: JsonFlag = False,
) -> None:
    """Write the ids of a table that have a row, with score, last batch, event time and vector."""
    from megalith.core.units import format_bytes
    from megalith.train.ids.export import ExportRequest, export_table

    result = export_table(ExportRequest(run, table, out, step, state))
    if json_output:
        print_json(result)
        return
    say(
        f"{out}: {result['ids']:,} ids of table {table} at step {result['step']:,}, vectors of "
        f"{result['dim']}, {format_bytes(result['bytes'])}"
    )


@ids.command("import")
def import_command(
    target: Annotated[str, typer.Argument(metavar="RUN|RECIPE", help="Folder of a run; or a recipe.")],
    table: TableArgument,
    file: Annotated[Path, typer.Argument(help="Parquet file with `id` or `value`, and `vector`.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the recipe to change."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run that a recipe begins; by default runs/NAME.")
    ] = None,
    trust_code: TrustFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Bring ids with vectors into a run: its last checkpoint is written again, with them.

    A recipe begins a new run, with a checkpoint of step 0; `megalith train RUN` goes on from there.
    """
    from megalith.core.errors import ConfigError
    from megalith.train.ids.import_file import import_file
    from megalith.train.job import TrainRequest, build, parse
    from megalith.train.session import training_session

    with training_session() as session:
        if session.ranks.world_size > 1:
            raise ConfigError("Ids are imported by one process; run without torchrun.")
        job = parse(session, TrainRequest(target, tuple(overrides or ()), out, trust_code=trust_code))
        with build(session, job, None) as trainer:
            result = import_file(trainer, table, file)
    (print_json if json_output else _show_import)(result)


def _show_import(result: dict[str, Any]) -> None:
    run = shlex.quote(result["run"])
    say(
        f"{result['kept']:,} of {result['ids']:,} ids of {result['file']} have a row in table "
        f"{result['table']}; {result['ids_after']:,} of its {result['bound']:,} rows are in use, "
        f"{result['ids_before']:,} were."
    )
    say(f"Saved as step {result['step']:,}; go on with: megalith train {run}")


@ids.command("stats")
def stats_command(run: RunArgument, json_output: JsonFlag = False) -> None:
    """Print how many ids came, left and found no row, by table, as the run has reported."""
    from megalith.train.ids.stats import id_statistics

    result = id_statistics(run)
    if json_output:
        print_json(result)
        return
    print_table(
        f"{run} up to step {result['step']:,}",
        ("table", "ids", "bound", "lookups", "hit rate", "unknown", "admitted", "evicted", "expired"),
        [_row(name, counts) for name, counts in result["tables"].items()],
    )


def _row(name: str, counts: dict[str, Any]) -> tuple[str, ...]:
    shares = (
        "-" if share is None else f"{share:.2%}" for share in (counts["hit_rate"], counts["unknown_share"])
    )
    expired = sum(count for key, count in counts.items() if key.startswith("expired"))
    numbers = (counts["admitted"], counts["evicted"] + counts["shrunk"], expired)
    return (
        name,
        *(f"{counts[key]:,}" for key in ("ids", "bound", "lookups")),
        *shares,
        *(f"{number:,}" for number in numbers),
    )
