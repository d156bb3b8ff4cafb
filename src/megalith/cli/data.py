"""`megalith data prepare|synth|stats`."""

from __future__ import annotations

import typer

from megalith.cli.data_prepare import prepare
from megalith.cli.data_stats import stats
from megalith.cli.data_synth import synth

data = typer.Typer(help="Prepare, generate and measure click data.", no_args_is_help=True)
data.command()(prepare)
data.command()(synth)
data.command()(stats)
