"""`megalith explore`: predict, search, compare, validate, calibrate, scenarios, catalog, goodput, share.

commands.py     predict, search, compare, validate, calibrate, scenarios, catalog
operations.py   goodput, share
options.py      arguments and options that they share
tables/         what they print for people, a module for each
plan_files.py   what `search --out` writes
"""

from __future__ import annotations

import typer

from megalith.cli.explore.commands import calibrate, catalog, compare, predict, scenarios, search, validate
from megalith.cli.explore.operations import goodput, share

explore = typer.Typer(
    help="Plan training across buildings and regions.",
    no_args_is_help=True,
)
for command in (predict, search, compare, validate, calibrate, scenarios, catalog, goodput, share):
    explore.command()(command)
