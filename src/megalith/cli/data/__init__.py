"""`megalith data prepare|synth|stats`."""

from __future__ import annotations

import typer

from megalith.cli.data.prepare import prepare
from megalith.cli.data.stats import stats
from megalith.cli.data.synth import synth

data = typer.Typer(help="Prepare, generate and measure click data.", no_args_is_help=True)
data.command()(prepare)
data.command()(synth)
data.command()(stats)
