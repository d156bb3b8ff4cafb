"""`megalith explore`: predict, search, compare, validate, scenarios, catalog.

commands.py     the six commands
options.py      arguments and options that they share
tables/         what they print for people, a module for each
plan_files.py   what `search --out` writes
"""

from __future__ import annotations

import typer

from megalith.cli.explore.commands import catalog, compare, predict, scenarios, search, validate

explore = typer.Typer(
    help="Plan training across buildings and regions.",
    no_args_is_help=True,
)
for command in (predict, search, compare, validate, scenarios, catalog):
    explore.command()(command)
