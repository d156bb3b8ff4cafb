"""The commands, gathered."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from megalith.cli.bench import bench
from megalith.cli.checkpoint import checkpoint
from megalith.cli.data import data
from megalith.cli.demo.command import demo
from megalith.cli.doctor import doctor
from megalith.cli.embeddings import embeddings
from megalith.cli.evaluate import evaluate
from megalith.cli.explore import explore
from megalith.cli.export import diff, export
from megalith.cli.ids import ids
from megalith.cli.plan.command import plan
from megalith.cli.predict import predict
from megalith.cli.report import report
from megalith.cli.serve import loadtest, serve
from megalith.cli.train import train

CommandLineError: Any = typer.BadParameter.__bases__[0].__bases__[0]
"""What typer raises of a command, option or argument that it does not know."""

app = typer.Typer(
    name="megalith",
    help="Train, shrink, serve and plan recommendation models whose tables are larger than any one memory.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data, name="data")
app.add_typer(bench, name="bench")
app.add_typer(explore, name="explore")
app.add_typer(ids, name="ids")
app.add_typer(checkpoint, name="checkpoint")
app.command()(plan)
app.command("train")(train)
app.command("eval")(evaluate)
app.command()(predict)
app.command()(embeddings)
app.command()(export)
app.command()(diff)
app.command()(report)
app.command()(serve)
app.command()(loadtest)
app.command()(demo)
app.command()(doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        from megalith import __version__

        print(f"megalith {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options of every command."""
    del version
    if debug:
        os.environ["MEGALITH_DEBUG"] = "1"
